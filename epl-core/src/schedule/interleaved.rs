//! The order in which interleaved chunks take micro-batches, and how far forwards run ahead.
//!
//! Interleaved 1F1B of Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
//! Clusters Using Megatron-LM": micro-batches go in groups; a group goes through chunk 0 of all
//! stages, then through chunk 1, and so on. By the time its last micro-batch has entered chunk 0 of stage 0, its
//! first has left the last stage and can enter chunk 1.
//!
//! The paper's groups have p micro-batches, so p has to divide m. Here a group has at least p, and
//! the remainder is spread over the groups. A smaller group would leave stage 0 idle while its
//! first micro-batch is under way, or deadlock under the paper's warm-up (4 stages, 3 chunks, 5 micro-batches).
//!
//! ```text
//!  p = 4, m = 11, v = 2: groups of 6 and 5
//!  F0 F1 F2 F3 F4 F5  F0.1 F1.1 F2.1 F3.1 F4.1 F5.1  F6 F7 F8 F9 F10  F6.1 F7.1 F8.1 F9.1 F10.1
//! ```
//!
//! With cost f and b for a chunk's forward and backward, the makespan is
//! (v·max(m, p) + min(m, p) − 1)·(f + b), the bubble for m ≥ p so (p − 1) / (v·m + p − 1), for any remainder.

use std::ops::Range;

use super::action::Action;
use super::sizes::Sizes;

/// Every stage's forwards, in their order.
pub(super) fn forwards(sizes: Sizes) -> Vec<Action> {
    let of_chunk = |chunk, group: Range<usize>| group.map(move |micro_batch| Action::forward(micro_batch, chunk));
    groups(sizes).flat_map(|group| (0..sizes.chunks()).flat_map(move |chunk| of_chunk(chunk, group.clone()))).collect()
}

/// Every stage's backwards, in their order: as the forwards, with the last chunk of a group first.
pub(super) fn backwards(sizes: Sizes) -> Vec<Action> {
    let of_chunk = |chunk, group: Range<usize>| group.map(move |micro_batch| Action::backward(micro_batch, chunk));
    groups(sizes)
        .flat_map(|group| (0..sizes.chunks()).rev().flat_map(move |chunk| of_chunk(chunk, group.clone())))
        .collect()
}

/// How many forwards a stage does before it alternates.
///
/// The first backward comes when the first micro-batch has gone through all chunks: on the last
/// stage after v − 1 whole groups, and two actions later for every stage before it, since both its
/// way to the last stage and its way back cross one more stage.
pub(super) fn ahead(stage: usize, sizes: Sizes) -> usize {
    let largest = groups(sizes).map(|group| group.len()).max().unwrap_or(0);
    2 * (sizes.stages() - 1 - stage) + (sizes.chunks() - 1) * largest
}

/// The micro-batches in groups of at least p, as even as can be, the larger ones first. Fewer than p
/// are one group.
fn groups(sizes: Sizes) -> impl Iterator<Item = Range<usize>> {
    let number = (sizes.micro_batches() / sizes.stages()).max(1);
    let (size, larger) = (sizes.micro_batches() / number, sizes.micro_batches() % number);
    let start = move |group: usize| group * size + group.min(larger);
    (0..number).map(move |group| start(group)..start(group + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_group_is_smaller_than_the_pipeline() {
        for (stages, micro_batches, expected) in [
            (4, 8, vec![0..4, 4..8]),
            (4, 11, vec![0..6, 6..11]),
            (4, 7, vec![0..7]),
            (4, 2, vec![0..2]),
            (3, 10, vec![0..4, 4..7, 7..10]),
            (1, 3, vec![0..1, 1..2, 2..3]),
        ] {
            let sizes = Sizes::new(stages, micro_batches, 2).unwrap();
            assert_eq!(groups(sizes).collect::<Vec<_>>(), expected, "{stages} stages, {micro_batches} micro-batches");
        }
    }
}
