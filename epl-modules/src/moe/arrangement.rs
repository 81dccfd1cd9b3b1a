//! How the rows that a rank receives are laid out for its experts. Numbers only.

/// Where the rows that a rank receives go, so that those of each of its experts lie together.
///
/// ```text
/// received:  from rank 0: e0 e0 e1 | from rank 1: e0 e1          (rows lie by rank, then expert, then token)
/// places:                  0  1  3                2  4           sorted: e0 e0 e0 e1 e1
/// slots:                   0  1  3                2  4           block:  e0 e0 e0 | e1 e1 ·   (height 3, · stays zero)
/// ```
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arrangement {
    /// The rows of each expert of this rank.
    pub counts: Vec<usize>,
    /// The place of each received row among all, sorted by expert.
    pub places: Vec<usize>,
}

impl Arrangement {
    /// Arranges rows of which `counts` says how many come from each rank for each local expert, by rank.
    pub(super) fn new(counts: &[usize], experts: usize) -> Self {
        assert!(counts.len().is_multiple_of(experts), "one count for each local expert from every rank");
        let mut total = vec![0; experts];
        counts.iter().enumerate().for_each(|(index, count)| total[index % experts] += count);
        let mut next = starts(&total);
        let mut places = Vec::with_capacity(total.iter().sum());
        for (index, count) in counts.iter().enumerate() {
            let first = next[index % experts];
            places.extend(first..first + count);
            next[index % experts] += count;
        }
        Self { counts: total, places }
    }

    /// Whether rows come sorted, as from one rank.
    pub(super) fn is_sorted(&self) -> bool {
        self.places.is_sorted()
    }

    /// The received row of each place.
    pub(super) fn rows_by_place(&self) -> Vec<usize> {
        let mut rows = vec![0; self.places.len()];
        self.places.iter().enumerate().for_each(|(row, place)| rows[*place] = row);
        rows
    }

    /// Places for each expert in a block in which all have as many: at least one, so that an expert without tokens still has a
    /// gradient, of zeros.
    pub(super) fn height(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(0).max(1)
    }

    /// The received row of each place in that block, the number of rows where none is.
    pub(super) fn rows_by_slot(&self) -> Vec<usize> {
        let mut rows = vec![self.places.len(); self.counts.len() * self.height()];
        self.slots().into_iter().enumerate().for_each(|(row, slot)| rows[slot] = row);
        rows
    }

    /// The place of each received row in that block.
    pub(super) fn slots(&self) -> Vec<usize> {
        let (height, starts) = (self.height(), starts(&self.counts));
        let slot = |place: &usize| {
            let expert = starts.partition_point(|start| start <= place) - 1;
            expert * height + place - starts[expert]
        };
        self.places.iter().map(slot).collect()
    }
}

/// The place of the first row of each expert.
fn starts(counts: &[usize]) -> Vec<usize> {
    let next = |place: &mut usize, count: &usize| Some(std::mem::replace(place, *place + count));
    counts.iter().scan(0, next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_rank_keep_their_order() {
        let arrangement = Arrangement::new(&[2, 0, 3], 3);
        assert_eq!(arrangement, Arrangement { counts: vec![2, 0, 3], places: vec![0, 1, 2, 3, 4] });
        assert!(arrangement.is_sorted());
        assert_eq!((arrangement.height(), arrangement.slots()), (3, vec![0, 1, 6, 7, 8]));
        assert_eq!(arrangement.rows_by_slot(), [0, 1, 5, 5, 5, 5, 2, 3, 4]);
    }

    #[test]
    fn rows_of_several_ranks_meet_at_their_expert() {
        let arrangement = Arrangement::new(&[2, 1, 1, 1], 2);
        assert_eq!(arrangement, Arrangement { counts: vec![3, 2], places: vec![0, 1, 3, 2, 4] });
        assert!(!arrangement.is_sorted());
        assert_eq!((arrangement.height(), arrangement.slots()), (3, vec![0, 1, 3, 2, 4]));
        let arrangement = Arrangement::new(&[1, 2, 1, 0], 2);
        assert_eq!((arrangement.places.clone(), arrangement.rows_by_place()), (vec![0, 2, 3, 1], vec![0, 3, 1, 2]));
    }

    #[test]
    fn a_rank_that_receives_nothing_has_a_block_of_zeros() {
        let arrangement = Arrangement::new(&[0, 0, 0, 0], 2);
        assert_eq!(arrangement, Arrangement { counts: vec![0, 0], places: vec![] });
        assert_eq!((arrangement.height(), arrangement.slots()), (1, vec![]));
    }
}
