//! Who takes part, and which part of an extent is whose.

use core::fmt;
use core::ops::Range;

use serde::{Deserialize, Serialize};

/// The number of a rank in the world: one device, driven by one thread.
///
/// A position inside a group is a plain `usize` (a *member*); [`ProcessGroup::global`](crate::ProcessGroup::global)
/// leads from a member to its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// The part `index` of an extent of `size` cut into `parts` balanced parts: the first `size % parts` parts take one
/// more. Parts of an extent smaller than `parts` may be empty.
///
/// ```
/// use epl_comm::shard_range;
/// assert_eq!([shard_range(5, 2, 0), shard_range(5, 2, 1)], [0..3, 3..5]);
/// ```
///
/// # Panics
///
/// When `index` is not below `parts`.
pub fn shard_range(size: usize, parts: usize, index: usize) -> Range<usize> {
    assert!(index < parts, "there is no part {index} of {parts} parts");
    let (each, more) = (size / parts, size % parts);
    let start = index * each + index.min(more);
    start..start + each + usize::from(index < more)
}

/// The sizes of all parts of [`shard_range`].
pub(crate) fn shard_sizes(size: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|index| shard_range(size, parts, index).len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_extent_in_order_and_differ_by_at_most_one() {
        for size in 0..20 {
            for parts in 1..8 {
                let ranges: Vec<_> = (0..parts).map(|index| shard_range(size, parts, index)).collect();
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges[parts - 1].end, size);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].len() >= pair[1].len()));
                assert!(ranges[0].len() - ranges[parts - 1].len() <= 1);
            }
        }
    }
}
