//! Some elements of a tensor, and what two such selections have in common.
//!
//! ```text
//! whole 4 × 6        box: rows 1..3, columns 2..6      flat: elements 1..6 of the box
//! · · · · · ·        · · · · · ·                       · · · · · ·
//! · · · · · ·        · · a b c d                       · · · b c d
//! · · · · · ·        · · e f g h                       · · e f · ·
//! · · · · · ·        · · · · · ·                       · · · · · ·
//! ```
//!
//! A box is what tensor parallelism leaves to a rank; a range of its elements, flattened, is what is left of it by state
//! that is sharded over replicas. As both are in row-major order, a region is an ascending list of runs of the flattened
//! whole, and what two regions share is found by going along both lists at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::Peekable;
use std::ops::Range;

use burn::tensor::TensorData;

use crate::error::{Error, Result};

/// Elements of a tensor: a box, and of the box, flattened, a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    whole: Vec<usize>,
    start: Vec<usize>,
    shape: Vec<usize>,
    flat: Range<usize>,
}

impl Region {
    /// All elements of a tensor of this shape.
    pub fn all(whole: &[usize]) -> Self {
        let numel = whole.iter().product();
        Self { whole: whole.to_vec(), start: vec![0; whole.len()], shape: whole.to_vec(), flat: 0..numel }
    }

    /// A box of a tensor, one range a dim.
    ///
    /// # Errors
    ///
    /// When it does not lie in the tensor.
    pub fn of(whole: &[usize], ranges: &[Range<usize>]) -> Result<Self> {
        let start: Vec<usize> = ranges.iter().map(|range| range.start).collect();
        let shape: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
        let numel = numel_of(&shape).unwrap_or(usize::MAX);
        Self::new(whole, start, shape, 0..numel)
    }

    /// A box that begins at `start`, of this shape; and of it, flattened, a range.
    ///
    /// # Errors
    ///
    /// When it does not lie in the tensor, or has more elements than can be counted.
    pub fn new(whole: &[usize], start: Vec<usize>, shape: Vec<usize>, flat: Range<usize>) -> Result<Self> {
        let ends = start.iter().zip(&shape).zip(whole);
        let is_inside = start.len() == whole.len() && shape.len() == whole.len();
        let fits = |((start, len), extent): ((&usize, &usize), &usize)| {
            start.checked_add(*len).is_some_and(|end| end <= *extent)
        };
        if !is_inside || !ends.clone().all(fits) {
            return Err(Error::invalid(format!(
                "a box of {shape:?} at {start:?} does not lie in a tensor of {whole:?}"
            )));
        }
        // Of the whole, too: offsets in it must be numbers.
        match (numel_of(whole), numel_of(&shape)) {
            (Some(_), Some(numel)) if flat.start <= flat.end && flat.end <= numel => {
                Ok(Self { whole: whole.to_vec(), start, shape, flat })
            }
            (Some(_), Some(numel)) => Err(Error::invalid(format!(
                "the elements {}..{} do not lie in a box of {shape:?}, which has {numel}",
                flat.start, flat.end
            ))),
            _ => Err(Error::invalid(format!("a tensor of {whole:?} has more elements than can be counted"))),
        }
    }

    /// Of the same box the elements that a range of this region's elements names.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let (start, end) = (self.flat.start + range.start, self.flat.start + range.end);
        Self { flat: start.min(self.flat.end)..end.min(self.flat.end), ..self.clone() }
    }

    /// These elements of a tensor that is there as a whole, one after the other.
    ///
    /// # Errors
    ///
    /// When the tensor of this name has another shape.
    pub(crate) fn of_whole(&self, name: &str, whole: &TensorData) -> Result<TensorData> {
        let (shape, size) = (whole.shape().to_vec(), whole.dtype().size());
        if shape != self.whole {
            return Err(Error::Parameter {
                name: name.to_string(),
                reason: format!("has the shape {shape:?}, and {:?} is asked for", self.whole),
            });
        }
        let runs = self.runs().map(|run| &whole.as_bytes()[run.start * size..run.end * size]);
        Ok(TensorData::from_bytes_vec(runs.collect::<Vec<_>>().concat(), [self.numel()], whole.dtype()))
    }

    /// How many elements.
    pub fn numel(&self) -> usize {
        self.flat.len()
    }

    /// The shape of the tensor.
    pub fn whole(&self) -> &[usize] {
        &self.whole
    }

    /// Where the box begins.
    pub fn start(&self) -> &[usize] {
        &self.start
    }

    /// The shape of the box.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements of the box.
    pub fn flat(&self) -> Range<usize> {
        self.flat.clone()
    }

    /// Whether it is all of its box.
    pub fn is_box(&self) -> bool {
        self.flat == (0..self.shape.iter().product())
    }

    /// The runs of the flattened tensor, ascending; no two touch but by chance.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        // Trailing dims that are whole belong to one run.
        let full = (0..self.whole.len()).rev().take_while(|dim| self.shape[*dim] == self.whole[*dim]).count();
        let outer = self.whole.len().saturating_sub(full + 1);
        let row: usize = self.shape[outer..].iter().product();
        let rows = if self.flat.is_empty() { 0..0 } else { self.flat.start / row..self.flat.end.div_ceil(row) };
        rows.map(move |number| {
            let of_box = number * row..(number + 1) * row;
            let start = self.offset(number, outer);
            let (from, to) = (self.flat.start.max(of_box.start), self.flat.end.min(of_box.end));
            start + (from - of_box.start)..start + (to - of_box.start)
        })
    }

    /// Where a row of the box begins in the flattened tensor: its index is counted over the dims before `outer`.
    fn offset(&self, mut row: usize, outer: usize) -> usize {
        let mut stride: usize = self.whole[outer..].iter().product();
        let inner: usize = self.whole[(outer + 1).min(self.whole.len())..].iter().product();
        let mut offset = self.start.get(outer).map_or(0, |start| start * inner);
        for dim in (0..outer).rev() {
            offset += (self.start[dim] + row % self.shape[dim]) * stride;
            row /= self.shape[dim];
            stride *= self.whole[dim];
        }
        offset
    }
}

