//! A record of who did what when, and of how much there was of something.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::tensor::{DType, Shape};

use crate::operation::Operation;
use crate::rank::Rank;

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
    /// None: nothing is kept.
    record: Option<Arc<Mutex<Record>>>,
    switch: Arc<Switch>,
}

#[derive(Debug, Default)]
struct Record {
    events: Vec<Event>,
    names: BTreeMap<Rank, String>,
}

/// What of the events of a trace, or of one rank's, is recorded now.
#[derive(Debug)]
struct Switch {
    is_on: AtomicBool,
    /// Whether there are watches.
    is_watched: AtomicBool,
    watches: Mutex<Vec<Noted>>,
}

/// The events of one watch.
type Noted = Arc<Mutex<Vec<Event>>>;

impl Switch {
    fn new(is_on: bool) -> Arc<Self> {
        Arc::new(Self { is_on: is_on.into(), is_watched: false.into(), watches: Mutex::default() })
    }

    /// Changes the list of watches.
    fn change(&self, change: impl FnOnce(&mut Vec<Noted>)) {
        let mut watches = locked(&self.watches);
        change(&mut watches);
        self.is_watched.store(!watches.is_empty(), Ordering::Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has events noted beside the list of their [`Trace`], until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct TraceWatch {
    switch: Arc<Switch>,
    noted: Noted,
}

impl TraceWatch {
    /// What was recorded meanwhile, in the order in which it ended.
    pub fn events(self) -> Vec<Event> {
        core::mem::take(&mut locked(&self.noted))
    }
}

impl Drop for TraceWatch {
    fn drop(&mut self) {
        self.switch.change(|watches| watches.retain(|noted| !Arc::ptr_eq(noted, &self.noted)));
    }
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
        Self { record: Some(Arc::default()), switch: Switch::new(true) }
    }

    /// One that has no list, however it is switched, so that what nobody writes does not grow: it records only what is
    /// [watched](Self::watch).
    pub fn without_list() -> Self {
        Self { record: None, switch: Switch::new(false) }
    }

    /// One that records into the same list, and is switched on and off, and watched, by itself, such as one rank's.
    pub fn with_own_switch(&self) -> Self {
        Self { record: self.record.clone(), switch: Switch::new(self.switch.is_on.load(Ordering::Relaxed)) }
    }

    /// Records what comes from now on, or does not.
    pub fn switch(&self, on: bool) {
        self.switch.is_on.store(on, Ordering::Relaxed);
    }

    /// Whether it records, be it only for who watches.
    pub fn is_on(&self) -> bool {
        self.fills_list() || self.switch.is_watched.load(Ordering::Relaxed)
    }

    fn fills_list(&self) -> bool {
        self.record.is_some() && self.switch.is_on.load(Ordering::Relaxed)
    }

    /// Notes what comes from now on for the caller, also where the trace is switched off; the list, and other watches, have what
    /// they have without.
    ///
    /// ```
    /// use epl_comm::{Rank, Trace};
    ///
    /// let trace = Trace::new();
    /// trace.switch(false);
    /// let watch = trace.watch();
    /// trace.mark(Rank(0), "here");
    /// assert_eq!(watch.events().len(), 1);
    /// assert!(trace.events().is_empty() && !trace.is_on());
    /// ```
    pub fn watch(&self) -> TraceWatch {
        let watch = TraceWatch { switch: self.switch.clone(), noted: Noted::default() };
        self.switch.change(|watches| watches.push(watch.noted.clone()));
        watch
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
        self.record().map(|record| record.events.clone()).unwrap_or_default()
    }

    /// What is recorded while `f` runs, and what `f` returned. It is not in the list.
    pub fn recorded<T>(&self, f: impl FnOnce() -> T) -> (T, Vec<Event>) {
        /// Puts back what was there, also when `f` unwinds.
        struct Before<'a>(&'a Trace, bool);
        impl Drop for Before<'_> {
            fn drop(&mut self) {
                self.0.switch(self.1);
            }
        }
        let _before = Before(self, self.switch.is_on.swap(false, Ordering::Relaxed));
        let watch = self.watch();
        let value = f();
        (value, watch.events())
    }

    /// Says what a rank is, for who reads the trace.
    pub fn name(&self, rank: Rank, name: impl Into<String>) {
        if let Some(mut record) = self.record() {
            record.names.insert(rank, name.into());
        }
    }

    /// What is said of the ranks.
    pub fn names(&self) -> BTreeMap<Rank, String> {
        self.record().map(|record| record.names.clone()).unwrap_or_default()
    }

    fn record(&self) -> Option<MutexGuard<'_, Record>> {
        let record = self.record.as_ref()?;
        Some(locked(record))
    }

    pub(crate) fn push(&self, event: Event) {
        if self.switch.is_watched.load(Ordering::Relaxed) {
            locked(&self.switch.watches).iter().for_each(|noted| locked(noted).push(event.clone()));
        }
        if self.fills_list()
            && let Some(mut record) = self.record()
        {
            record.events.push(event);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let kind = EventKind::Span(core::mem::take(&mut self.what));
        self.trace.push(Event { rank: self.rank, kind, begin: self.begin, end: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: Rank = Rank(0);

    fn marks(events: &[Event]) -> Vec<EventKind> {
        events.iter().map(|event| event.kind.clone()).collect()
    }

    #[test]
    fn what_is_watched_is_noted_beside_the_list() {
        let mark = |what: &str| EventKind::Mark(what.to_string());
        let trace = Trace::new();
        let [own, other] = [(), ()].map(|()| trace.with_own_switch());
        let watch = own.watch();
        own.mark(RANK, "kept, too");
        other.mark(RANK, "of another rank");
        own.switch(false);
        own.mark(RANK, "watched alone");
        assert_eq!(marks(&watch.events()), [mark("kept, too"), mark("watched alone")]);
        own.mark(RANK, "nobody sees");
        assert_eq!(marks(&trace.events()), [mark("kept, too"), mark("of another rank")]);
        // What nobody has asked for is gone.
        drop(own.watch());
        assert!(!own.is_on() && own.watch().events().is_empty());
    }

    #[test]
    fn watches_do_not_disturb_each_other() {
        let trace = Trace::without_list();
        let [first, second] = [(), ()].map(|()| trace.watch());
        trace.mark(RANK, "seen by both");
        drop(first);
        let ((), recorded) = trace.recorded(|| trace.mark(RANK, "also recorded"));
        assert!(trace.is_on() && recorded.len() == 1);
        assert_eq!(second.events().len(), 2);
        assert!(!trace.is_on());
    }

    #[test]
    fn without_a_list_nothing_is_kept_and_nobody_has_a_name() {
        let trace = Trace::without_list();
        trace.switch(true);
        trace.name(RANK, "the first");
        trace.mark(RANK, "nobody sees");
        assert!(!trace.is_on() && trace.span(RANK, || "nobody sees".to_string()).is_none());
        let own = trace.with_own_switch();
        let ((), events) = own.recorded(|| own.mark(RANK, "seen"));
        assert_eq!(marks(&events), [EventKind::Mark("seen".to_string())]);
        assert!(trace.events().is_empty() && trace.names().is_empty());
    }
}
