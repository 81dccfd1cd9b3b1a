//! How the rows that a rank receives are laid out for its experts. Numbers only.

/// Where received rows go in a block of `height` places for each local expert.
///
/// ```text
/// received:  from rank 0: e0 e0 e1 | from rank 1: e0 e1          (rows lie by rank, then expert, then token)
/// slots:                   0  1  3                2  4           (height 3)
/// block:     e0 e0 e0 | e1 e1 ·                                  (· stays zero)
/// ```
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arrangement {
    /// The experts of this rank.
    pub experts: usize,
    /// Places for each expert: at least one, so that an expert without tokens still has a gradient, of zeros.
    pub height: usize,
    /// The place of each received row, counted through the whole block.
    pub slots: Vec<usize>,
}

impl Arrangement {
    /// Arranges rows of which `counts` says how many come from each rank for each local expert, by rank.
    pub(super) fn new(counts: &[usize], experts: usize) -> Self {
        assert!(counts.len().is_multiple_of(experts), "one count for each local expert from every rank");
        let mut total = vec![0; experts];
        counts.iter().enumerate().for_each(|(index, count)| total[index % experts] += count);
        let height = total.iter().copied().max().unwrap_or(0).max(1);
        let mut next: Vec<usize> = (0..experts).map(|expert| expert * height).collect();
        let mut slots = Vec::with_capacity(total.iter().sum());
        for (index, count) in counts.iter().enumerate() {
            let first = next[index % experts];
            slots.extend(first..first + count);
            next[index % experts] += count;
        }
        Self { experts, height, slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_rank_keep_their_order() {
        let arrangement = Arrangement::new(&[2, 0, 3], 3);
        assert_eq!(arrangement, Arrangement { experts: 3, height: 3, slots: vec![0, 1, 6, 7, 8] });
    }

    #[test]
    fn rows_of_several_ranks_meet_at_their_expert() {
        let arrangement = Arrangement::new(&[2, 1, 1, 1], 2);
        assert_eq!(arrangement, Arrangement { experts: 2, height: 3, slots: vec![0, 1, 3, 2, 4] });
    }

    #[test]
    fn a_rank_that_receives_nothing_has_a_block_of_zeros() {
        assert_eq!(Arrangement::new(&[0, 0, 0, 0], 2), Arrangement { experts: 2, height: 1, slots: vec![] });
    }
}
