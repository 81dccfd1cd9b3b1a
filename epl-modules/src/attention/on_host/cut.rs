//! Which keys a query sees, and how a call is cut into parts and blocks.

use core::ops::Range;

use crate::attention::weighing::Sight;

/// The weights of a block: those in f32 and their gradients take half of a core's second cache.
const BLOCK: usize = 1 << 16;
/// The queries of a block, at least, whatever the keys: with fewer its products do not pay.
const LEAST_QUERIES: usize = 32;
/// The queries of a block of a causal call, at most: each computes half as many keys as it has queries in vain.
const CAUSAL_QUERIES: usize = 64;
/// Heads are cut into parts so that there are about so many tasks at least, and sequences that share a bias into so many groups
/// at most.
const TASKS: usize = 8;
/// So many tasks are enough to cut sequences that share a bias no further: each group has a whole gradient of it.
const ENOUGH_TASKS: usize = 2 * TASKS;

/// The sizes of a call.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// `[batch_size, heads, queries, keys]`
    pub shape: [usize; 4],
    pub sight: Sight,
}

/// Some queries of a head, and the keys that any of them sees.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The number of the head among those of all sequences.
    pub head: usize,
    pub first: usize,
    pub queries: usize,
    pub first_key: usize,
    pub keys: usize,
}

/// Some queries of a head: whole blocks.
#[derive(Clone)]
pub(super) struct Part {
    pub head: usize,
    pub queries: Range<usize>,
}

/// Which sequences one thread takes after the other: of those that share a bias so many.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    /// After so many sequences the biases begin anew.
    pub biases: usize,
    pub size: usize,
}

impl Groups {
    /// Each group has so many tasks: heads times parts.
    pub fn new(batch_size: usize, biases: usize, tasks: usize) -> Self {
        let of_bias = TASKS.div_ceil(biases).min(ENOUGH_TASKS.div_ceil(biases * tasks.max(1)));
        Self { biases, size: (batch_size / biases).div_ceil(of_bias) }
    }

    pub fn count(&self, batch_size: usize) -> usize {
        (batch_size / self.biases).div_ceil(self.size) * self.biases
    }

    /// The group of a sequence.
    pub fn of(&self, sequence: usize) -> usize {
        sequence / self.biases / self.size * self.biases + sequence % self.biases
    }
}

impl Cut {
    /// The keys that a query sees.
    #[inline(always)]
    pub fn seen(&self, query: usize) -> Range<usize> {
        let [.., queries, keys] = self.shape;
        self.sight.of(query, [queries, keys])
    }

    /// The queries of a block.
    fn block_size(&self) -> usize {
        let most = |keys: usize| (BLOCK / keys.max(1)).max(LEAST_QUERIES);
        match self.sight {
            Sight::All => most(self.shape[3]),
            Sight::Causal { window } => {
                let keys = window.map_or(usize::MAX, |window| window.saturating_add(CAUSAL_QUERIES));
                most(self.shape[3].min(keys)).min(CAUSAL_QUERIES)
            }
        }
    }

    /// The queries of each part of a head.
    pub fn parts(&self) -> Vec<Range<usize>> {
        let ([batch_size, heads, queries, _], size) = (self.shape, self.block_size());
        let blocks = queries.div_ceil(size);
        let parts = TASKS.div_ceil((batch_size * heads).max(1)).min(blocks).max(1);
        let rows = blocks.div_ceil(parts).max(1) * size;
        (0..queries).step_by(rows).map(|first| first..(first + rows).min(queries)).collect()
    }

    /// The blocks of a part, the last one first: without a window it sees the most keys.
    pub fn blocks(&self, part: &Part) -> impl Iterator<Item = Block> + use<'_> {
        let (size, head, queries) = (self.block_size(), part.head, part.queries.clone());
        queries.clone().step_by(size).rev().map(move |first| {
            let queries = size.min(queries.end - first);
            let (first_key, end) = (self.seen(first).start, self.seen(first + queries - 1).end);
            Block { head, first, queries, first_key, keys: end - first_key }
        })
    }

    /// Where the weights of so many queries of a part are kept.
    pub fn kept(&self, first: usize, queries: usize) -> Range<usize> {
        let keys = self.shape[3];
        first * keys..(first + queries) * keys
    }

    /// The number of the row of scores of a query among those of all heads.
    pub fn row(&self, block: Block, query: usize) -> usize {
        block.head * self.shape[2] + block.first + query
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_has_as_many_gradients_as_keep_the_threads_busy() {
        // Few heads, T5's, many of them, and biases of several sequences each.
        for (batch_size, biases, tasks, count) in
            [(8, 1, 1, 8), (8, 1, 12, 2), (64, 1, 12, 2), (64, 1, 32, 1), (5, 1, 4, 3), (8, 2, 3, 4), (128, 64, 3, 64)]
        {
            let groups = Groups::new(batch_size, biases, tasks);
            assert_eq!(groups.count(batch_size), count, "{batch_size} sequences, {biases} biases, {tasks} tasks");
            assert!((0..batch_size).all(|sequence| groups.of(sequence) < count));
        }
    }
}
