//! The handle a layer reads at run time: groups, step, samples; and what layers declare while a model is built.
//!
//! - `build`: declarations, for the plan to read.
//! - `groups`: one for every axis of the mesh.
//! - `moment`, `replay`: the current pass, where in it a rank is, and how it goes back.
//! - `flops`, `nan`, `told`: what layers tell beside their result: their operations where a forward is measured, and what
//!   may have made a loss NaN.
//! - `reads`: values that the host waits for.
//! - `metrics`, `counted`: what layers count, and how they say it.

mod build;
mod counted;
mod flops;
mod groups;
mod metrics;
mod moment;
mod nan;
mod reads;
mod replay;
mod told;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{Tensor, TensorData};
use epl_comm::{Event, ProcessGroup, Rank, Span, Trace, TraceWatch};

pub(crate) use build::{BuildContext, Sharding};
pub(crate) use flops::Flops;
pub use groups::Groups;
use metrics::Metrics;
pub use moment::Pass;
use moment::{Calls, needs_context};
pub(crate) use moment::{Moment, without_context};
pub(crate) use nan::NanCauses;

use crate::error::{Error, Result};
use crate::model::flat::Flat;
use crate::model::output::{Merge, OutputStore, OutputValue, Taken};
use crate::offload::is_host;
use crate::pattern::Pattern;
use crate::topology::cluster::{Axis, Coordinate, Mesh};

/// What one rank's layers share: the groups along the mesh axes and the current [`Pass`].
///
/// A cheap clone, one per rank. Layers keep it in a `#[module(skip)]` field; the engine writes it.
/// A model that holds contexts is never forked to another rank.
#[derive(Clone)]
pub struct Context {
    shared: Arc<ContextParts>,
    part: SplitScope,
}

/// Every layer's text has its context: no more of it than tells the rank.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.rank()).finish()
    }
}

/// Over which ranks the split layers of a part of the model are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitScope {
    /// Over the tensor axis of the mesh, whose ranks run the same rows.
    Mesh,
    /// Over the ranks of a replica, which run different rows: a `split` scope colocated with a `replicate` scope.
    /// Whether these rows have been gathered is the question.
    Colocated {
        /// Whether they have.
        gathered: bool,
    },
    /// Over none: they are whole on each rank, as the option `dist.whole_layers` says.
    Whole,
}

/// The layers that are not divided over the tensor axis.
#[derive(Debug, Default)]
pub(crate) struct WholeLayers {
    patterns: Vec<Pattern>,
    /// This rank alone, which is what they take for the tensor axis; none where no layer is named.
    own: Option<ProcessGroup>,
}

impl WholeLayers {
    /// Those that an option names, if it does. Collective, then.
    pub fn new(names: Option<&[String]>, world: &ProcessGroup) -> Result<Self> {
        let Some(names) = names else { return Ok(Self::default()) };
        if names.is_empty() {
            return Err(Error::invalid(
                "dist.whole_layers = [] names no layer; give paths, such as `**.feed_forward`, or leave it out",
            ));
        }
        let patterns = names.iter().map(|name| Pattern::new(name)).collect();
        Ok(Self { patterns, own: Some(world.split_by("whole layers", |rank| (rank, 0))?) })
    }

    /// How they are named.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// Whether the layer at a path is one of them.
    pub fn covers(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.covers(path))
    }
}

struct ContextParts {
    groups: Groups,
    mesh: Mesh,
    seed: u64,
    trace: Option<Trace>,
    /// The axis over which split layers of `split` scopes are cut.
    split_axis: Axis,
    whole_layers: WholeLayers,
    state: Mutex<PassState>,
}

struct PassState {
    pass: Pass,
    /// The segment that is run, and how many were before it in this pass.
    segment: (usize, u64),
    /// Whether what is run was run before: see [`Context::replaying`].
    replay: bool,
    calls: HashMap<u64, Calls>,
    metrics: Metrics,
    outputs: OutputStore,
    nan_causes: Option<NanCauses>,
    device_reads: u64,
    /// While a forward is measured.
    flops: Option<Flops>,
}

/// While it is held, outputs are taken: see [`Context::open_outputs`].
#[must_use = "it ends when it is dropped"]
pub(crate) struct OpenOutputs<'a>(&'a Context);

