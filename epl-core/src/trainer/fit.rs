//! The trainer, which opens a run.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::checkpoint::{Checkpoints, Saved, Which};
use super::curve::Curve;
use super::evaluate::{self, Evaluator};
use super::metrics_log::MetricsLog;
use super::observer::{Observer, Summary};
use super::progress::Progress;
use super::run::Run;
use super::settings::TrainerConfig;
use super::stop::Stop;
use crate::data::{Sampler, TrainData, ValidData};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::json::json;
use crate::schedule::LearningRate;
use crate::segment::Segmented;

/// Runs an [`Engine`] for many steps.
///
/// ```
/// # use epl_core::data::{TrainData, ValidData};
/// # use epl_core::{Engine, LearningRate, Result, Segmented, Trainer, TrainerConfig};
/// # fn bleu<M: Segmented>(engine: &Engine<M>) -> Result<f64> { Ok(0.0) }
/// # fn example<M: Segmented>(
/// #     engine: Engine<M>, schedule: LearningRate, data: TrainData<u8, M::Batch>, valid: ValidData<u8, M::Batch>,
/// # ) -> Result<()> where M::Batch: 'static {
/// let config = TrainerConfig::new(1000).with_eval_every(Some(100)).with_out(Some("out".into()));
/// let trained = Trainer::new(engine, config, schedule)
///     .with_valid(valid)
///     .with_evaluation(|engine| Ok(vec![("bleu".to_string(), bleu(engine)?)]))
///     .fit(&data)?;
/// println!("loss {:?}", trained.summary.evaluation);
/// # Ok(())
/// # }
/// ```
///
/// Every rank builds the same trainer. What is shown and written comes from the first rank of the world.
pub struct Trainer<'a, M: Segmented> {
    engine: Engine<M>,
    config: TrainerConfig,
    schedule: LearningRate,
    evaluators: Vec<Evaluator<'a, M>>,
    observers: Vec<Box<dyn Observer + 'a>>,
    stop: Stop,
    invariants: BTreeMap<String, Value>,
    run_config: Value,
    quiet: bool,
}

/// What [`Trainer::fit`] leaves.
pub struct Trained<M: Segmented> {
    /// The engine after the last step.
    pub engine: Engine<M>,
    /// How the run ended.
    pub summary: Summary,
    saved: Saved,
    checkpoints: Option<Checkpoints>,
}

impl<'a, M: Segmented> Trainer<'a, M> {
    /// A trainer of an engine that has made no step yet.
    ///
    /// Its checkpoints keep the optimizer and its settings: a resume with others is refused. The learning rate is none
    /// of these: it is the schedule's, and may change.
    pub fn new(engine: Engine<M>, config: TrainerConfig, schedule: LearningRate) -> Self {
        let (name, settings) = engine.optimizer();
        // Two invariants, so that another optimizer is not told by the settings of both.
        let invariants = [("optimizer", name.into()), ("optimizer's settings", settings.clone())];
        Self {
            engine,
            config,
            schedule,
            evaluators: Vec::new(),
            observers: Vec::new(),
            stop: Stop::new(),
            invariants: invariants.map(|(name, value)| (name.to_string(), value)).into(),
            run_config: Value::Null,
            quiet: false,
        }
    }

    /// Evaluates the loss on other data, as `valid_loss`.
    #[must_use]
    pub fn with_valid<I: 'static>(mut self, data: ValidData<I, M::Batch>) -> Self
    where
        M::Batch: 'static,
    {
        self.evaluators.push(evaluate::loss_on(data));
        self
    }

    /// Evaluates in a way of one's own. All ranks call it together, so that it may use collectives.
    ///
    /// What the first rank of the world returns is shown, written, and decides which checkpoint is the best; the
    /// other ranks may return nothing.
    #[must_use]
    pub fn with_evaluation(mut self, evaluation: impl FnMut(&Engine<M>) -> Result<Vec<(String, f64)>> + 'a) -> Self {
        self.evaluators.push(Box::new(evaluation));
        self
    }

