//! What the first rank does for all: events for metrics and the display, checkpoints, early stopping.

use std::sync::Arc;

use burn::data::dataloader::Progress;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_train::metric::store::EventStoreClient;
use burn_train::{
    CloneEarlyStoppingStrategy, EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent,
    LearnerModel, LearningCheckpointer, SupervisedTrainingEventProcessor, TrainStep, TrainingItem,
};

/// The parts of the learner of which there is one in a run.
pub(crate) struct Desk<M: LearnerModel> {
    pub processor: SupervisedTrainingEventProcessor<M>,
    pub checkpointer: Option<LearningCheckpointer<M>>,
    pub early_stopping: Option<Box<dyn CloneEarlyStoppingStrategy>>,
    pub store: Arc<EventStoreClient>,
    pub interrupter: Interrupter,
}

/// Where an item is in its epoch.
pub(crate) struct At {
    pub progress: Progress,
    pub iteration: usize,
    pub rate: Option<ModuleLearningRate>,
}

impl<M: LearnerModel> Desk<M> {
    /// Tells of an event of the training split.
    pub fn train(&mut self, event: LearnerEvent<<M as TrainStep>::Output>) {
        self.interrupter.fail_on_error(self.processor.process_train(event));
    }

    /// Tells of an event of the validation split.
    pub fn valid(&mut self, event: LearnerEvent<<M as InferenceStep>::Output>) {
        self.interrupter.fail_on_error(self.processor.process_valid(event));
    }

    /// Ends an epoch: what checkpoints and stopping are decided by is complete then.
    pub fn end_epoch(&mut self, epoch: usize) {
        self.valid(LearnerEvent::EndSplit(epoch));
        self.train(LearnerEvent::EndEpoch(epoch));
        if self.checkpointer.is_some() || self.early_stopping.is_some() {
            self.interrupter.fail_on_error(self.processor.flush());
        }
    }

    /// Saves and deletes what the checkpointing strategy says.
    pub fn checkpoint(&mut self, learner: &Learner<M>, epoch: usize) {
        if let Some(checkpointer) = &mut self.checkpointer {
            checkpointer.checkpoint(learner, epoch, &self.store);
        }
    }

    /// Whether the run is to end behind an epoch.
    pub fn stops_behind(&mut self, epoch: usize) -> bool {
        self.early_stopping.as_mut().is_some_and(|stopping| stopping.should_stop(epoch, &self.store))
    }
}

/// An event of an item.
pub(crate) fn processed<T>(item: T, at: At) -> LearnerEvent<T> {
    LearnerEvent::ProcessedItem(TrainingItem::new(item, at.progress, Some(at.iteration), at.rate))
}
