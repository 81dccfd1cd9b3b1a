//! Burn's loggers of metrics, as a hook of EPL's trainer.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use burn_train::logger::MetricLogger;
use burn_train::metric::store::{EpochSummary, MetricsUpdate, NumericMetricUpdate, Split};
use burn_train::metric::{MetricAttributes, MetricDefinition, MetricEntry, MetricId, NumericEntry, SerializedEntry};
use epl_core::trainer::{Evaluation, Hook, Run, StepRecord};
use epl_core::{Error, Model, Result};

/// The number of a step, beside its numbers.
const STEP: &str = "step";

/// Hands each step's numbers and what evaluations find to a logger of Burn's, such as
/// [`FileMetricLogger`](burn_train::logger::FileMetricLogger), whose files Burn's own readers read, or one of one's own. A hook of
/// [`Trainer`](epl_core::Trainer), which logs on the first rank.
///
/// ```
/// use burn_train::logger::FileMetricLogger;
/// use epl_core::{Model, Trainer};
/// use epl_train::BurnLogger;
///
/// fn logged<M: Model>(trainer: Trainer<'_, M>) -> Trainer<'_, M> {
///     trainer.with_hook(BurnLogger::new(FileMetricLogger::new("out/burn"), 100)) // epochs of 100 steps
/// }
/// ```
///
/// | split | name | value |
/// |---|---|---|
/// | training | `loss`, `lr`, `terms.NAME`, … | as in [`StepRecord::scalars`], a `.` for each `/`, as names are those of files |
/// | validation | `valid_loss`, … | what an evaluation found |
/// | both | `step` | the number of the step, which Burn's logs have none of |
///
/// Burn's logs are by epochs, from 1, and a trainer has steps: an epoch is so many of them, and the evaluations behind these. A run
/// that is resumed in the middle of one goes on in it, where the logger can read what it has of it: that is logged again, so a
/// logger that can be read must begin an epoch anew where it is made anew, as that of files does. One that appends has it twice. Where a
/// name is not logged in every step, such an epoch may have values of it twice.
///
/// Burn's loggers panic where they cannot write. That is told as a warning, nothing more is logged, and training goes on.
pub struct BurnLogger<L: MetricLogger> {
    /// None: it is closed, or has failed.
    logger: Option<L>,
    epoch_steps: u64,
    /// After which step a resumed run has begun.
    resumed: Option<u64>,
    /// The last epoch of which something was logged.
    epoch: Option<usize>,
    defined: BTreeSet<String>,
    /// What was logged of the epoch in which a resumed run has begun, in validation and in training.
    begun: BTreeSet<(bool, String)>,
    /// How many steps such an epoch had before, in training and in validation.
    before: [usize; 2],
}

type Scalars = Vec<(String, f64)>;

impl<L: MetricLogger> BurnLogger<L> {
    /// A hook that logs epochs of so many steps, at least one.
    pub fn new(logger: L, epoch_steps: u64) -> Self {
        Self {
            logger: Some(logger),
            epoch_steps,
            resumed: None,
            epoch: None,
            defined: BTreeSet::new(),
            begun: BTreeSet::new(),
            before: [0; 2],
        }
    }

    /// The epoch of a step, of which 1 is the first; what is found before it belongs to the first, too.
    fn epoch(&self, step: u64) -> usize {
        (step.saturating_sub(1) / self.epoch_steps + 1) as usize
    }

    /// Logs numbers of a step.
    fn log(&mut self, step: u64, split: Split, scalars: impl IntoIterator<Item = (String, f64)>) -> Result<()> {
        let scalars = scalars.into_iter().map(|(name, value)| (name.replace(['/', '\\'], "."), value));
        let scalars: Scalars = [(STEP.to_string(), step as f64)].into_iter().chain(scalars).collect();
        let epoch = self.epoch(step);
        self.end_epoch(Some(epoch))?;
        let goes_on = self.resumed.is_some_and(|done| self.epoch(done) == epoch);
        let mut broken = Vec::new();
        for (name, _) in &scalars {
            if self.defined.insert(name.clone()) {
                let definition = definition(name);
                self.call(|logger| logger.log_metric_definition(definition))?;
            }
            if goes_on && self.begun.insert((split == Split::Valid, name.clone())) {
                broken.extend(self.log_again(name, (step, epoch, &split))?);
            }
        }
        self.call(|logger| logger.log(update(&scalars), epoch, &split))?;
        match broken.is_empty() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "Burn's logger of metrics cannot read what it had of epoch {epoch}, and if it begins an epoch anew, as that of files does, that \
                 is gone: {}",
                broken.join(", ")
            ))),
        }
    }

    /// Logs again what a name had in an epoch before a step, as a logger of files begins that of an epoch anew; why not, if it cannot
    /// be read.
    fn log_again(&mut self, name: &str, (step, epoch, split): (u64, usize, &Split)) -> Result<Option<String>> {
        let mut read = Ok(Vec::new());
        self.call(|logger| read = logger.read_numeric(name, epoch, split))?;
        let before = &mut self.before[usize::from(*split == Split::Valid)];
        let mut values: Vec<f64> = match read {
            Ok(entries) => entries.iter().map(NumericEntry::current).collect(),
            Err(reason) => {
                // Without the steps it is not known which numbers are made again: better twice than not at all.
                *before = if name == STEP { usize::MAX } else { *before };
                return Ok(Some(format!("`{name}` ({reason})")));
            }
        };
        if name == STEP {
            *before = values.iter().take_while(|logged| **logged < step as f64).count();
        }
        values.truncate(*before);
        self.call(|logger| {
            values.iter().for_each(|value| logger.log(update(&[(name.to_string(), *value)]), epoch, split))
        })?;
        Ok(None)
    }

    /// Tells of the end of the epoch under way, if the next one is another.
    fn end_epoch(&mut self, next: Option<usize>) -> Result<()> {
        match mem::replace(&mut self.epoch, next) {
            Some(epoch) if next != Some(epoch) => self.call(|logger| {
                for split in [Split::Train, Split::Valid] {
                    logger.log_epoch_summary(EpochSummary::new(epoch, split));
                }
            }),
            _ => Ok(()),
        }
    }

    /// Ends what is under way, and waits until all is written.
    fn close(&mut self) -> Result<()> {
        self.end_epoch(None)?;
        let logger = self.logger.take();
        epl_comm::catch(|| drop(logger)).map_err(failed)
    }

    /// Calls the logger, if it has not failed.
    fn call(&mut self, f: impl FnOnce(&mut L)) -> Result<()> {
        let Some(logger) = &mut self.logger else { return Ok(()) };
        epl_comm::catch(|| f(logger)).map_err(|panic| {
            // One that waits for its threads when it is dropped panics again, as they are gone.
            mem::forget(self.logger.take());
            failed(panic)
        })
    }
}

