//! What a program gives to the learner.

use std::sync::Arc;

use burn_train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerModel, LearningResult, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents, TrainingError, TrainingStrategy,
    ValidLoader, train::WorkerFailure,
};
use epl_comm::Worker;
use epl_core::config::{AmpLevel, CheckpointType, Config, IoConfig, ReduceMethod};
use epl_core::data::Rows;
use epl_core::optim::OptimizerConfig;
use epl_core::{Error, Result};

use crate::batch::Weight;
use crate::output::StepOutput;
use crate::rank;
use crate::shared::{Shared, Told};

/// A strategy of Burn's supervised learner: data parallel over the ranks of a [`Config`], whose options say the rest, such as
/// `zero.level`, `offload.optimizer_state`, `train.clip_norm`, `pipeline.num_micro_batch`.
///
/// ```
/// use burn::optim::AdamConfig;
/// use burn_train::{LearnerModel, SupervisedTraining, TrainStep, InferenceStep};
/// use epl_core::{Config, data::Rows};
/// use epl_train::{DataParallel, StepOutput};
///
/// fn on_two_ranks<M>(training: SupervisedTraining<M>) -> epl_core::Result<SupervisedTraining<M>>
/// where
///     M: LearnerModel + TrainStep<Input: Rows, Output: StepOutput> + InferenceStep<Input: Rows, Output: StepOutput>,
/// {
///     let config = Config::new().with("cluster.ranks", 2)?.with("zero.level", "v1")?;
///     Ok(training.with_training_strategy(DataParallel::new(&config, AdamConfig::new())?.into()))
/// }
/// ```
///
/// Batches are those of one rank, which each rank runs its rows of, so that losses, metrics and parameters are one rank's: the
/// step's loss must be a mean over the rows of its batch, or [weighed](Self::weighted_by). Burn's metrics, display, loggers,
/// checkpoints, learning rates, `grads_accumulation`, early stopping and interrupter are as they are without it. The learner's
/// optimizer is the one that is given here, too.
pub struct DataParallel<O, I> {
    config: Config,
    told: Told<O, I>,
}

impl<O: OptimizerConfig, I> DataParallel<O, I> {
    /// A strategy with these options, and the optimizer of which the learner has been made.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration, and options that a learner's step cannot follow.
    pub fn new(config: &Config, optimizer: O) -> Result<Self> {
        config.validate()?;
        refuse(config)?;
        Ok(Self {
            config: config.clone(),
            told: Told { optimizer, weight: None, valid_weight: None, checkpointing: false },
        })
    }

    /// Says what the loss of a batch is a mean over, where it is not its rows: the targets that are no padding, or the sum of the
    /// weights of their classes. Also of a batch of validation, where these are of the same type; if not, it is
    /// [said](Self::valid_weighted_by), too.
    #[must_use]
    pub fn weighted_by(self, weight: impl Fn(&I) -> f64 + Send + Sync + 'static) -> Self {
        Self { told: Told { weight: Some(Arc::new(weight)), ..self.told }, ..self }
    }

    /// Says what the loss of a batch of validation is a mean over, where it is not its rows, and not what
    /// [`weighted_by`](Self::weighted_by) says. A run with batches of another type than `J` is refused.
    #[must_use]
    pub fn valid_weighted_by<J: 'static>(self, weight: impl Fn(&J) -> f64 + Send + Sync + 'static) -> Self {
        let weight: Weight<J> = Arc::new(weight);
        Self { told: Told { valid_weight: Some(Box::new(weight)), ..self.told }, ..self }
    }

    /// Runs memory-bound operations again in backward, in the place of `SupervisedTraining::gradient_checkpointing`, which reaches
    /// Burn's own strategies only.
    #[must_use]
    pub fn gradient_checkpointing(self) -> Self {
        Self { told: Told { checkpointing: true, ..self.told }, ..self }
    }
}

/// What is said where the learner says it.
const LEARNER_SAYS: &str = "is said to the learner, not here; leave it out";