    /// Adds an observer, after those that were added before and after the trainer's own.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer + 'a) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// A handle that ends the run.
    #[must_use]
    pub fn with_stop(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// The resolved configuration of the run, kept in its checkpoints. A run that resumes with another one shows
    /// what has changed: see [`Begin::changes`](super::Begin::changes).
    ///
    /// # Errors
    ///
    /// When it is nothing that JSON can hold.
    pub fn with_run_config(mut self, config: &impl Serialize) -> Result<Self> {
        self.run_config = json("configuration of the run", config)?;
        Ok(self)
    }

    /// What else a checkpoint depends on, such as the model or the tokenizer: a resume with another one is refused.
    ///
    /// # Errors
    ///
    /// When it is nothing that JSON can hold.
    pub fn with_invariant(mut self, name: &str, value: &impl Serialize) -> Result<Self> {
        self.invariants.insert(name.to_string(), json(name, value)?);
        Ok(self)
    }

    /// Shows no progress.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Trains until the last step, or until the run is asked to stop. Collective.
    ///
    /// # Errors
    ///
    /// Before the first step: when the settings contradict themselves, the engine has already made steps, `out`
    /// holds another run, or the checkpoint to resume from is missing, damaged or of another layout, seed, data or
    /// invariant.
    /// Later: when data, a step, an evaluation or a file fails.
    pub fn fit<I: 'static>(mut self, data: &TrainData<I, M::Batch>) -> Result<Trained<M>>
    where
        M::Batch: 'static,
    {
        self.config.check(!self.evaluators.is_empty())?;
        if self.engine.steps() > 0 {
            return Err(Error::invalid(format!(
                "the engine has already made {} steps; a run begins with a new engine, or resumes from a checkpoint",
                self.engine.steps()
            )));
        }
        let now = self.state(data.sampler());
        let (saved, checkpoints) = match self.config.out.clone() {
            Some(out) => self.open(&out, &now)?,
            None => (now.clone(), None),
        };
        let changes = saved.changes(&now);
        // From here on it is how this run is set up that is saved.
        let saved = Saved { step: saved.step, position: saved.position, ..now.clone() };
        let best = match (&checkpoints, &self.config.keep_best) {
            // A new run with a folder of its own has no best yet.
            (Some(checkpoints), Some(best)) if saved.step > 0 => checkpoints.best_value(best)?,
            _ => None,
        };
        let mut observers = self.own_observers();
        observers.append(&mut self.observers);
        let run = Run {
            engine: &mut self.engine,
            config: &self.config,
            schedule: &self.schedule,
            evaluators: &mut self.evaluators,
            observers: &mut observers,
            stop: &self.stop,
            checkpoints: checkpoints.as_ref().filter(|_| self.config.save),
            saved,
            changes,
            best,
        };
        let summary = run.all(data)?;
        Ok(Trained { engine: self.engine, summary, saved: now, checkpoints })
    }

    /// How this run is set up.
    fn state(&self, sampler: &dyn Sampler) -> Saved {
        let context = self.engine.context();
        // The first line tells the sizes of all axes; the others draw them.
        let layout = context.mesh().to_string().lines().next().unwrap_or_default().to_string();
        Saved {
            invariants: self.invariants.clone(),
            config: self.run_config.clone(),
            ..Saved::new(context.seed(), sampler.order(), layout)
        }
    }

    /// Opens the folder of the run: what was saved last, and its checkpoints. Collective.
    fn open(&mut self, out: &Path, now: &Saved) -> Result<(Saved, Option<Checkpoints>)> {
        let checkpoints = Checkpoints::new(out, self.config.keep_last);
        let world = self.engine.context().world().clone();
        if self.config.resume {
            let engine = &mut self.engine;
            let saved =
                checkpoints.load(Which::Latest, &world, now, |folder, saved| engine.load_rank(folder, saved.step))?;
            return Ok((saved, Some(checkpoints)));
        }
        if world.rank() == 0 {
            std::fs::create_dir_all(out).map_err(|error| Error::file(out, error))?;
            match checkpoints.steps()?.last() {
                Some(_) if self.config.replace => checkpoints.clear()?,
                Some(step) => {
                    return Err(Error::file(
                        out,
                        format!(
                            "the folder holds a run that was saved after step {step}; resume it, choose another \
                             folder, or allow it to be replaced"
                        ),
                    ));
                }
                None => {}
            }
        }
        world.barrier()?;
        Ok((now.clone(), Some(checkpoints)))
    }

    /// What shows and writes the run, on the first rank of the world.
    fn own_observers(&self) -> Vec<Box<dyn Observer + 'a>> {
        let mut observers: Vec<Box<dyn Observer + 'a>> = Vec::new();
        if self.engine.context().world().rank() != 0 {
            return observers;
        }
        if let Some(out) = &self.config.out {
            // The log first: a resumed curve reads it once it is cut.
            let metrics = out.join("metrics.jsonl");
            observers.push(Box::new(MetricsLog::new(&metrics)));
            observers.push(Box::new(Curve::new(out.join("loss.svg")).with_history(metrics)));
        }
        if !self.quiet {
            observers.push(Box::new(Progress::new(self.config.log_every)));
        }
        observers
    }
}

impl<M: Segmented> Trained<M> {
    /// Loads a checkpoint of the run into the engine, such as the best. Collective.
    ///
    /// # Errors
    ///
    /// When the run has no folder, or no such checkpoint.
    pub fn load(&mut self, which: Which) -> Result<()> {
        let Some(checkpoints) = &self.checkpoints else {
            return Err(Error::invalid("the run wrote no checkpoints; give it a folder `out`"));
        };
        let world = self.engine.context().world().clone();
        let engine = &mut self.engine;
        checkpoints.load(which, &world, &self.saved, |folder, saved| engine.load_rank(folder, saved.step))?;
        Ok(())
    }
}