fn failed(panic: epl_comm::Error) -> Error {
    Error::invalid(format!("Burn's logger of metrics has failed, and nothing more is logged to it: {panic}"))
}

fn definition(name: &str) -> MetricDefinition {
    let name = Arc::new(name.to_string());
    MetricDefinition {
        metric_id: MetricId::new(name.clone()),
        name,
        description: None,
        // Which values are good ones is not known.
        attributes: MetricAttributes::None,
    }
}

fn update(scalars: &[(String, f64)]) -> MetricsUpdate {
    let numeric = |(name, value): &(String, f64)| {
        let entry = NumericEntry::Value(*value);
        let serialized = SerializedEntry::new(value.to_string(), entry.serialize());
        let id = MetricId::new(Arc::new(name.clone()));
        NumericMetricUpdate::new(MetricEntry::new(id, serialized), Some(entry), None)
    };
    MetricsUpdate::new(Vec::new(), scalars.iter().map(numeric).collect())
}

impl<M: Model, L: MetricLogger> Hook<M> for BurnLogger<L> {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        if self.epoch_steps == 0 {
            return Err(Error::invalid(
                "Burn's logs are by epochs, and `BurnLogger` was given 0 steps for each; give it at least 1",
            ));
        }
        self.resumed = Some(run.begun_at()).filter(|done| *done > 0);
        if !run.is_first_rank() {
            self.logger = None;
        }
        Ok(())
    }

    fn after_step(&mut self, run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        run.forgive(self.log(record.step, Split::Train, record.scalars()));
        Ok(())
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        run.forgive(self.log(evaluation.step, Split::Valid, evaluation.values.iter().cloned()));
        Ok(())
    }

    fn after_run(&mut self, run: &mut Run<M>) -> Result<()> {
        run.forgive(self.close());
        Ok(())
    }
}

impl<L: MetricLogger> Drop for BurnLogger<L> {
    fn drop(&mut self) {
        // The run has failed, or was never made; whoever failed has told.
        let _ = self.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use burn_train::logger::{FileMetricLogger, MetricLogger};
    use burn_train::metric::NumericEntry;
    use burn_train::metric::store::Split;
    use epl_core::Result;

    use super::BurnLogger;

    /// What is found behind a step, by a run that was resumed, or by one that was not.
    fn found(folder: &std::path::Path, resumed: Option<u64>, steps: &[(u64, &[(&str, f64)])]) -> Result<()> {
        let mut hook = BurnLogger::new(FileMetricLogger::new(folder), 8);
        hook.resumed = resumed;
        let told = steps.iter().map(|(step, scalars)| {
            let scalars = scalars.iter().map(|(name, value)| ((*name).to_string(), *value));
            hook.log(*step, Split::Valid, scalars)
        });
        told.collect::<Vec<_>>().into_iter().collect()
    }

    #[test]
    fn what_is_not_found_behind_every_step_is_kept_over_a_resume() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| {
            let entries = FileMetricLogger::new(folder.path()).read_numeric(name, 1, &Split::Valid).unwrap();
            entries.iter().map(NumericEntry::current).collect::<Vec<_>>()
        };
        found(folder.path(), None, &[(2, &[("loss", 3.0), ("bleu", 0.1)])]).unwrap();
        found(folder.path(), Some(2), &[(4, &[("loss", 2.0)]), (6, &[("loss", 1.0), ("bleu", 0.3)])]).unwrap();
        assert_eq!([read("step"), read("loss"), read("bleu")], [vec![2., 4., 6.], vec![3., 2., 1.], vec![0.1, 0.3]]);
        // A process was killed in the middle of a line.
        std::fs::write(folder.path().join("valid/epoch-1/loss.log"), "3\nv,").unwrap();
        let told = found(folder.path(), Some(2), &[(4, &[("loss", 2.0)])]).unwrap_err().to_string();
        assert!(told.contains("cannot read what it had of epoch 1") && told.contains("`loss`"), "{told}");
        assert_eq!([read("step"), read("loss")], [vec![2., 4.], vec![2.]]);
        std::fs::write(folder.path().join("valid/epoch-1/step.log"), "2\nv,").unwrap();
        let told = found(folder.path(), Some(4), &[(6, &[("loss", 1.0)])]).unwrap_err().to_string();
        assert!(told.contains("`step`"), "{told}");
        assert_eq!([read("step"), read("loss")], [vec![6.], vec![2., 1.]]);
    }
}
