//! What tensors and numbers are called in a checkpoint.
//!
//! ```text
//! model/PATH                 a parameter, by its path in the module; what has no gradient, too
//! optimizer/PATH/FIELD       its state; `no_gradient`, if it is trained, had none yet, and so has no state
//! ```

/// How the names of the two kinds begin.
pub const KINDS: [&str; 2] = ["model/", "optimizer/"];

const MODEL: &str = KINDS[0];
const OPTIMIZER: &str = KINDS[1];

/// The field of a trained parameter's that has no state, as no step had a gradient of it.
pub(crate) const NO_GRADIENT: &str = "no_gradient";

/// The name of a parameter.
pub(crate) fn of_parameter(path: &str) -> String {
    format!("{MODEL}{path}")
}

/// The path of the parameter with this name, if it is that of one.
pub fn parameter(name: &str) -> Option<&str> {
    name.strip_prefix(MODEL)
}

/// The name of a field of a parameter's state.
pub(crate) fn of_state(path: &str, field: &str) -> String {
    format!("{OPTIMIZER}{path}/{field}")
}

/// The parameter's path, and the field, if the name is that of some state.
pub fn state(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(OPTIMIZER)?.split_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_made() {
        let name = of_parameter("layers.0.weight");
        assert_eq!(
            (name.as_str(), parameter(&name), state(&name)),
            ("model/layers.0.weight", Some("layers.0.weight"), None)
        );
        let name = of_state("layers.0.weight", "moment_1/scale");
        assert_eq!(name, "optimizer/layers.0.weight/moment_1/scale");
        assert_eq!((state(&name), parameter(&name)), (Some(("layers.0.weight", "moment_1/scale")), None));
        assert_eq!(state("optimizer/layers.0.weight"), None);
    }
}
