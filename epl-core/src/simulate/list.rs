//! The list of a step while it grows.

use std::sync::Arc;

use burn::tensor::DType;
use epl_comm::Operation;
use rustc_hash::FxHashMap;

use super::call::{Called, Members};

/// One thing that a rank does. The lists of a step of many stages have millions together, so that its numbers have 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A segment runs for one micro-batch.
    Run {
        /// Which way.
        kind: RunKind,
        /// The micro-batch.
        micro_batch: u32,
        /// The segment.
        segment: u32,
    },
    /// The rank takes part in a collective, and waits for it.
    Call(Arc<Called>),
    /// A collective is started, and goes on beside the rank.
    Start(Purpose, Arc<Called>),
    /// The rank waits for what was started at this place of the list.
    Await(u32),
    /// The rank takes its share of the norm of all gradients.
    Norm,
    /// The optimizer updates what this rank updates of a unit; none: all that lies in the model.
    Update(Option<u32>),
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Op>() == 16);

/// A number as an operation has it.
pub(super) fn short(number: usize) -> u32 {
    u32::try_from(number).expect("a step has fewer than 2³² operations")
}

/// What a started collective is for. Units and buckets have the numbers of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To reduce the gradients of a bucket.
    Bucket(u32),
    /// The same, by the rows that are not zero: two collectives.
    Rows(u32),
    /// To gather the parameters of a unit.
    Unit(u32),
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
pub(super) struct OpList {
    pub list: Vec<Op>,
    /// Each micro-batch makes the same few calls.
    known: FxHashMap<Called, Arc<Called>>,
}

impl OpList {
    /// An empty one with room for so many.
    pub fn with_room(count: usize) -> Self {
        Self { list: Vec::with_capacity(count), known: FxHashMap::default() }
    }

    /// A call that equal ones have in common.
    pub fn known(&mut self, call: Called) -> Arc<Called> {
        if let Some(known) = self.known.get(&call) {
            return known.clone();
        }
        let known = Arc::new(call.clone());
        self.known.insert(call, known.clone());
        known
    }

    pub fn call(&mut self, over: Members, operation: Operation, dtype: DType, elements: usize) {
        let call = self.known(Called { over, operation, dtype, elements });
        self.call_known(call);
    }

    /// One that is [known](Self::known).
    pub fn call_known(&mut self, call: Arc<Called>) {
        self.list.push(Op::Call(call));
    }

    /// Returns its place, to be waited for.
    pub fn start(&mut self, purpose: Purpose, call: Called) -> usize {
        let call = self.known(call);
        self.start_known(purpose, call)
    }

    /// The same of a call that is [known](Self::known).
    pub fn start_known(&mut self, purpose: Purpose, call: Arc<Called>) -> usize {
        self.list.push(Op::Start(purpose, call));
        self.list.len() - 1
    }

    pub fn wait(&mut self, start: usize) {
        self.list.push(Op::Await(short(start)));
    }

    pub fn run(&mut self, kind: RunKind, micro_batch: usize, segment: usize, calls: &[Called]) {
        self.list.push(Op::Run { kind, micro_batch: short(micro_batch), segment: short(segment) });
        for call in calls {
            let call = self.known(call.clone());
            self.call_known(call);
        }
    }
}
