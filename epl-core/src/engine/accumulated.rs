//! What a step has before its update.

use std::collections::BTreeSet;
use std::time::Instant;

use epl_comm::TraceWatch;

use super::gradients::GradientStore;
use super::report::StepReport;

/// What all forwards and backwards of a step leave: the reduced gradients, which are not applied yet.
pub struct Accumulated {
    /// Of what is scattered this rank's shard.
    pub(super) store: GradientStore,
    pub(super) report: StepReport,
    /// The parameters that this rank holds and no rank has a gradient of, by the numbers of their records: in the store are zeros.
    pub(super) without: BTreeSet<usize>,
    /// The samples of this rank's micro-batches whose loss is not finite.
    pub(super) not_finite: Vec<u64>,
    /// See [`Engine::bubble`](super::Engine::bubble).
    pub(super) bubble: Option<f64>,
    /// Which one it is of those whose gradients lie away from the device, where there is room for one.
    pub(super) number: u64,
    /// What the loss was multiplied by.
    pub(super) loss_scale: f64,
    /// When its step began.
    pub(super) begun: Instant,
    /// What notes where its time goes, if that is to be measured.
    pub(super) watch: Option<TraceWatch>,
}

impl Accumulated {
    /// What [`Engine::step`](super::Engine::step) returns.
    pub fn report(&self) -> &StepReport {
        &self.report
    }
}
