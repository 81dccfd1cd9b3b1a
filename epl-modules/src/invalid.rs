//! How a layer refuses what its user asked for.
//!
//! Burn's `init` and `forward` return no `Result`. A layer that cannot be built, or whose input does not fit,
//! unwinds with an [`epl_comm::Error`]; the launch, or the step, catches it and returns it as an `Err`.

use epl_comm::{Error, ProcessGroup, unwind};

/// Unwinds with what is wrong: both numbers and the remedy.
#[cold]
pub(crate) fn refuse(message: String) -> ! {
    unwind(Error::invalid(message))
}

/// Refuses an input whose last dim is not the size that the layer was made for.
pub(crate) fn check_last_dim<const D: usize>(layer: &str, (name, size): (&str, usize), input: [usize; D]) {
    let found = input[D - 1];
    if found != size {
        refuse(format!(
            "a {layer} of {name} {size} got an input of {input:?}, whose last dim is {found}: give it {size} features, \
             or make the layer with {name} {found}"
        ));
    }
}

/// Refuses sizes of which one is 0.
pub(crate) fn check_not_empty(path: &str, layer: &str, sizes: &[(&str, usize)]) {
    if sizes.iter().any(|(_, size)| *size == 0) {
        let sizes: Vec<String> = sizes.iter().map(|(name, size)| format!("{name} {size}")).collect();
        refuse(format!("{path}: {layer} of {}; give at least 1 of each", sizes.join(" and ")));
    }
}

/// Refuses an epsilon with which a norm would not normalise: of zero or less, equal values have no deviation to be divided
/// by; with an infinite one every output is the shift.
pub(crate) fn check_epsilon(path: &str, epsilon: f64) {
    if !epsilon.is_finite() || epsilon <= 0.0 {
        refuse(format!("{path}: epsilon {epsilon} is not finite and positive; 1e-5 and 1e-6 are usual"));
    }
}

/// Refuses a tensor that is split or copied over other ranks than the layer's.
pub(crate) fn check_group(layout: &str, found: &ProcessGroup, layer: &ProcessGroup) {
    let same_members = found.size() == layer.size() && (0..layer.size()).all(|m| found.global(m) == layer.global(m));
    if found.name() != layer.name() || !same_members {
        refuse(format!(
            "a layer over the {} axis of {} ranks got a tensor that is {layout} over the {} axis of {} ranks: \
             make it replicated first, then {layout} over the layer's axis",
            layer.name(),
            layer.size(),
            found.name(),
            found.size()
        ));
    }
}
