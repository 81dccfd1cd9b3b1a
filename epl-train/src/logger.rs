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
/// logger that can be read must begin an epoch anew where it is made anew, as that of files does. One that appends has it twice.
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
    /// In which splits something was logged.
    begun: Vec<Split>,
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
            begun: Vec::new(),
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
        for (name, _) in &scalars {
            if self.defined.insert(name.clone()) {
                let definition = definition(name);
                self.call(|logger| logger.log_metric_definition(definition))?;
            }
        }
        if !self.begun.contains(&split) {
            self.begun.push(split.clone());
            if self.resumed.is_some_and(|done| self.epoch(done) == epoch) {
                self.call(|logger| log_again(logger, (step, epoch, &split), &scalars))?;
            }
        }
        self.call(|logger| logger.log(update(&scalars), epoch, &split))
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

/// Logs again what was logged of an epoch before a step: a logger of files begins those of an epoch anew.
fn log_again(logger: &mut impl MetricLogger, (step, epoch, split): (u64, usize, &Split), scalars: &[(String, f64)]) {
    let mut read = |name: &str| -> Vec<f64> {
        let entries = logger.read_numeric(name, epoch, split).unwrap_or_default();
        entries.iter().map(NumericEntry::current).collect()
    };
    let before = read(STEP).iter().take_while(|logged| **logged < step as f64).count();
    let columns: Vec<(&String, Vec<f64>)> = scalars.iter().map(|(name, _)| (name, read(name))).collect();
    for row in 0..before {
        let of_row = |(name, values): &(&String, Vec<f64>)| Some(((*name).clone(), *values.get(row)?));
        logger.log(update(&columns.iter().filter_map(of_row).collect::<Scalars>()), epoch, split);
    }
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