impl Drop for OpenOutputs<'_> {
    fn drop(&mut self) {
        self.0.state().outputs.close();
    }
}

impl Context {
    /// Makes the context of one rank. Collective, as it splits the world along every axis.
    pub fn new(world: ProcessGroup, mesh: Mesh, seed: u64, trace: Option<Trace>) -> Result<Self> {
        Self::with_splits(world, mesh, seed, trace, (Axis::Tensor, WholeLayers::default()))
    }

    /// [`new`](Self::new), with the axis over which the split layers of `split` scopes are cut, and the layers that are not cut.
    pub(crate) fn with_splits(
        world: ProcessGroup,
        mesh: Mesh,
        seed: u64,
        trace: Option<Trace>,
        (split_axis, whole_layers): (Axis, WholeLayers),
    ) -> Result<Self> {
        let pass = Pass { step: 0, training: false, samples: Arc::new([]), empty: false };
        let state = PassState {
            pass,
            segment: (0, 0),
            replay: false,
            calls: HashMap::new(),
            metrics: Metrics::default(),
            outputs: OutputStore::default(),
            nan_causes: None,
            device_reads: 0,
            flops: None,
        };
        if let Some(trace) = &trace {
            let rank = world.global(world.rank());
            trace.name(rank, mesh.coordinate(rank.0).to_string());
        }
        let groups = Groups::new(world, &mesh)?;
        let shared = ContextParts { groups, mesh, seed, trace, split_axis, whole_layers, state: Mutex::new(state) };
        Ok(Self { shared: Arc::new(shared), part: SplitScope::Mesh })
    }

    /// The context of a part of the model.
    pub(crate) fn of_part(&self, part: SplitScope) -> Self {
        Self { shared: self.shared.clone(), part }
    }

    /// The part of the model that this context is given to.
    pub(crate) fn part(&self) -> SplitScope {
        self.part
    }

    /// Over which axis the split layers of `split` scopes are cut.
    pub(crate) fn split_axis(&self) -> Axis {
        self.shared.split_axis
    }

    /// The layers that are not divided over the tensor axis.
    pub(crate) fn whole_layers(&self) -> &WholeLayers {
        &self.shared.whole_layers
    }

    /// The ranks that hold the other slices of this part's split layers, where they run other rows than this rank: these
    /// must be gathered before such a layer.
    pub fn to_be_bridged(&self) -> Option<&ProcessGroup> {
        (self.part != SplitScope::Mesh && self.tensor().size() > 1).then(|| self.tensor())
    }

    /// The axis of the mesh that a layer of this part means.
    pub(crate) fn meant(&self, axis: Axis) -> Axis {
        match (axis, self.part) {
            (Axis::Tensor, SplitScope::Colocated { .. }) => self.shared.split_axis,
            (axis, _) => axis,
        }
    }

    /// All ranks.
    pub fn world(&self) -> &ProcessGroup {
        &self.shared.groups.world
    }

    /// The ranks that hold copies of this rank's part of the model, and run other rows. Where stages have different
    /// widths each has as many as it needs: see [`replicas`](Self::replicas).
    pub fn data(&self) -> &ProcessGroup {
        self.axis(Axis::Data)
    }

    /// The ranks that hold the other slices of this rank's split layers; of layers that `dist.whole_layers` names this rank alone. In a
    /// `split` scope that is colocated with
    /// replicated parts these are the ranks of the replica, which run rows of their own before a bridge.
    pub fn tensor(&self) -> &ProcessGroup {
        self.axis(Axis::Tensor)
    }

    /// The ranks that run the same rows as this one: those of the tensor axis, also where the layer is whole on each of them; behind a
    /// bridge those of the replica. What they decide by numbers that may differ in their last bits, as on devices that choose kernels
    /// while they run, they decide together.
    pub fn same_rows(&self) -> &ProcessGroup {
        match self.part {
            SplitScope::Colocated { gathered: true } => self.tensor(),
            _ => self.shared.groups.axis(Axis::Tensor),
        }
    }

    /// The neighbouring data ranks among which experts are divided.
    pub fn expert(&self) -> &ProcessGroup {
        self.axis(Axis::Expert)
    }

    /// The ranks that hold the same experts: data ÷ expert.
    pub fn expert_data(&self) -> &ProcessGroup {
        self.axis(Axis::ExpertData)
    }

