//! `state.json`: what a resumed run must know, and what it must agree with.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::trainer::durable::replace;

/// The only format that was ever written.
pub(super) const FORMAT: u32 = 1;

/// Where a run stood, and how it was set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The format of the checkpoint.
    pub format: u32,
    /// How many steps were done.
    pub step: u64,
    /// How many samples were drawn: where the data goes on.
    pub position: u64,
    /// The seed of the run.
    pub seed: u64,
    /// The order in which the samples came: [`Sampler::order`](crate::data::Sampler::order).
    pub order: String,
    /// The ranks that wrote it, in words.
    pub layout: String,
    /// The configuration of the run, for the reader.
    pub config: Value,
}

impl Saved {
    /// The state of a run before its first step.
    pub fn new(seed: u64, order: String, layout: String) -> Self {
        Self { format: FORMAT, step: 0, position: 0, seed, order, layout, config: Value::Null }
    }

    /// Refuses to go on as `now`, which is set up in another way.
    ///
    /// # Errors
    ///
    /// When layout, seed or order of the samples differ: an error with both.
    pub fn check(&self, now: &Saved) -> Result<()> {
        if self.layout != now.layout {
            return Err(Error::invalid(format!(
                "the checkpoint of step {} was saved by {}, and this run has {}; resume with the layout that saved it",
                self.step, self.layout, now.layout
            )));
        }
        if self.seed != now.seed {
            return Err(Error::invalid(format!(
                "the checkpoint of step {} was saved by a run with seed {}, and this run has seed {}; resume with \
                 the same seed",
                self.step, self.seed, now.seed
            )));
        }
        if self.order != now.order {
            return Err(Error::invalid(format!(
                "the checkpoint of step {} was saved by a run that draws {}, and this run draws {}; resume with the \
                 same data and the same batches",
                self.step, self.order, now.order
            )));
        }
        Ok(())
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::file(path, error))?;
        replace(path, &text)
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).map_err(|error| Error::file(path, error))?;
        let damaged = |error| Error::file(path, format!("not the state of a checkpoint: {error}"));
        // The format first: another one has other fields.
        let value: Value = serde_json::from_slice(&text).map_err(damaged)?;
        match value.get("format").and_then(Value::as_u64) {
            Some(format) if format != u64::from(FORMAT) => {
                Err(Error::file(path, format!("a checkpoint of format {format}; this version reads format {FORMAT}")))
            }
            _ => serde_json::from_value(value).map_err(damaged),
        }
    }
}