/// Elements that two regions share, and where they are in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Where they begin among the elements of the first.
    pub first: usize,
    /// Where they begin among those of the second.
    pub second: usize,
    /// How many.
    pub len: usize,
}

/// What two regions of the same tensor share, ascending.
pub fn shared<'a>(first: &'a Region, second: &'a Region) -> impl Iterator<Item = Overlap> + 'a {
    let (mut a, mut b) = (places(first), places(second));
    std::iter::from_fn(move || {
        loop {
            let ((a_run, a_at), (b_run, b_at)) = (a.peek()?, b.peek()?);
            let (start, end) = (a_run.start.max(b_run.start), a_run.end.min(b_run.end));
            let found = Overlap {
                first: a_at + start.saturating_sub(a_run.start),
                second: b_at + start.saturating_sub(b_run.start),
                len: end.saturating_sub(start),
            };
            if a_run.end <= b_run.end {
                a.advance()
            } else {
                b.advance()
            }
            if found.len > 0 {
                return Some(found);
            }
        }
    })
}

/// The runs of a region, each with how many elements came before.
struct Places<I: Iterator<Item = Range<usize>>> {
    runs: Peekable<I>,
    before: usize,
}

fn places(region: &Region) -> Places<impl Iterator<Item = Range<usize>> + '_> {
    Places { runs: region.runs().peekable(), before: 0 }
}

impl<I: Iterator<Item = Range<usize>>> Places<I> {
    fn peek(&mut self) -> Option<(Range<usize>, usize)> {
        self.runs.peek().map(|run| (run.clone(), self.before))
    }

    fn advance(&mut self) {
        self.before += self.runs.next().map_or(0, |run| run.len());
    }
}

/// Whether regions make up a whole tensor, each element once.
///
/// # Errors
///
/// The first element that none or several of them have. The memory that this takes is that of a run each.
pub(crate) fn check_tiling(regions: &[Region], whole: &[usize]) -> Result<()> {
    let numel: usize = whole.iter().product();
    let mut all: Vec<_> = regions.iter().map(|region| region.runs()).collect();
    let mut next = BinaryHeap::new();
    let mut push = |next: &mut BinaryHeap<_>, which: usize| {
        if let Some(run) = all[which].next() {
            next.push(Reverse((run.start, run.end, which)));
        }
    };
    (0..regions.len()).for_each(|which| push(&mut next, which));
    let mut end = 0;
    while let Some(Reverse((start, stop, which))) = next.pop() {
        match start.cmp(&end) {
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Less => return Err(Error::invalid(format!("element {start} is in several slices"))),
            std::cmp::Ordering::Greater => {
                return Err(Error::invalid(format!("the elements {end}..{start} of {numel} are in no slice")));
            }
        }
        end = stop;
        push(&mut next, which);
    }
    match end == numel {
        true => Ok(()),
        false => Err(Error::invalid(format!("the elements {end}..{numel} are in no slice"))),
    }
}

