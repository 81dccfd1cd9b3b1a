//! A text in pieces: which pieces a stretch of characters touches, which characters a run of pieces covers.
//!
//! ```text
//! text         T h e   u n h u r r i e d   c r a b
//! characters   0 1 2 3 4 5 6 7 8 9 ...    14
//! pieces       [the]   [un][##hurried]    [crab]
//! characters    0..3   4..6  6..13        14..18
//! ```

use std::ops::Range;

/// The pieces of a text, in order, each with the characters of the original text that it stands for.
///
/// Neither starts nor ends ever go down. Two pieces share a character only where that character was taken apart
/// (a Korean syllable into its letters).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    ids: Vec<i64>,
    characters: Vec<Range<usize>>,
}

impl Pieces {
    pub(super) fn new(pieces: impl Iterator<Item = (i64, Range<usize>)>) -> Self {
        let (ids, characters) = pieces.unzip();
        Self { ids, characters }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Their numbers in the vocabulary.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// Their characters in the original text.
    pub fn characters(&self) -> &[Range<usize>] {
        &self.characters
    }

    /// The pieces that have one of these characters or more; none if there is no such piece.
    ///
    /// This is the tight span of an answer. BERT's `run_squad` knows only the words between spaces, and so looks
    /// within them for the answer's own pieces (`improve_answer_span`): `(1895-1943)` to `1895`. Places give the same
    /// span without a search, also where the answer's pieces occur twice in a word or are cut otherwise in it.
    pub fn touching(&self, characters: &Range<usize>) -> Option<Range<usize>> {
        let first = self.characters.partition_point(|piece| piece.end <= characters.start);
        let end = self.characters.partition_point(|piece| piece.start < characters.end);
        (first < end).then_some(first..end)
    }

    /// The characters from the first to the last of a run of pieces; none if the run is empty or goes too far.
    pub fn covered(&self, pieces: &Range<usize>) -> Option<Range<usize>> {
        let run = self.characters.get(pieces.clone())?;
        Some(run.first()?.start..run.last()?.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_touches_the_pieces_that_have_its_characters() {
        // "The unhurried crab", as in the drawing.
        let pieces = Pieces::new([(5, 0..3), (6, 4..6), (7, 6..13), (8, 14..18)].into_iter());
        for (characters, touched) in [
            (0..3, Some(0..1)),
            (4..13, Some(1..3)),
            (5..7, Some(1..3)),
            (6..18, Some(2..4)),
            (2..15, Some(0..4)),
            (3..4, None),
            (18..30, None),
            (13..14, None),
        ] {
            assert_eq!(pieces.touching(&characters), touched, "{characters:?}");
        }
        assert_eq!(pieces.covered(&(1..3)), Some(4..13));
        assert_eq!((pieces.covered(&(2..2)), pieces.covered(&(3..5))), (None, None));
        assert_eq!((pieces.len(), pieces.ids()), (4, [5, 6, 7, 8].as_slice()));
        assert!(Pieces::default().is_empty() && Pieces::default().touching(&(0..9)).is_none());
    }
}