    /// The group along one axis.
    pub fn axis(&self, axis: Axis) -> &ProcessGroup {
        match (axis, self.part, &self.shared.whole_layers.own) {
            (Axis::Tensor, SplitScope::Whole, Some(own)) => own,
            _ => self.shared.groups.axis(self.meant(axis)),
        }
    }

    /// The mesh the groups were cut from.
    pub fn mesh(&self) -> &Mesh {
        &self.shared.mesh
    }

    /// Where this rank stands in the mesh.
    pub fn coordinate(&self) -> Coordinate {
        self.shared.mesh.coordinate(self.world().rank())
    }

    /// In how many parts a batch is cut, each of which goes through all stages: the size of the data axis, where stages
    /// have one width. Which rows a rank runs says [`BatchShard::of`](crate::data::BatchShard::of).
    pub fn replicas(&self) -> usize {
        self.mesh().replicas()
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// The current optimizer step, from 0.
    pub fn step(&self) -> u64 {
        self.state().pass.step
    }

    /// Whether dropout and jitter are active.
    pub fn is_training(&self) -> bool {
        self.state().pass.training
    }

    /// Whether the rows of the current micro-batch are a stand-in that must not count.
    pub fn is_stand_in(&self) -> bool {
        self.state().pass.empty
    }

    /// The global sample number of every row of the current micro-batch.
    pub fn samples(&self) -> Arc<[u64]> {
        self.state().pass.samples.clone()
    }

    /// How often the layer with this key was called in the current segment: 0, 1, 2, …
    ///
    /// A segment's numbers begin anew, so that they are the same on a stage that runs no other one, and when it is run
    /// again.
    ///
    /// ```
    /// # use epl_core::testing;
    /// let numbers = testing::run((1, 1, 1), |epl| {
    ///     let (context, dropout, noise) = (epl.context(), 7, 8); // keys as `Place::layer_key` gives them
    ///     Ok([dropout, dropout, noise].map(|layer| context.call_number(layer)))
    /// });
    /// assert_eq!(numbers, [[0, 1, 0]]); // so a layer that is called twice draws two masks
    /// ```
    ///
    /// # Errors
    ///
    /// Unwinds when it was called in another segment of this pass: it would do the same again in both.
    pub fn call_number(&self, layer: u64) -> u64 {
        needs_context();
        let mut state = self.state();
        let segment = state.segment;
        let calls = state.calls.entry(layer).or_insert(Calls { segment, count: 0 });
        let home = calls.segment.0;
        if calls.segment != segment {
            *calls = Calls { segment, count: 0 };
        }
        calls.count += 1;
        let number = calls.count - 1;
        drop(state);
        if home != segment.0 {
            epl_comm::unwind(epl_comm::Error::invalid(format!(
                "a layer that draws random numbers, such as a dropout, is called in segment {} and in segment {}, where \
                 it would draw the same ones; give each segment a layer of its own",
                home, segment.0
            )));
        }
        number
    }

    /// Declares an output, so that every rank merges the same set of them: see [`output`](Self::output).
    ///
    /// Unwinds when it is declared already, to be merged in another way.
    pub fn declare_output(&self, name: &str, merge: Merge) {
        let outcome = self.state().outputs.declare(name, merge);
        outcome.unwrap_or_else(|error| epl_comm::unwind(epl_comm::Error::invalid(error.to_string())));
    }

    /// Hands out a declared value of the current micro-batch, once a forward: merged, it is in the report of the step
    /// or the evaluation, without its graph. Nothing is added for a stand-in, or in a forward of one's own.
    ///
    /// A value on a device stays there until it is read with the losses, at the end of the step or of a window of an evaluation.
    ///
    /// Unwinds when it was not declared, or was handed out already in this forward.
    pub fn output<const D: usize, K: Numeric + Autodiff>(&self, name: &str, value: Tensor<D, K>) {
        needs_context();
        let samples = {
            let state = self.state();
            if state.pass.empty || state.replay || !state.outputs.is_open() {
                return;
            }
            state.pass.samples.clone()
        };
        let outcome = self.state().outputs.add(name, &samples, given(value));
        outcome.unwrap_or_else(|error| epl_comm::unwind(epl_comm::Error::invalid(error.to_string())));
    }

    /// Begins to take outputs, for a report. It ends when the result is dropped, also when what was run fails.
    pub(crate) fn open_outputs(&self) -> OpenOutputs<'_> {
        self.state().outputs.open();
        OpenOutputs(self)
    }

