//! How a layer's display says where its parameters are.

use epl_comm::{ProcessGroup, shard_range};

use crate::invalid::refuse;

/// What every rank holds.
pub(crate) const REPLICATED: &str = "replicated";

/// A layer without parameters.
pub(crate) const NOTHING: &str = "no parameters";

/// The slice of `size` `noun`s that this rank of the group holds.
pub(crate) fn split(group: &ProcessGroup, noun: &str, size: usize) -> String {
    let mine = shard_range(size, group.size(), group.rank());
    format!("{noun}s {}..{} of {size}, {} {} of {}", mine.start, mine.end, group.name(), group.rank(), group.size())
}

/// Refuses a size that leaves a rank of the group without a part.
pub(crate) fn check_enough(group: &ProcessGroup, path: &str, noun: &str, size: usize) {
    if size < group.size() {
        refuse(format!(
            "{path}: {size} {noun}s cannot be split over the {} ranks of group `{}`, as some would hold none: split them \
             over at most {size} ranks, or use a replicated layer",
            group.size(),
            group.name()
        ));
    }
}
