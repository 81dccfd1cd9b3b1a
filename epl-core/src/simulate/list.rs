//! The list of a step while it grows.

use burn::tensor::DType;
use epl_comm::Operation;

use super::call::{Called, Members};

/// One thing that a rank does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A segment runs for one micro-batch.
    Run {
        /// Which way.
        kind: RunKind,
        /// The micro-batch.
        micro_batch: usize,
        /// The segment.
        segment: usize,
    },
    /// The rank takes part in a collective, and waits for it.
    Call(Called),
    /// A collective is started, and goes on beside the rank.
    Start(Purpose, Called),
    /// The rank waits for what was started at this place of the list.
    Await(usize),
    /// The optimizer updates what this rank updates of a unit; none: all that lies in the model.
    Update(Option<usize>),
}

/// What a started collective is for. Units and buckets have the numbers of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To reduce the gradients of a bucket.
    Bucket(usize),
    /// The same, by the rows that are not zero: two collectives.
    Rows(usize),
    /// To gather the parameters of a unit.
    Unit(usize),
    /// To give another stage a carry or its gradients.
    Parcel,
}

/// Which way a segment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// Its forward.
    Forward,
    /// Its forward once more, in backward; its collectives give what they gave.
    Recompute,
    /// Its backward.
    Backward,
}

impl RunKind {
    /// What a trace calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
        }
    }
}

/// What a rank does, one after the other.
#[derive(Debug, Default)]
pub(super) struct OpList(pub Vec<Op>);

impl OpList {
    /// An empty one with room for so many.
    pub fn with_room(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    pub fn call(&mut self, over: Members, operation: Operation, dtype: DType, elements: usize) {
        self.0.push(Op::Call(Called { over, operation, dtype, elements }));
    }

    /// Returns its place, to be waited for.
    pub fn start(&mut self, purpose: Purpose, call: Called) -> usize {
        self.0.push(Op::Start(purpose, call));
        self.0.len() - 1
    }

    pub fn wait(&mut self, start: usize) {
        self.0.push(Op::Await(start));
    }

    pub fn run(&mut self, kind: RunKind, micro_batch: usize, segment: usize, calls: &[Called]) {
        self.0.push(Op::Run { kind, micro_batch, segment });
        self.0.extend(calls.iter().cloned().map(Op::Call));
    }
}
