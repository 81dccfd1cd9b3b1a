//! A record of who did what when.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use burn::tensor::{DType, Shape};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::Transport;

/// A shared list of [`Event`]s: collectives, recorded by a traced group, and free marks.
///
/// A clone records into the same list. See [`ProcessGroup::traced`](crate::ProcessGroup::traced).
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Vec<Event>>>);

/// Something one rank did.
#[derive(Clone, Debug)]
pub struct Event {
    /// Who.
    pub rank: Rank,
    /// What.
    pub kind: EventKind,
    /// When it began: for a started collective, when the group's helper thread took it up.
    pub begin: Instant,
    /// When it ended, well or not.
    pub end: Instant,
}

/// What an [`Event`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A collective.
    Collective {
        /// The name of the group.
        group: String,
        /// The number of the call in the group, from 1.
        sequence: u64,
        /// The collective.
        operation: Operation,
        /// The element type.
        dtype: DType,
        /// The shape of this rank's tensor.
        shape: Shape,
    },
    /// A mark, written by the program.
    Mark(String),
}

impl Trace {
    /// An empty trace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that `rank` is at `what` now.
    pub fn mark(&self, rank: Rank, what: &str) {
        let now = Instant::now();
        self.push(Event { rank, kind: EventKind::Mark(what.to_string()), begin: now, end: now });
    }

    /// What was recorded so far, in the order in which it ended.
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

/// A transport that records every call of another one.
#[derive(Debug)]
pub(crate) struct Traced {
    inner: Arc<dyn Transport>,
    trace: Trace,
}

impl Traced {
    pub(crate) fn new(inner: Arc<dyn Transport>, trace: Trace) -> Self {
        Self { inner, trace }
    }
}

impl Transport for Traced {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn member(&self) -> usize {
        self.inner.member()
    }

    fn members(&self) -> &[Rank] {
        self.inner.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.inner.reserve(operation)
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        let kind = EventKind::Collective {
            group: self.name().to_string(),
            sequence: call.sequence,
            operation: call.operation,
            dtype: call.dtype,
            shape: call.shape.clone(),
        };
        let begin = Instant::now();
        let result = self.inner.run(call, buffer);
        self.trace.push(Event { rank: self.members()[self.member()], kind, begin, end: Instant::now() });
        result
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let inner = self.inner.split(sequence, name, color, key)?;
        Ok(Arc::new(Self::new(inner, self.trace.clone())))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let inner = self.inner.split_by(sequence, name, wishes)?;
        Ok(Arc::new(Self::new(inner, self.trace.clone())))
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(Self::new(self.inner.link(from, to)?, self.trace.clone())))
    }

    fn lanes(&self) -> usize {
        self.inner.lanes()
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.inner.sleep(operation, sequence, sleep);
    }

    fn abort(&self, cause: &Error) {
        self.inner.abort(cause);
    }
}
