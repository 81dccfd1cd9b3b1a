//! The trainer, which opens a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::checkpoint::{CheckpointId, Checkpoints, RunState};
use super::cycle::Cycle;
use super::hook::Hook;
use super::hooks::{
    CheckReplicas, Curve, EvaluateEvery, EvaluateWith, KeepBest, MetricsLog, OpenFolder, Progress, SaveEvery,
    StopOnRequest, TensorBoard, ValidLoss,
};
use super::interruption::Interruption;
use super::lock::FolderLock;
use super::record::Summary;
use super::run::Run;
use super::settings::TrainerConfig;
use super::stop::StopHandle;
use crate::checkpoint::durable::{Disk, FileSystem};
use crate::config::{Config, ConfigError, ResumeMode};
use crate::data::{Sampler, TrainData, ValidData};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::evaluate::{Evaluator, Values};
use crate::json::json;
use crate::launch::Epl;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::trainer::learning_rate::{LearningRate, LrSchedule};

/// Runs an [`Engine`] for many steps.
///
/// ```
/// # use epl_core::data::{TrainData, ValidData};
/// # use epl_core::{Engine, LrSchedule, Result, Model, Trainer, TrainerConfig};
/// # fn bleu<M: Model>(engine: &Engine<M>) -> Result<f64> { Ok(0.0) }
/// # fn example<M: Model>(
/// #     engine: Engine<M>, schedule: LrSchedule, data: TrainData<u8, M::Batch>, valid: ValidData<u8, M::Batch>,
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
///
/// A run has its folder for itself, until its [`Trained`] is dropped: see [`lock`](super::lock).
///
/// **Signals.** A run that saves checkpoints ends at a SIGINT (Ctrl-C) or SIGTERM to any of its processes after the step
/// under way, saved; then the process ends with 128 + the signal: 130 or 143. What follows [`fit`](Self::fit) in the
/// program is not done, nor is a trace written. A second signal ends the process at once, with the same code. Before and after a run, and in one
/// that saves nothing, signals do what they do without. So they do in a program that handles or ignores them by itself
/// before its first run; and [`with_stop`](Self::with_stop) leaves them to the program, whenever it says so.
///
/// What it does beside the steps is done by [`Hook`]s, which it makes from its settings: see [`hooks`](super::hooks).
pub struct Trainer<'a, M: Model> {
    engine: Engine<M>,
    config: TrainerConfig,
    schedule: Box<dyn LearningRate + 'a>,
    /// Those that measure.
    evaluators: Hooks<'a, M>,
    /// Those of the user.
    hooks: Hooks<'a, M>,
    disk: Arc<dyn Disk>,
    /// None: signals save.
    stop: Option<StopHandle>,
    invariants: BTreeMap<String, Value>,
    run_config: Value,
    /// Whether the configuration asks for files to be divided.
    slices_files: bool,
    quiet: bool,
    /// An option of the learning rate that the configuration gives.
    said_rate: Option<ConfigError>,
    /// Whether the program gave another one.
    has_own_rate: bool,
}

type Hooks<'a, M> = Vec<Box<dyn Hook<M> + 'a>>;

/// What [`Trainer::fit`] leaves. The run has its folder for itself until this is dropped: before another run of this process
/// in the same folder, drop this one.
pub struct Trained<M: Model> {
    /// The engine after the last step.
    pub engine: Engine<M>,
    /// How the run ended.
    pub summary: Summary,
    saved: RunState,
    checkpoints: Option<Checkpoints>,
    _lock: Option<FolderLock>,
}

