//! What segments store for backward, from measures of two batch sizes.
//!
//! ```text
//! bytes                     x       a + b × rows through two measures
//!          ·········┌ - - -         of each kind of segment
//!     x····x
//!     2    4            16    rows
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::kind::FigureSource;
use crate::schedule::run_of;

/// Bytes as a straight line over the rows of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Bytes without a row.
    pub fixed: f64,
    /// Bytes a row.
    pub per_row: f64,
}

/// What one segment needs for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentActivations {
    /// What enters it.
    pub carry: Fit,
    /// What its forward leaves for its backward, with what enters.
    pub stored: Fit,
    /// What its collectives gave: kept where it is run again.
    pub results: Fit,
    /// What its backward holds at most beside that, the gradients of its parameters among it.
    pub working: Fit,
}

/// What each segment needs, and for how many rows that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activations {
    /// By the number of the segment; none of what another stage runs.
    pub segments: Vec<Option<SegmentActivations>>,
    /// The two numbers of rows.
    pub measured: [usize; 2],
}

/// The activations of a rank at the peak of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredActivations {
    /// Until the first backward is over; none where that is not known.
    pub first: Option<u64>,
    /// From then on, where there are several micro-batches.
    pub later: Option<u64>,
    /// How they are known.
    pub source: FigureSource,
    /// What they are, or what to do so that they are known.
    pub why: String,
}

/// Which micro-batches a stage holds at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Rows of a micro-batch.
    pub rows: usize,
    /// The segments of each part that the stage runs.
    pub parts: Vec<Range<usize>>,
    /// Micro-batches of a part between their forward and their backward, at most: until the first backward is over.
    pub first: usize,
    /// From then on.
    pub later: usize,
    /// The segments that are run again in backward.
    pub runs: Vec<Range<usize>>,
}

impl Fit {
    /// The line through two measures: rows, and bytes. Where that is below 0 without a row, as of texts that are padded to the longest
    /// one, in proportion to the larger number of rows; where more rows need less, all need as much.
    pub fn through(mut measures: [(usize, u64); 2]) -> Self {
        measures.sort_unstable();
        let [(rows, bytes), (other, more)] = measures.map(|(rows, bytes)| (rows as f64, bytes as f64));
        let per_row = (more - bytes) / (other - rows);
        match bytes - per_row * rows {
            _ if per_row < 0.0 => Self { fixed: bytes, per_row: 0.0 },
            fixed if fixed < 0.0 => Self { fixed: 0.0, per_row: more / other },
            fixed => Self { fixed, per_row },
        }
    }

    /// Bytes for so many rows.
    pub fn at(&self, rows: usize) -> f64 {
        self.fixed + self.per_row * rows as f64
    }
}

impl StoredActivations {
    /// What is not known until it is measured.
    pub fn unknown(how: impl Into<String>) -> Self {
        Self { first: None, later: None, source: FigureSource::Unknown, why: how.into() }
    }

    /// Given by whoever asks.
    pub fn formula(bytes: u64, why: impl Into<String>) -> Self {
        Self { first: Some(bytes), later: Some(bytes), source: FigureSource::Formula, why: why.into() }
    }
}

