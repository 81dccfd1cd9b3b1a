//! Options as environment variables.

use strsim::jaro_winkler;

use super::error::{ConfigError, Result};
use super::nearest::most_like;
use super::origin::Origin;
use super::sections::{OPTIONS, OptionSpec};

const PREFIX: &str = "EPL_";

/// Variables of ours that are no options. They name NCCL's library, ask for a plan, serve tests, and say what a launcher tells its
/// workers.
const OTHERS: &[&str] =
    &["EPL_NCCL_LIBRARY", "EPL_PLAN", "EPL_PLAN_CLUSTER", "EPL_REFERENCE_CASES", "EPL_WRITE_OPTIONS"];
const OTHER_PREFIXES: &[&str] = &["EPL_LAUNCH_", "EPL_TEST_"];

/// The environment variable of an option: `EPL_PIPELINE_NUM_MICRO_BATCH`.
pub fn variable(option: &OptionSpec) -> String {
    format!("{PREFIX}{}_{}", option.section, option.name).to_ascii_uppercase()
}

/// The option that a variable sets; none where the variable is not about options.
pub(crate) fn option_of(name: &str) -> Result<Option<&'static OptionSpec>> {
    let other = OTHERS.contains(&name) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if !name.starts_with(PREFIX) || other {
        return Ok(None);
    }
    if let Some(option) = OPTIONS.iter().find(|option| variable(option) == name) {
        return Ok(Some(option));
    }
    let nearest = most_like(|option| jaro_winkler(name, &variable(option)));
    Err(ConfigError::UnknownOption {
        key: name.to_string(),
        origin: Origin::Environment { variable: name.to_string() },
        nearest: variable(nearest),
    })
}

/// The variables of this process. What is not Unicode is made so, and is then refused if it is ours.
pub(super) fn of_process() -> impl Iterator<Item = (String, String)> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_option_has_a_variable_of_its_own() {
        let names: HashSet<_> = OPTIONS.iter().map(variable).collect();
        assert_eq!(names.len(), OPTIONS.len());
        assert!(names.contains("EPL_PIPELINE_NUM_MICRO_BATCH"));
        assert!(names.contains("EPL_GRADIENT_CHECKPOINT_TYPE"));
        assert!(names.iter().all(|name| option_of(name).unwrap().is_some()));
    }

    #[test]
    fn other_variables_are_left_alone() {
        for name in ["PATH", "XEPL_A", "EPL_REFERENCE_CASES", "EPL_LAUNCH_RANK", "EPL_NCCL_LIBRARY", "epl_train_seed"] {
            assert!(option_of(name).unwrap().is_none(), "{name}");
        }
    }
}