impl<'a, M: Model> Trainer<'a, M> {
    /// Builds a model and makes its trainer, all as the configuration says: the shortest way. Collective.
    ///
    /// ```
    /// # use burn::{nn::Linear, optim::AdamWConfig, tensor::Tensor};
    /// # use epl_core::{Epl, Place, Result, Trainer, WithLoss, data::TrainData};
    /// # type Net = WithLoss<Linear, Tensor<2>>;
    /// # fn example(epl: Epl, net: impl Fn(&Place) -> Net, data: TrainData<u8, Tensor<2>>) -> Result<()> {
    /// Trainer::build(&epl, |at| net(at), &AdamWConfig::new())?.fit(&data)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Engine::build`] and [`from_config`](Self::from_config).
    pub fn build<O: OptimizerConfig>(epl: &Epl, model: impl FnMut(&Place) -> M, optimizer: &O) -> Result<Self> {
        Self::from_config(Engine::build(epl, model, optimizer)?, epl.config())
    }

    /// [`new`](Self::new), with the steps, the micro-batches and the learning rate that the configuration says. The
    /// run's checkpoints keep it.
    ///
    /// # Errors
    ///
    /// As [`TrainerConfig::from_config`], [`LrSchedule::from_config`] and [`with_run_config`](Self::with_run_config).
    pub fn from_config(engine: Engine<M>, config: &Config) -> Result<Self> {
        let settings = TrainerConfig::from_config(config, engine.context().replicas())?;
        let trainer = Self::new(engine, settings, LrSchedule::from_config(&config.schedule)?);
        let mut kept = config.clone();
        // A folder may be moved, and a run that goes on is the same run.
        (kept.train.out, kept.train.resume, kept.train.resume_step) = (String::new(), ResumeMode::Never, None);
        Self { slices_files: config.io.slicing, said_rate: config.said_rate(), ..trainer }.with_run_config(&kept)
    }

    /// A trainer of an engine that has made no step yet. The rate may be any function of the step: an
    /// [`LrSchedule`], a closure, a scheduler of Burn ([`BurnLrSchedule`](super::learning_rate::BurnLrSchedule)).
    ///
    /// Its checkpoints keep the optimizer and its settings: a resume with others is refused. The learning rate is none
    /// of these: it is the schedule's, and may change.
    pub fn new(engine: Engine<M>, config: TrainerConfig, schedule: impl LearningRate + 'a) -> Self {
        let (name, settings) = engine.optimizer();
        // Two invariants, so that another optimizer is not told by the settings of both.
        let invariants = [("optimizer", name.into()), ("optimizer's settings", settings.clone())];
        Self {
            engine,
            config,
            schedule: Box::new(schedule),
            evaluators: Vec::new(),
            hooks: Vec::new(),
            disk: Arc::new(FileSystem),
            stop: None,
            invariants: invariants.map(|(name, value)| (name.to_string(), value)).into(),
            run_config: Value::Null,
            slices_files: false,
            quiet: false,
            said_rate: None,
            has_own_rate: false,
        }
    }

    /// Takes another learning rate than the configuration's, whose `schedule.steps` still says how long to train where
    /// `train.steps` does not. [`fit`](Self::fit) refuses other options `schedule.*` that are given: they would be without effect.
    #[must_use]
    pub fn with_learning_rate(mut self, schedule: impl LearningRate + 'a) -> Self {
        self.schedule = Box::new(schedule);
        self.has_own_rate = true;
        self
    }

    /// Changes its settings, such as the folder that it writes to.
    #[must_use]
    pub fn with_settings(mut self, change: impl FnOnce(TrainerConfig) -> TrainerConfig) -> Self {
        self.config = change(self.config);
        self
    }

    /// Evaluates the loss on other data, as `valid_loss`.
    #[must_use]
    pub fn with_valid<I: 'static>(mut self, data: ValidData<I, M::Batch>) -> Self
    where
        M::Batch: 'static,
    {
        self.evaluators.push(Box::new(ValidLoss::new(data)));
        self
    }