/// Refuses what would cut a step, which is the model's own and is run as a whole, and what the learner says itself.
fn refuse(config: &Config) -> Result<()> {
    let (default, dist) = (Config::new(), &config.dist);
    let whole =
        "and a learner's step is run as a whole, by ranks that each have the whole model; train it by `Engine`, or";
    let refusals = [
        (
            config.pipeline.num_stages.is_some_and(|stages| stages > 1) || dist.pipeline_parallel_size > 1,
            format!("pipeline.num_stages and dist.pipeline_parallel_size divide a model into stages, {whole} set both to 1"),
        ),
        (
            dist.tensor_parallel_size > 1,
            format!("dist.tensor_parallel_size = {} splits layers, {whole} set it to 1", dist.tensor_parallel_size),
        ),
        (
            dist.expert_parallel_size > 1,
            format!("dist.expert_parallel_size = {} divides experts, {whole} set it to 1", dist.expert_parallel_size),
        ),
        (config.auto.auto_parallel, format!("auto.auto_parallel = true searches such layouts, {whole} set it to false")),
        (
            config.gradient_checkpoint.r#type != CheckpointType::Off,
            "gradient_checkpoint.type runs segments of a model again, and a learner's step is one; run parts again by \
             `epl::checkpoint` in the model's forward, or let the strategy do it: `DataParallel::gradient_checkpointing`"
                .to_string(),
        ),
        (
            config.amp.level != AmpLevel::Off,
            "amp.level scales the loss and casts parameters, and a learner's step differentiates its loss itself; leave it \
             out, or train by `Engine`"
                .to_string(),
        ),
        (
            config.communication.gradients_reduce_method != ReduceMethod::Mean,
            "communication.gradients_reduce_method = sum, and a learner's loss is a mean; leave it out".to_string(),
        ),
        (config.schedule != default.schedule, format!("schedule: the learning rate {LEARNER_SAYS}")),
        (
            [config.train.steps, config.train.eval_every, config.train.save_every] != [None; 3],
            format!("train.steps, eval_every, save_every: how long a run lasts {LEARNER_SAYS}"),
        ),
        (
            [config.train.global_batch_size, config.train.micro_batch_size] != [None; 2],
            format!("train.global_batch_size, micro_batch_size: the batch size of the data loader {LEARNER_SAYS}"),
        ),
        (
            IoConfig { row_weights: config.io.row_weights.clone(), ..default.io.clone() } != config.io,
            format!("io.slicing, unbalanced_io_slicing, drop_last_files, num_workers, prefetch: how data is read {LEARNER_SAYS}"),
        ),
        (
            (config.train.tensorboard, &config.train.out, config.train.resume, config.train.resume_step, config.train.keep_last)
                != (false, &default.train.out, default.train.resume, None, default.train.keep_last),
            format!("train.tensorboard, out, resume, resume_step, keep_last: what is written and gone on from {LEARNER_SAYS}"),
        ),
        (
            config.profile.segments,
            "profile.segments: a learner's step is one segment, of which a table says nothing; set profile.trace".to_string(),
        ),
    ];
    let said: Vec<String> = refusals.into_iter().filter(|(is_refused, _)| *is_refused).map(|(_, why)| why).collect();
    if said.is_empty() { Ok(()) } else { Err(Error::invalid(said.join("\n"))) }
}

/// The learner's own way around a run: its beginning and end are shown, and the summary.
struct Shown<'a, S>(&'a S);

impl<M: LearnerModel, S: SupervisedLearningStrategy<M>> SupervisedLearningStrategy<M> for Shown<'_, S> {
    fn fit(
        &self,
        training_components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        self.0.fit(training_components, learner, dataloader_train, dataloader_valid, starting_epoch)
    }
}

impl<M, O> SupervisedLearningStrategy<M> for DataParallel<O, <M as TrainStep>::Input>
where
    M: LearnerModel + TrainStep<Input: Rows, Output: StepOutput> + InferenceStep<Input: Rows, Output: StepOutput>,
    O: OptimizerConfig + Sync,
{
    fn train(
        &self,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        training_components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        // What is wrong with the environment is told by the launch.
        let worker = Worker::from_environment(self.config.cluster.ranks).ok().flatten();
        if worker.is_none_or(|worker| worker.worker() == 0) {
            return Shown(self).train(learner, dataloader_train, dataloader_valid, training_components);
        }
        let interrupter = training_components.interrupter.clone();
        let first = training_components.checkpoint.unwrap_or(0) + 1;
        let (model, processor) = self.fit(training_components, learner, dataloader_train, dataloader_valid, first);
        LearningResult {
            model: model.valid(),
            renderer: processor.renderer(),
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
        }
    }

    fn fit(
        &self,
        training_components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let interrupter = training_components.interrupter.clone();
        let loaders = (dataloader_train, dataloader_valid);
        let shared = Shared::new(&self.told, training_components, learner, loaders, starting_epoch);
        let ran = shared.prepare().and_then(|()| epl_core::launch(&self.config, |epl| rank::run(epl, &shared)));
        if let Err(error) = &ran {
            let failed = WorkerFailure { device_id: rank_of(error), message: error.to_string() };
            interrupter.fail(TrainingError::Workers(vec![failed]));
        }
        shared.into_result()
    }
}

/// The rank that an error is of; the first, of one that all have.
fn rank_of(error: &Error) -> usize {
    match error {
        Error::Rank { rank, .. } => rank.0,
        _ => 0,
    }
}

impl<M, O> From<DataParallel<O, <M as TrainStep>::Input>> for TrainingStrategy<M>
where
    M: LearnerModel + TrainStep<Input: Rows, Output: StepOutput> + InferenceStep<Input: Rows, Output: StepOutput>,
    O: OptimizerConfig + Sync + 'static,
{
    fn from(strategy: DataParallel<O, <M as TrainStep>::Input>) -> Self {
        Self::Custom(Arc::new(strategy))
    }
}