    /// The outputs that are still to be read.
    pub(crate) fn noted_outputs(&self) -> Vec<Flat> {
        self.state().outputs.noted()
    }

    /// Gives what was noted and has been read, in that order.
    pub(crate) fn settle_outputs(&self, read: Vec<TensorData>) {
        self.state().outputs.settle(read);
    }

    /// Takes the outputs of this rank.
    pub(crate) fn take_outputs(&self) -> Taken {
        let noted = self.noted_outputs();
        if !noted.is_empty() {
            let (_, read) = self.read_numbers_with(Vec::new(), noted);
            self.settle_outputs(read);
        }
        self.state().outputs.take()
    }

    /// Opens a pass: the calls are counted anew.
    pub fn begin(&self, pass: Pass) {
        let mut state = self.state();
        state.pass = pass;
        state.segment = (0, 0);
        state.calls.clear();
        state.outputs.next_pass();
        state.nan_causes = None;
    }

    /// Whether what is run now was run before, in the same pass, and was not kept, or is run to be measured or compared:
    /// whatever it tells beside its result (metrics, outputs, running statistics) has been told, or is not to be.
    pub fn is_replay(&self) -> bool {
        needs_context();
        self.state().replay
    }

    /// Enters a segment of the current pass, perhaps again.
    pub(crate) fn enter(&self, segment: usize) {
        let mut state = self.state();
        state.segment = (segment, state.segment.1 + 1);
    }

    /// The segment that was entered last.
    pub(crate) fn segment(&self) -> usize {
        self.state().segment.0
    }

    /// Writes a mark into the trace, if there is one that is switched on.
    pub fn mark(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = self.shared.trace.as_ref().filter(|trace| trace.is_on()) {
            trace.mark(self.rank(), &what());
        }
    }

    /// Says in the trace, if there is one that is switched on, how much this rank has of something from now on, by kinds.
    pub(crate) fn count(&self, name: &str, amounts: impl FnOnce() -> Vec<(String, u64)>) {
        if let Some(trace) = self.shared.trace.as_ref().filter(|trace| trace.is_on()) {
            trace.count(self.rank(), name, amounts());
        }
    }

    /// Says in the trace, if there is one that is switched on, that this rank does something until the result is dropped.
    #[must_use = "it ends when it is dropped"]
    pub fn span(&self, what: impl FnOnce() -> String) -> Option<Span> {
        self.shared.trace.as_ref()?.span(self.rank(), what)
    }

    /// The collectives of `f`, where this rank's are the only ones that its trace has: in a world that is only thought of.
    ///
    /// # Errors
    ///
    /// Where there is no trace, or other ranks have it, too.
    pub(crate) fn record_calls<T>(&self, f: impl FnOnce() -> T) -> Result<(T, Vec<Event>)> {
        let trace = self.shared.trace.as_ref().filter(|trace| trace.names().len() == 1);
        let trace =
            trace.ok_or_else(|| Error::invalid("calls of segments are recorded by `launch_dry`: run this there"))?;
        Ok(trace.recorded(f))
    }

    /// Switches this rank's trace, if there is one.
    pub(crate) fn switch_trace(&self, on: bool) {
        if let Some(trace) = &self.shared.trace {
            trace.switch(on);
        }
    }

    /// Notes what this rank's trace has from now on, if there is one.
    pub(crate) fn watch_trace(&self) -> Option<TraceWatch> {
        self.shared.trace.as_ref().map(Trace::watch)
    }

    fn rank(&self) -> Rank {
        self.world().global(self.world().rank())
    }

    fn state(&self) -> MutexGuard<'_, PassState> {
        // A panic while the lock is held cannot leave the counters half-written.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is handed out: of host memory its values, for which nobody waits, and which keep no memory of others.
fn given<const D: usize, K: Numeric + Autodiff>(value: Tensor<D, K>) -> OutputValue {
    let shape = value.shape();
    match is_host(&value.device()) || shape.num_elements() == 0 {
        true => OutputValue::Read(value.inner().into_data()),
        false => OutputValue::Noted(Box::new(Flat::of(value)), shape),
    }
}