    /// Evaluates measures over a validation set, such as [`Accuracy`](crate::evaluate::Accuracy).
    #[must_use]
    pub fn with_evaluator<O: 'a>(mut self, evaluator: Evaluator<'a, M, O>) -> Self
    where
        M: 'a,
    {
        self.evaluators.push(Box::new(evaluator));
        self
    }

    /// Evaluates in a way of one's own. All ranks call it together, so that it may use collectives.
    ///
    /// What the first rank of the world returns is shown, written, and decides which checkpoint is the best; the
    /// other ranks may return nothing.
    #[must_use]
    pub fn with_evaluation(mut self, evaluation: impl FnMut(&Engine<M>) -> Result<Values> + 'a) -> Self
    where
        M: 'a,
    {
        self.evaluators.push(Box::new(EvaluateWith::new(evaluation)));
        self
    }

    /// Adds a hook, after those that were added before and after the trainer's own.
    #[must_use]
    pub fn with_hook(mut self, hook: impl Hook<M> + 'a) -> Self {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Writes checkpoints to another disk than the file system, such as one that fails, in a test.
    #[must_use]
    pub fn with_disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = disk;
        self
    }

    /// A handle that ends the run. Signals are then the program's: what [`StopHandle::on_signals`] heeds, what handlers of its
    /// own do, or, with [`StopHandle::new`], what the system does.
    #[must_use]
    pub fn with_stop(mut self, stop: StopHandle) -> Self {
        self.stop = Some(stop);
        self
    }

    /// The resolved configuration of the run, kept in its checkpoints. A run that resumes with another one shows
    /// what has changed: see [`Run::changes`].
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

    /// Trains until the last step, the end of the data, or until the run is asked to stop. Collective.
    ///
    /// # Errors
    ///
    /// Before anything is written: [`Error::InUse`], when another run is under way in `out`, or the [`Trained`] of an earlier
    /// one of this process is not dropped yet. Before the first step: when the settings contradict themselves, `io.slicing`
    /// is set and the data is not of files that are divided, the engine has already made steps, `out` holds another run, or the
    /// checkpoint to resume from is missing, damaged or of another layout, seed, data or invariant. Later: when data, a step, an evaluation or a file fails.
    pub fn fit<I: 'static>(mut self, data: &TrainData<I, M::Batch>) -> Result<Trained<M>>
    where
        M::Batch: 'static,
    {
        self.config.check(!self.evaluators.is_empty())?;
        self.said_rate.take().filter(|_| self.has_own_rate).map_or(Ok(()), Err)?;
        if self.engine.steps() > 0 {
            return Err(Error::invalid(format!(
                "the engine has already made {} steps; a run begins with a new engine, or resumes from a checkpoint",
                self.engine.steps()
            )));
        }
        if self.slices_files && !data.sampler().divides_files() {
            return Err(Error::invalid(
                "io.slicing = true divides input files, and the data of this run is not read from a list of them; make it \
                 of `SlicedFiles` and a `FileSampler`, or leave io.slicing out",
            ));
        }
        let saved = self.state(data.sampler());
        // Before what may still write when it is dropped.
        let world = self.engine.context().world().clone();
        let lock = self.config.out.as_ref().map(|out| FolderLock::take(out, self.config.resume, &world));
        let mut lock = lock.transpose()?;
        let saves = self.config.out.is_some() && self.config.save;
        let interruption = (saves && self.stop.is_none()).then(Interruption::begin).transpose()?;
        let stop = interruption.as_ref().map(Interruption::stop).or(self.stop.take()).unwrap_or_default();
        let checkpoints = self.config.out.as_ref();
        let checkpoints = checkpoints.map(|out| Checkpoints::on(self.disk.clone(), out, self.config.keep_last));
        let mut hooks = self.own_hooks(checkpoints.as_ref(), stop);
        hooks.append(&mut self.evaluators);
        hooks.append(&mut self.hooks);
        let mut run = Run::new(self.engine, self.config.steps, saved.clone()).with_data_end(data.sampler().end());
        if let Some(lock) = &mut lock {
            run.forgive(std::mem::replace(&mut lock.warning, Ok(())));
        }
        let cycle = Cycle { run, hooks: &mut hooks, config: &self.config, schedule: &*self.schedule };
        let mut run = cycle.all(data)?;
        drop(hooks);
        // One that has come since the last step, too: other processes go on otherwise, and wait for this one.
        run.agree_on_signal(interruption.as_ref().and_then(|interruption| interruption.stop().signal()))?;
        if run.signal().is_some() {
            // No process ends before all ranks are done.
            world.barrier()?;
        }
        if let Some(interruption) = interruption {
            interruption.end(run.signal());
        }
        Ok(Trained { summary: run.summary(), engine: run.into_engine(), saved, checkpoints, _lock: lock })
    }

    /// How this run is set up.
    fn state(&self, sampler: &dyn Sampler) -> RunState {
        let context = self.engine.context();
        // The first line tells the sizes of all axes; the others draw them.
        let mut layout = context.mesh().to_string().lines().next().unwrap_or_default().to_string();
        let stages = &self.engine.plan().stages;
        if stages.count() > 1 {
            layout = format!("{layout}; {stages}");
        }
        layout += &self.engine.plan().state_layout();
        RunState {
            invariants: self.invariants.clone(),
            config: self.run_config.clone(),
            ..RunState::new(context.seed(), sampler.order(), layout)
        }
    }

    /// The trainer's own hooks, but for those that measure.
    fn own_hooks(&self, checkpoints: Option<&Checkpoints>, stop: StopHandle) -> Hooks<'a, M> {
        let config = &self.config;
        let mut hooks: Hooks<'a, M> = Vec::new();
        if let (Some(out), Some(checkpoints)) = (&config.out, checkpoints) {
            hooks.push(Box::new(OpenFolder::new(out, checkpoints.clone(), config)));
        }
        if self.engine.context().world().rank() == 0 {
            self.add_watchers(&mut hooks);
        }
        hooks.push(Box::new(StopOnRequest::new(stop)));
        if let Some(every) = config.check_replicas_every {
            hooks.push(Box::new(CheckReplicas::every(every)));
        }
        if let Some(checkpoints) = checkpoints.filter(|_| config.save) {
            let save = SaveEvery::new(config.save_every, checkpoints.clone());
            hooks.push(Box::new(save.waiting(!config.async_save)));
            if let Some(best) = &config.keep_best {
                hooks.push(Box::new(KeepBest::new(best.clone(), checkpoints.clone())));
            }
        }
        if !self.evaluators.is_empty() {
            let evaluate = EvaluateEvery::new(config.eval_every);
            hooks.push(Box::new(evaluate.with_checkpoints(checkpoints.filter(|_| config.save).cloned())));
        }
        hooks
    }

    /// What shows and writes the run, on the first rank of the world.
    fn add_watchers(&self, hooks: &mut Hooks<'a, M>) {
        if let Some(out) = &self.config.out {
            // The log first: a resumed curve reads it once it is cut.
            let metrics = out.join("metrics.jsonl");
            hooks.push(Box::new(MetricsLog::new(&metrics).replacing(self.config.replace)));
            if self.config.tensorboard {
                let board = TensorBoard::new(out.join("tensorboard"));
                hooks.push(Box::new(board.replacing(self.config.replace)));
            }
            hooks.push(Box::new(Curve::new(out.join("loss.svg")).with_history(metrics)));
        }
        if !self.quiet {
            hooks.push(Box::new(Progress::new(self.config.log_every)));
        }
    }
}

impl<M: Model> Trained<M> {
    /// Loads a checkpoint of the run into the engine, such as the best. Collective.
    ///
    /// # Errors
    ///
    /// When the run has no folder, or no such checkpoint.
    pub fn load(&mut self, which: CheckpointId) -> Result<()> {
        let Some(checkpoints) = &self.checkpoints else {
            return Err(Error::invalid("the run wrote no checkpoints; give it a folder `out`"));
        };
        let world = self.engine.context().world().clone();
        let engine = &mut self.engine;
        checkpoints.load(which, &world, &self.saved, |checkpoint| engine.restore(checkpoint))?;
        Ok(())
    }
}
