//! What a resumed run must know, and what it must agree with: the state `run` of a checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, Difference, differences};
use crate::error::{Error, Result};
use crate::json::json;

/// Where a run stood, and how it was set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// How many steps were done.
    pub step: u64,
    /// How many samples were drawn: where the data goes on.
    pub position: u64,
    /// The seed of the run.
    pub seed: u64,
    /// The order in which the samples came: [`Sampler::order`](crate::data::Sampler::order).
    pub order: String,
    /// The ranks that wrote it, in words. They may change.
    pub layout: String,
    /// What else must not change, by name: see [`Trainer::with_invariant`](crate::Trainer::with_invariant).
    #[serde(default)]
    pub invariants: BTreeMap<String, Value>,
    /// The configuration of the run. It may change.
    pub config: Value,
    /// What hooks keep, by name: see [`Run::keep`](crate::trainer::Run::keep).
    #[serde(default)]
    pub kept: BTreeMap<String, Value>,
}

impl RunState {
    /// The state of a run before its first step.
    pub fn new(seed: u64, order: String, layout: String) -> Self {
        let (invariants, config, kept) = (BTreeMap::new(), Value::Null, BTreeMap::new());
        Self { step: 0, position: 0, seed, order, layout, invariants, config, kept }
    }

    /// Refuses to go on as `now`, which is set up in another way.
    ///
    /// # Errors
    ///
    /// When seed, order of the samples or an invariant differ: an error with both.
    pub fn check(&self, now: &RunState) -> Result<()> {
        if self.seed != now.seed {
            return Err(Error::invalid(format!(
                "the checkpoint of step {} was saved by a run with seed {}, and this run has seed {}; resume with \
                 the same seed",
                self.step, self.seed, now.seed
            )));
        }
        // Before the order: another tokenizer makes samples of other lengths.
        self.check_invariants(now)?;
        if self.order != now.order {
            return Err(Error::invalid(format!(
                "the checkpoint of step {} was saved by a run that draws {}, and this run draws {}; resume with the \
                 same data and the same batches",
                self.step, self.order, now.order
            )));
        }
        Ok(())
    }

    /// Names all that differ: a tokenizer of another size makes another model, too.
    fn check_invariants(&self, now: &RunState) -> Result<()> {
        let mut faults = Vec::new();
        for (name, saved) in &self.invariants {
            let Some(now) = now.invariants.get(name) else {
                faults.push(format!("a certain {name}, of which this run says nothing"));
                continue;
            };
            let differences = differences(saved, now);
            if !differences.is_empty() {
                faults.push(format!("another {name}: {}", listed(&differences)));
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the checkpoint of step {} was saved with {}; resume with what it was saved with",
            self.step,
            faults.join("; and with ")
        )))
    }

    /// What the configuration of this run, `now`, says otherwise: one sentence a value.
    pub fn changes(&self, now: &RunState) -> Vec<String> {
        // A run that kept no configuration cannot tell.
        if self.config.is_null() || now.config.is_null() {
            return Vec::new();
        }
        differences(&self.config, &now.config).iter().map(ToString::to_string).collect()
    }

    /// As a checkpoint keeps it.
    pub(super) fn to_value(&self) -> Result<Value> {
        json("state of the run", self)
    }

    /// What a checkpoint keeps.
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let failed = |reason: String| Error::file(checkpoint.folder(), reason);
        let run = checkpoint.index().state.get("run").cloned();
        let run = run.ok_or_else(|| failed("it says nothing of a run; load it into an engine".into()))?;
        serde_json::from_value(run).map_err(|error| failed(format!("not the state of a run: {error}")))
    }
}

/// Differences beyond these are counted, not shown.
const SHOWN: usize = 4;

fn listed(differences: &[Difference]) -> String {
    let mut shown: Vec<String> = differences.iter().take(SHOWN).map(ToString::to_string).collect();
    if differences.len() > SHOWN {
        shown.push(format!("and {} more", differences.len() - SHOWN));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn saved(invariants: Value) -> RunState {
        let Value::Object(invariants) = invariants else { panic!("not an object") };
        let state = RunState::new(1, "in order".into(), "1 rank".into());
        RunState { step: 7, invariants: invariants.into_iter().collect(), ..state }
    }

    #[test]
    fn all_that_differs_is_named_with_both_values() {
        let before = saved(json!({"model": {"width": 8, "depth": 2}, "optimizer": "AdamW", "tokenizer": "abc"}));
        before.check(&before).unwrap();
        let now = saved(json!({"model": {"width": 9, "depth": 2}, "optimizer": "AdamW", "tokenizer": "abd"}));
        let message = before.check(&now).unwrap_err().to_string();
        assert!(message.contains("step 7 was saved with another model: `width` 8, now 9;"), "{message}");
        assert!(message.contains("and with another tokenizer: \"abc\", now \"abd\";"), "{message}");
        assert!(!message.contains("optimizer"), "{message}");
    }

    #[test]
    fn what_this_run_does_not_say_is_an_error_and_what_the_checkpoint_does_not_say_is_none() {
        let (less, more) = (saved(json!({})), saved(json!({"tokenizer": "abc"})));
        let message = more.check(&less).unwrap_err().to_string();
        assert!(message.contains("a certain tokenizer, of which this run says nothing"), "{message}");
        less.check(&more).unwrap();
    }

    #[test]
    fn many_differences_are_counted() {
        let before = saved(json!({"model": {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}}));
        let now = saved(json!({"model": {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2, "f": 2}}));
        let message = before.check(&now).unwrap_err().to_string();
        assert!(message.contains("`d` 1, now 2, and 2 more;"), "{message}");
    }
}