impl Activations {
    /// The bytes of a stage.
    pub fn stored(&self, flow: &Flow) -> StoredActivations {
        let Flow { rows, parts, first, later, runs } = flow;
        let of = |segment: usize, bytes: fn(&SegmentActivations) -> &Fit| {
            self.segments.get(segment).and_then(Option::as_ref).map_or(0.0, |known| bytes(known).at(*rows))
        };
        let kept = |segment: usize| match run_of(runs, segment) {
            Some(run) if run.start == segment => {
                of(segment, |known| &known.carry) + of(segment, |known| &known.results)
            }
            Some(_) => of(segment, |known| &known.results),
            None => of(segment, |known| &known.stored),
        };
        let own = || parts.iter().cloned().flatten();
        let each: f64 = own().map(kept).sum::<f64>() / parts.len().max(1) as f64;
        let largest = |bytes: &mut dyn Iterator<Item = f64>| bytes.fold(0.0, f64::max);
        let run = |run: &Range<usize>| run.clone().map(|segment| of(segment, |known| &known.stored)).sum::<f64>();
        let is_own = |run: &&Range<usize>| parts.iter().any(|part| part.contains(&run.start));
        let again = largest(&mut runs.iter().filter(is_own).map(run));
        let working = largest(&mut own().map(|segment| of(segment, |known| &known.working)));
        let run_again = runs.iter().filter(is_own).map(ExactSizeIterator::len).sum::<usize>();
        let [few, many] = self.measured;
        let with = |in_flight: usize| match in_flight {
            0 => 0,
            in_flight => (each * in_flight as f64 + again + working).max(0.0).round() as u64,
        };
        StoredActivations {
            first: Some(with(*first)),
            later: Some(with(*later)),
            source: if self.measured.contains(rows) { FigureSource::Measured } else { FigureSource::Extrapolated },
            why: format!(
                "{first} micro-batches of {rows} rows, later {later}, measured with {few} and {many}; {} segments stored, {run_again} \
                 run again, and one backward",
                own().count() - run_again
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three segments: 100 bytes a row each, 10 of them enter; a backward needs 50 more.
    fn activations() -> Activations {
        let fit = |per_row| Fit { fixed: 8.0, per_row };
        let segment =
            SegmentActivations { carry: fit(10.0), stored: fit(100.0), results: Fit::default(), working: fit(50.0) };
        Activations { segments: vec![Some(segment); 3], measured: [2, 4] }
    }

    fn flow(first: usize, runs: &[Range<usize>]) -> Flow {
        Flow { rows: 10, parts: vec![0..3], first, later: 0, runs: runs.to_vec() }
    }

    #[test]
    fn a_line_goes_through_both_measures() {
        let fit = Fit::through([(2, 108), (4, 208)]);
        assert_eq!((fit.fixed, fit.per_row), (8.0, 50.0));
        assert_eq!([fit.at(2), fit.at(4), fit.at(16)], [108.0, 208.0, 808.0]);
    }

    #[test]
    fn no_number_of_rows_needs_less_than_nothing() {
        // Longer texts among more rows: a straight line is at -40 without a row.
        let ragged = Fit::through([(4, 200), (2, 80)]);
        assert_eq!([1, 2, 4, 8].map(|rows| ragged.at(rows)), [50.0, 100.0, 200.0, 400.0]);
        assert_eq!(Fit::through([(2, 100), (4, 60)]), Fit { fixed: 100.0, per_row: 0.0 });
    }

    #[test]
    fn what_is_in_flight_is_stored_and_one_backward_runs() {
        let stored = |flow: &Flow| activations().stored(flow).first.unwrap();
        assert_eq!(stored(&flow(1, &[])), 3 * 1008 + 508);
        assert_eq!(stored(&flow(4, &[])), 4 * 3 * 1008 + 508);
        // Only what enters is kept, and the segments of one run are stored while it goes back.
        assert_eq!(stored(&flow(4, &[0..1, 1..2])), 4 * (2 * 108 + 1008) + 1008 + 508);
        assert_eq!(stored(&flow(1, &[0..2])), 108 + 1008 + 2 * 1008 + 508);
        // Two parts of one stage: each micro-batch of a part is half of what the stage runs.
        let chunks = Flow { rows: 10, parts: vec![0..1, 2..3], first: 3, later: 1, runs: Vec::new() };
        assert_eq!(stored(&chunks), 3 * 1008 + 508);
        assert_eq!(activations().stored(&chunks).later, Some(1008 + 508));
        assert_eq!(activations().stored(&flow(2, &[])).later, Some(0));
    }

    #[test]
    fn the_source_says_whether_these_rows_were_measured() {
        let source = |rows| activations().stored(&Flow { rows, ..flow(1, &[]) }).source;
        assert_eq!(
            [source(2), source(4), source(3)],
            [FigureSource::Measured, FigureSource::Measured, FigureSource::Extrapolated]
        );
    }
}
