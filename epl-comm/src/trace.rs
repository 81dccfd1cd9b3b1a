//! A record of who did what when, and of how much there was of something.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::tensor::{DType, Shape};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Launched, Staged, Transport, Watch};

/// A shared list of [`Event`]s: collectives, recorded by a traced group, and what the program marks.
///
/// A clone records into the same list. See [`ProcessGroup::traced`](crate::ProcessGroup::traced).
///
/// ```
/// use epl_comm::{EventKind, Trace, testing::run_ranks};
///
/// let trace = Trace::new();
/// run_ranks(2, |group| group.traced(&trace).barrier().unwrap());
/// let events = trace.events();
/// assert!(events.len() == 2 && events.iter().all(|event| matches!(event.kind, EventKind::Collective { .. })));
/// ```
#[derive(Clone, Debug)]
pub struct Trace {
    record: Arc<Mutex<Record>>,
    is_on: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Record {
    events: Vec<Event>,
    names: BTreeMap<Rank, String>,
}

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
    /// A moment, marked by the program.
    Mark(String),
    /// What the program said that it does.
    Span(String),
    /// How much there is of something from now on, told by the program.
    Counter {
        /// Of what, and in which unit.
        name: String,
        /// By kinds, whose sum is all of it.
        amounts: Vec<(String, u64)>,
    },
}

/// Something that a rank does, until this is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Span {
    trace: Trace,
    rank: Rank,
    what: String,
    begin: Instant,
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

impl Trace {
    /// An empty trace, switched on.
    pub fn new() -> Self {
        Self { record: Arc::default(), is_on: Arc::new(AtomicBool::new(true)) }
    }

    /// One that records into the same list, and is switched on and off by itself, such as one rank's.
    pub fn with_own_switch(&self) -> Self {
        Self { record: self.record.clone(), is_on: Arc::new(AtomicBool::new(self.is_on())) }
    }

    /// Records what comes from now on, or does not.
    pub fn switch(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Whether it records.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Records that `rank` does `what` until the result is dropped; none where the trace is switched off.
    pub fn span(&self, rank: Rank, what: impl FnOnce() -> String) -> Option<Span> {
        self.is_on().then(|| Span { trace: self.clone(), rank, what: what(), begin: Instant::now() })
    }

    /// Records that `rank` is at `what` now.
    pub fn mark(&self, rank: Rank, what: &str) {
        let now = Instant::now();
        self.push(Event { rank, kind: EventKind::Mark(what.to_string()), begin: now, end: now });
    }

    /// Records how much there is of something at `rank` from now on, by kinds.
    pub fn count(&self, rank: Rank, name: &str, amounts: Vec<(String, u64)>) {
        let now = Instant::now();
        self.push(Event { rank, kind: EventKind::Counter { name: name.to_string(), amounts }, begin: now, end: now });
    }

    /// What was recorded so far, in the order in which it ended.
    pub fn events(&self) -> Vec<Event> {
        self.record().events.clone()
    }

    /// What is recorded while `f` runs, switched on for that time, and what `f` returned. It is not in the list: this is for a
    /// world of one thread, as one that is only thought of ([`dry`](crate::dry)).
    pub fn recorded<T>(&self, f: impl FnOnce() -> T) -> (T, Vec<Event>) {
        /// Puts back what was there, also when `f` unwinds.
        struct Before<'a>(&'a Trace, bool, Vec<Event>);
        impl Drop for Before<'_> {
            fn drop(&mut self) {
                self.0.switch(self.1);
                self.0.record().events = core::mem::take(&mut self.2);
            }
        }
        let before = Before(self, self.is_on(), core::mem::take(&mut self.record().events));
        self.switch(true);
        let value = f();
        let recorded = core::mem::take(&mut self.record().events);
        drop(before);
        (value, recorded)
    }

    /// Says what a rank is, for who reads the trace.
    pub fn name(&self, rank: Rank, name: impl Into<String>) {
        self.record().names.insert(rank, name.into());
    }

    /// What is said of the ranks.
    pub fn names(&self) -> BTreeMap<Rank, String> {
        self.record().names.clone()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        if self.is_on() {
            self.record().events.push(event);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let kind = EventKind::Span(core::mem::take(&mut self.what));
        self.trace.push(Event { rank: self.rank, kind, begin: self.begin, end: Instant::now() });
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

    fn event(&self, call: &Call) -> EventKind {
        EventKind::Collective {
            group: self.name().to_string(),
            sequence: call.sequence,
            operation: call.operation,
            dtype: call.dtype,
            shape: call.shape.clone(),
        }
    }

    fn push(&self, kind: EventKind, begin: Instant) {
        self.trace.push(Event { rank: self.members()[self.member()], kind, begin, end: Instant::now() });
    }

    /// A call that is recorded when it is over.
    fn watched(self: Arc<Self>, launched: Launched, kind: EventKind, begin: Instant) -> Launched {
        let Launched { land, watch } = launched;
        let Some(mut watch) = watch else {
            self.push(kind, begin);
            return Launched { land, watch: None };
        };
        let mut kind = Some(kind);
        let watch: Watch = Box::new(move || {
            let looked = watch();
            // When it has failed, too.
            if let Some(kind) = kind.take_if(|_| looked != Ok(false)) {
                self.push(kind, begin);
            }
            looked
        });
        Launched { land, watch: Some(watch) }
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

    fn reserve_stage(&self, whole: Operation, stage: Operation) -> u64 {
        self.inner.reserve_stage(whole, stage)
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        if !self.trace.is_on() {
            return self.inner.run(call, buffer);
        }
        let (kind, begin) = (self.event(&call), Instant::now());
        let result = self.inner.run(call, buffer);
        self.push(kind, begin);
        result
    }

    fn moves_rows(&self) -> bool {
        self.inner.moves_rows()
    }

    fn is_ordered(&self, buffer: &Buffer) -> bool {
        self.inner.is_ordered(buffer)
    }

    fn stage(self: Arc<Self>, call: Box<Call>, buffer: Buffer) -> Result<Staged> {
        let event = self.trace.is_on().then(|| self.event(&call));
        match self.inner.clone().stage(call, buffer)? {
            // Comes to `run`.
            Staged::Whole(call, buffer) => Ok(Staged::Whole(call, buffer)),
            Staged::Launch(launch) => Ok(Staged::Launch(Box::new(move || {
                let Some(event) = event else { return launch() };
                let begin = Instant::now();
                match launch() {
                    Ok(launched) => Ok(self.watched(launched, event, begin)),
                    Err(error) => {
                        self.push(event, begin);
                        Err(error)
                    }
                }
            }))),
        }
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

    fn is_dry(&self) -> bool {
        self.inner.is_dry()
    }

    fn warmed_up(&self) {
        self.inner.warmed_up();
    }

    fn trim(&self) {
        self.inner.trim();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.inner.sleep(operation, sequence, sleep);
    }

    fn abort(&self, cause: &Error) {
        self.inner.abort(cause);
    }
}
