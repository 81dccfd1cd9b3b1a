//! A batch of the learner's, and what of it a rank runs.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use epl_core::data::Rows;
use epl_core::data::rows::Digest;
use epl_core::{Error, Result};

/// What the mean loss of a batch weighs.
pub(crate) type Weight<I> = Arc<dyn Fn(&I) -> f64 + Send + Sync>;

/// A batch as the loader gave it, for all ranks of a process.
pub(crate) struct Whole<I> {
    batch: Mutex<I>,
    rows: usize,
    weight: f64,
    /// Whether all values tell it from others.
    in_full: bool,
    digest: OnceLock<u64>,
}

impl<I: Rows> Whole<I> {
    /// A batch, with what it weighs: as much as it has rows, if nothing else is said. It is told from others by some of its values,
    /// or `in_full`.
    ///
    /// # Errors
    ///
    /// When its parts have different numbers of rows, or it weighs nothing.
    pub fn new(batch: I, weight: Option<&Weight<I>>, in_full: bool) -> Result<Self> {
        let rows = batch.rows()?;
        let weight = weight.map_or(rows as f64, |weight| weight(&batch));
        if !(weight.is_finite() && weight > 0.0) {
            return Err(Error::invalid(format!(
                "a batch of {rows} rows weighs {weight}, and its loss is a mean over that; let the loader make batches that have \
                 something that counts, and `weighted_by` return how much"
            )));
        }
        Ok(Self { rows, weight, batch: Mutex::new(batch), in_full, digest: OnceLock::new() })
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// What tells it from other batches.
    pub fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            let mut digest = if self.in_full { Digest::in_full() } else { Digest::default() };
            self.lock().digest(&mut digest);
            digest.finish()
        })
    }

    /// Some of them, as a batch of their own.
    pub fn narrow(&self, rows: Range<usize>) -> I {
        self.lock().narrow(rows)
    }

    fn lock(&self) -> MutexGuard<'_, I> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some rows of a batch of a step.
pub(crate) struct Part<I> {
    whole: Arc<Whole<I>>,
    rows: Range<usize>,
    /// The number of the batch among those of the step, and how many they are.
    pub number: usize,
    pub batches: usize,
}

impl<I: Rows> Part<I> {
    /// All rows of the batches of a step, one after the other.
    pub fn of_step(batches: &[Arc<Whole<I>>]) -> Vec<Self> {
        let part = |(number, whole): (usize, &Arc<Whole<I>>)| Self {
            whole: whole.clone(),
            rows: 0..whole.rows,
            number,
            batches: batches.len(),
        };
        batches.iter().enumerate().map(part).collect()
    }

    /// The rows, as a batch of their own.
    pub fn batch(&self) -> I {
        self.whole.narrow(self.rows.clone())
    }

    /// How much of its batch's mean they are.
    pub fn share(&self, weight: Option<&Weight<I>>) -> f64 {
        share(&self.whole, self.rows.clone(), weight)
    }
}

/// How much of a batch's mean some of its rows are.
pub(crate) fn share<I: Rows>(whole: &Whole<I>, rows: Range<usize>, weight: Option<&Weight<I>>) -> f64 {
    match weight {
        _ if rows == (0..whole.rows) => 1.0,
        None => rows.len() as f64 / whole.weight,
        Some(weight) => weight(&whole.narrow(rows)) / whole.weight,
    }
}

impl<I: Rows> Rows for Part<I> {
    fn rows(&self) -> Result<usize> {
        Ok(self.rows.len())
    }

    fn narrow(&self, rows: Range<usize>) -> Self {
        let first = self.rows.start;
        Self { whole: self.whole.clone(), rows: first + rows.start..first + rows.end, ..*self }
    }

    fn digest(&self, digest: &mut Digest) {
        self.whole.lock().digest(digest);
    }
}
