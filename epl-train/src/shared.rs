//! What the ranks of a process have in common.

use core::any::Any;
use core::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use burn::optim::OptimizerRecord;
use burn::tensor::Device;
use burn_train::{
    InferenceStep, Interrupter, Learner, LearnerModel, SupervisedTrainingEventProcessor, TrainLoader, TrainStep,
    TrainingComponents, ValidLoader,
};
use epl_core::optim::{OptimizerConfig, WholeStates};
use epl_core::{Error, Result};

use crate::batch::Weight;
use crate::check;
use crate::desk::Desk;
use crate::feed::Feed;
use crate::records;

pub(crate) type TrainInput<M> = <M as TrainStep>::Input;
pub(crate) type ValidInput<M> = <M as InferenceStep>::Input;

/// What the strategy was told.
pub(crate) struct Told<O, I> {
    pub optimizer: O,
    pub weight: Option<Weight<I>>,
    /// A [`Weight`] of batches of validation, of whichever type.
    pub valid_weight: Option<Box<dyn Any + Send + Sync>>,
    /// Whether Burn's autodiff runs memory-bound operations again.
    pub checkpointing: bool,
}

impl<O, I: 'static> Told<O, I> {
    /// What a batch of validation weighs, if anything but its rows is said.
    ///
    /// # Errors
    ///
    /// When that is said of batches of another type.
    pub fn valid_weight<J: 'static>(&self) -> Result<Option<Weight<J>>> {
        let told = match (&self.valid_weight, &self.weight) {
            (Some(told), _) => told.downcast_ref::<Weight<J>>(),
            (None, Some(told)) => (told as &dyn Any).downcast_ref::<Weight<J>>(),
            (None, None) => return Ok(None),
        };
        let other = || {
            Error::invalid(format!(
                "what is weighed are batches of another type than `{}`, which validation has; say by \
                 `DataParallel::valid_weighted_by` what the loss of one of those is a mean over",
                core::any::type_name::<J>()
            ))
        };
        told.cloned().map(Some).ok_or_else(other)
    }
}

/// What the ranks of a process have in common.
pub(crate) struct Shared<'a, M: LearnerModel, O> {
    pub told: &'a Told<O, TrainInput<M>>,
    pub learner: Mutex<Learner<M>>,
    /// The first rank's while it runs.
    pub desk: Mutex<Option<Desk<M>>>,
    pub loaders: (TrainLoader<M>, ValidLoader<M>),
    pub feeds: (Feed<TrainInput<M>>, Feed<ValidInput<M>>),
    /// Whether a rank of this process reads for all.
    pub is_read: AtomicBool,
    pub device: OnceLock<Device>,
    /// The optimizer's state that the learner came with, until every rank of the process has its part of it.
    pub states: Mutex<Arc<WholeStates>>,
    pub epochs: RangeInclusive<usize>,
    pub accumulation: usize,
    pub saves: bool,
    pub interrupter: Interrupter,
}

impl<'a, M: LearnerModel, O: OptimizerConfig> Shared<'a, M, O> {
    /// Of a run that begins with this epoch.
    pub fn new(
        told: &'a Told<O, TrainInput<M>>,
        parts: TrainingComponents<M>,
        learner: Learner<M>,
        loaders: (TrainLoader<M>, ValidLoader<M>),
        first: usize,
    ) -> Self {
        let TrainingComponents { num_epochs, checkpointer, grad_accumulation, interrupter, .. } = parts;
        let (saves, early_stopping) = (checkpointer.is_some(), parts.early_stopping);
        let (processor, store) = (parts.event_processor, parts.event_store);
        let accumulation = grad_accumulation.unwrap_or(1);
        let desk = Desk { processor, checkpointer, early_stopping, store, interrupter: interrupter.clone() };
        Self {
            told,
            learner: Mutex::new(learner),
            desk: Mutex::new(Some(desk)),
            loaders,
            feeds: (Feed::new(accumulation), Feed::new(1)),
            is_read: AtomicBool::new(false),
            device: OnceLock::new(),
            states: Mutex::default(),
            epochs: first..=num_epochs,
            accumulation,
            saves,
            interrupter,
        }
    }

    /// Before ranks run: the model's first values, in the order in which it has its parameters, and the optimizer's state.
    ///
    /// # Errors
    ///
    /// When the state is not that of the model, the learner's optimizer is another than the strategy's, or what it keeps cannot be
    /// saved, or what batches of validation weigh is said of others.
    pub fn prepare(&self) -> Result<()> {
        let mut learner = lock(&self.learner);
        records::named(&learner.model());
        let states = match lock(&self.desk).as_ref() {
            Some(desk) => records::states(&learner, &desk.store)?,
            None => WholeStates::new(),
        };
        learner.load_optim(OptimizerRecord::default());
        *lock(&self.states) = Arc::new(states);
        self.told.valid_weight::<ValidInput<M>>()?;
        if self.saves {
            check::is_saved_whole(&self.told.optimizer)?;
        }
        check::same_optimizer(&learner, &self.told.optimizer)
    }

    /// What the learner goes on with.
    pub fn into_result(self) -> (M, SupervisedTrainingEventProcessor<M>) {
        let model = self.learner.into_inner().unwrap_or_else(PoisonError::into_inner).model();
        let desk = self.desk.into_inner().unwrap_or_else(PoisonError::into_inner);
        (model, desk.unwrap_or_else(|| unreachable!("the first rank gives it back")).processor)
    }
}

/// What is shared, also where a rank has failed while it had it.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the desk as long as it lives.
pub(crate) struct AtDesk<'a, M: LearnerModel> {
    pub desk: Option<Desk<M>>,
    pub back: &'a Mutex<Option<Desk<M>>>,
}

impl<M: LearnerModel> Drop for AtDesk<'_, M> {
    fn drop(&mut self) {
        if let Some(desk) = self.desk.take() {
            *lock(self.back) = Some(desk);
        }
    }
}

/// Lets go who waits for what this rank reads.
pub(crate) struct Reads<'a, I, J>(pub &'a (Feed<I>, Feed<J>));

impl<I, J> Drop for Reads<'_, I, J> {
    fn drop(&mut self) {
        self.0.0.close();
        self.0.1.close();
    }
}
