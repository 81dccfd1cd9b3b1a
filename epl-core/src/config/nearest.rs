//! The option somebody may have meant.

use strsim::jaro_winkler;

use super::sections::{OPTIONS, OptionSpec};

/// The option whose key is most like `key`. A right name in a wrong section, or in none, is near.
pub(crate) fn nearest(key: &str) -> &'static OptionSpec {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    most_like(|option| {
        let moved = if section == option.section { 0.0 } else { 0.05 };
        jaro_winkler(key, &option.key()).max(jaro_winkler(name, option.name) - moved)
    })
}

/// The option with the greatest likeness. Jaro and Winkler's measure forgives a missing word
/// (`tensor_size`), for which the number of edits is large.
pub(crate) fn most_like(likeness: impl Fn(&OptionSpec) -> f64) -> &'static OptionSpec {
    let pairs = OPTIONS.iter().map(|option| (likeness(option), option));
    pairs.max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are options").1
}

/// The option with this key.
pub(crate) fn find(key: &str) -> Option<&'static OptionSpec> {
    let (section, name) = key.split_once('.')?;
    OPTIONS.iter().find(|option| option.section == section && option.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_find_their_option() {
        for (given, meant) in [
            ("pipeline.num_microbatch", "pipeline.num_micro_batch"),
            ("train.num_micro_batch", "pipeline.num_micro_batch"),
            ("pipelin.num_micro_batch", "pipeline.num_micro_batch"),
            ("seed", "train.seed"),
            ("train.sede", "train.seed"),
            ("dist.tensor_size", "dist.tensor_parallel_size"),
            ("zero.lvl", "zero.level"),
            ("communication.maxsplits", "communication.max_splits"),
            ("schedule.warmup", "schedule.warmup_steps"),
            ("amp.loss_scale.initial", "amp.loss_scale"),
        ] {
            assert_eq!(nearest(given).key(), meant, "{given}");
        }
    }
}