/// How many elements a shape has, if that is a number.
pub(crate) fn numel_of(shape: &[usize]) -> Option<usize> {
    // The others alone must be countable, too: offsets are made of them.
    let others = shape.iter().filter(|extent| **extent > 0);
    let numel = others.copied().try_fold(1_usize, usize::checked_mul)?;
    Some(if shape.contains(&0) { 0 } else { numel })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The numbers of a region's elements in the flattened whole, one by one.
    fn elements(region: &Region) -> Vec<usize> {
        let numel: usize = region.shape.iter().product();
        let place = |index: usize| {
            let (mut rest, mut offset, mut stride) = (index, 0, 1);
            for dim in (0..region.whole.len()).rev() {
                offset += (region.start[dim] + rest % region.shape[dim]) * stride;
                rest /= region.shape[dim];
                stride *= region.whole[dim];
            }
            offset
        };
        (0..numel).map(place).collect::<Vec<_>>()[region.flat.clone()].to_vec()
    }

    fn dim() -> impl Strategy<Value = (usize, usize, usize)> {
        (1_usize..5)
            .prop_flat_map(|extent| (Just(extent), 0..extent))
            .prop_flat_map(|(extent, start)| (Just(extent), Just(start), 1..=extent - start))
    }

    fn cut(whole: &[usize], seeds: &[(usize, usize)], flat: (usize, usize)) -> Region {
        let range = |(extent, (a, b)): (&usize, &(usize, usize))| {
            let start = a % extent;
            start..start + 1 + b % (extent - start)
        };
        let ranges: Vec<Range<usize>> = whole.iter().zip(seeds).map(range).collect();
        let region = Region::of(whole, &ranges).unwrap();
        let start = flat.0 % (region.numel() + 1);
        let len = flat.1 % (region.numel() - start + 1);
        region.part(start..start + len)
    }

    proptest! {
        #[test]
        fn runs_are_the_elements(dims in prop::collection::vec(dim(), 0..4), flat in (0_usize..99, 0_usize..99)) {
            let whole: Vec<usize> = dims.iter().map(|dim| dim.0).collect();
            let ranges: Vec<Range<usize>> = dims.iter().map(|dim| dim.1..dim.1 + dim.2).collect();
            let region = Region::of(&whole, &ranges).unwrap();
            let start = flat.0 % (region.numel() + 1);
            let part = region.part(start..start + flat.1 % (region.numel() - start + 1));
            prop_assert_eq!(part.runs().flatten().collect::<Vec<_>>(), elements(&part));
        }

        #[test]
        fn what_two_share_is_what_both_have(
            whole in prop::collection::vec(1_usize..5, 0..4),
            seeds in prop::collection::vec((0_usize..99, 0_usize..99), 8),
            flats in prop::collection::vec((0_usize..99, 0_usize..99), 2),
        ) {
            let (a, b) = (cut(&whole, &seeds[..4], flats[0]), cut(&whole, &seeds[4..], flats[1]));
            let (of_a, of_b) = (elements(&a), elements(&b));
            let mut found = Vec::new();
            for Overlap { first, second, len } in shared(&a, &b) {
                prop_assert_eq!(&of_a[first..first + len], &of_b[second..second + len]);
                found.extend_from_slice(&of_a[first..first + len]);
            }
            let both: Vec<usize> = of_a.into_iter().filter(|element| of_b.contains(element)).collect();
            prop_assert_eq!(found, both);
        }
    }

    #[test]
    fn a_tiling_has_each_element_once() {
        let whole = [4, 6];
        let left = Region::of(&whole, &[0..4, 0..2]).unwrap();
        let right = Region::of(&whole, &[0..4, 2..6]).unwrap();
        let parts = [left.clone(), right.part(0..5), right.part(5..16)];
        check_tiling(&parts, &whole).unwrap();
        let message = |regions: &[Region]| check_tiling(regions, &whole).unwrap_err().to_string();
        assert_eq!(message(&[left.clone(), right.part(0..15)]), "the elements 23..24 are in no slice");
        assert_eq!(message(&[left.clone(), right.part(1..16)]), "the elements 2..3 of 24 are in no slice");
        assert_eq!(message(&[left, right.clone(), right.part(3..4)]), "element 5 is in several slices");
        assert_eq!(message(&[]), "the elements 0..24 are in no slice");
        check_tiling(&[Region::all(&[])], &[]).unwrap();
        check_tiling(&[], &[3, 0]).unwrap();
    }

    #[test]
    fn what_does_not_lie_in_the_tensor_is_refused() {
        let refused = |whole: &[usize], start: &[usize], shape: &[usize], flat| {
            Region::new(whole, start.to_vec(), shape.to_vec(), flat).unwrap_err().to_string()
        };
        assert!(refused(&[4], &[2], &[3], 0..3).contains("does not lie in a tensor of [4]"));
        assert!(refused(&[4], &[usize::MAX], &[2], 0..2).contains("does not lie"));
        assert!(refused(&[4], &[0, 0], &[4, 1], 0..4).contains("does not lie"));
        assert!(refused(&[4], &[0], &[4], 2..5).contains("which has 4"));
        assert!(refused(&[1 << 63, 4, 0], &[0, 0, 0], &[1, 1, 0], 0..0).contains("more elements than can be counted"));
        let large = usize::MAX / 2;
        assert!(refused(&[large, large], &[0, 0], &[1, 1], 0..1).contains("more elements than can be counted"));
    }
}
