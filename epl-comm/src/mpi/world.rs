//! What all ranks of one process share in one run: the space of messages, who has ended, the first failure.

use core::ffi::c_int;
use core::fmt;
use core::ops::Range;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use super::library::{Comm, Place, Request};
use super::message::Control;
use super::tags::Tags;
use super::waits::{CallKey, Channel, ProcessWaits};
use crate::host::arena::Arena;
use crate::host::failure::Failure;
use crate::host::watchdog::{ControlPlane, Options, Watchdog};
use crate::local::Inside;
use crate::pending::Helpers;
use crate::process_group::RankState;
use crate::rank::Rank;

/// Who waits inside a process waits so much longer, and a quarter, than who waits for another process, as he may wait
/// for that one.
const INSIDE_LATER: Duration = Duration::from_secs(5);

/// The time limit inside a process.
fn later(limit: Duration) -> Duration {
    limit.saturating_add(limit / 4).saturating_add(INSIDE_LATER)
}

/// The ranks of one run, seen by one process.
pub(super) struct MpiWorld {
    pub(super) place: Place,
    /// The host of each process.
    hosts: Vec<usize>,
    /// Ranks in each process.
    pub(super) threads: usize,
    pub(super) lanes: usize,
    /// Whether more threads wait than there are cores.
    pub(super) is_crowded: bool,
    /// Where the messages of calls travel.
    pub(super) data: Comm,
    /// Where the processes tell each other what goes on.
    pub(super) control: Comm,
    pub(super) tags: Tags,
    pub(super) waits: ProcessWaits,
    pub(super) arena: Arc<Arena>,
    pub(super) watchdog: Watchdog,
    /// The groups that lie in this process.
    pub(super) inside: Inside,
    /// Of all ranks.
    rank_states: Box<[RankState]>,
    /// Of the ranks of this process.
    pub(super) helpers: Box<[Helpers]>,
    /// For each rank of this process the least number that no group has in which it is, or was.
    groups: Box<[AtomicU64]>,
    /// Ranks that begin no further call, with the last numbers they took.
    ended: Mutex<HashMap<Rank, HashMap<Channel, u64>>>,
    /// Whether no rank of a process runs any more.
    done: Box<[AtomicBool]>,
    /// Control messages on their way.
    outbox: Mutex<Vec<(Vec<u8>, Request)>>,
}

/// Whether a rank still comes to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It has not ended, or has taken part.
    ToCome,
    /// It has ended without.
    Never,
    /// It has ended, and had dropped the group before, or never had it: it may have taken part, and what it sent be on its way.
    PerhapsOnTheWay,
}

impl ControlPlane for MpiWorld {
    fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }

    fn tell_failure(&self, failure: &Failure) {
        self.tell_all(Control::Fail(failure.clone()));
    }

    fn tell_end(&self, rank: Rank) {
        let counts = self.waits.counts(rank);
        self.tell_all(Control::End { rank, counts: counts.clone() });
        self.has_ended(rank, counts);
        self.inside.end(rank);
    }

    fn wake(&self, failure: &Failure) {
        self.inside.fail(failure.rank, &failure.to_error("the run".to_string()));
    }
}

impl MpiWorld {
    pub(super) fn new(
        (place, hosts): (Place, Vec<usize>),
        threads: usize,
        lanes: usize,
        [data, control]: [Comm; 2],
        tags: Tags,
        options: Options,
    ) -> Arc<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let is_crowded = place.locals * threads > cores;
        let helpers: Box<[Helpers]> = (0..threads).map(|_| Helpers::default()).collect();
        // Those of other processes are not used.
        let rank_state = |rank: usize| {
            let is_own = rank / threads == place.process;
            if is_own { RankState::new(helpers[rank % threads].clone()) } else { RankState::default() }
        };
        let rank_states: Box<[RankState]> = (0..place.processes * threads).map(rank_state).collect();
        let inside_limit = options.time_limit.map(later);
        Arc::new_cyclic(|world: &Weak<Self>| Self {
            inside: {
                let world = world.clone();
                Inside::new(rank_states.clone(), is_crowded, lanes, inside_limit, move |rank, error| {
                    if let Some(world) = world.upgrade() {
                        world.record(Failure::heard(error, rank));
                    }
                })
            },
            place,
            hosts,
            threads,
            lanes,
            is_crowded,
            data,
            control,
            tags,
            waits: ProcessWaits::default(),
            arena: Arc::default(),
            watchdog: Watchdog::new(options),
            rank_states,
            helpers,
            groups: (0..threads).map(|_| AtomicU64::new(1)).collect(),
            ended: Mutex::default(),
            done: (0..place.processes).map(|_| AtomicBool::new(false)).collect(),
            outbox: Mutex::default(),
        })
    }

    /// How many ranks there are in all processes.
    pub(super) fn ranks(&self) -> usize {
        self.place.processes * self.threads
    }

    /// Whether a rank of this process has started no call that is not over.
    pub(super) fn is_idle(&self, rank: Rank) -> bool {
        self.helpers[self.thread(rank)].are_idle()
    }

    /// The ranks of this process.
    pub(super) fn own(&self) -> Range<usize> {
        let first = self.place.process * self.threads;
        first..first + self.threads
    }

    /// The process that a rank is a thread of.
    pub(super) fn process(&self, rank: Rank) -> usize {
        rank.0 / self.threads
    }

    /// The host of each rank.
    pub(super) fn hosts(&self) -> Box<[usize]> {
        (0..self.ranks()).map(|rank| self.hosts[self.process(Rank(rank))]).collect()
    }

    fn thread(&self, rank: Rank) -> usize {
        rank.0 % self.threads
    }

    /// What the groups of a rank of this process share.
    pub(super) fn rank_state(&self, rank: Rank) -> &RankState {
        &self.rank_states[rank.0]
    }

    /// The least number that a new group of this rank of this process may have: those of its groups differ.
    pub(super) fn free_group(&self, rank: Rank) -> u64 {
        self.groups[self.thread(rank)].load(Ordering::Relaxed)
    }

    /// Records that a rank of this process is in a group of this number.
    pub(super) fn take_group(&self, rank: Rank, number: u64) {
        self.groups[self.thread(rank)].fetch_max(number + 1, Ordering::Relaxed);
    }

    /// The tag of messages from one rank to another in a group or link.
    pub(super) fn tag(&self, channel: u64, from: Rank, to: Rank) -> c_int {
        self.tags.tag(channel, self.thread(from), self.thread(to))
    }

    /// Records that a rank begins no further call, with the last number it took in each of its groups.
    pub(super) fn has_ended(&self, rank: Rank, counts: Vec<(Channel, u64)>) {
        self.ended().insert(rank, counts.into_iter().collect());
    }

    /// Records that no rank of another process runs any more.
    pub(super) fn is_done(&self, process: usize) {
        self.done[process].store(true, Ordering::Release);
    }

    /// Of each other process that is not done, the first rank that has not ended; the first of all when they have.
    pub(super) fn running(&self) -> Vec<Rank> {
        let ended = self.ended();
        let runs = |process: &usize| *process != self.place.process && !self.done[*process].load(Ordering::Acquire);
        let first = |process: usize| {
            let mut ranks = (process * self.threads..(process + 1) * self.threads).map(Rank);
            ranks.find(|rank| !ended.contains_key(rank)).unwrap_or(Rank(process * self.threads))
        };
        (0..self.place.processes).filter(runs).map(first).collect()
    }

    /// Whether a rank can still take part in a call.
    pub(super) fn arrival_of(&self, rank: Rank, call: CallKey) -> Arrival {
        match self.ended().get(&rank).map(|counts| counts.get(&call.channel)) {
            Some(Some(taken)) if *taken < call.sequence => Arrival::Never,
            Some(None) => Arrival::PerhapsOnTheWay,
            _ => Arrival::ToCome,
        }
    }

    fn ended(&self) -> MutexGuard<'_, HashMap<Rank, HashMap<Channel, u64>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a control message to all other processes.
    pub(super) fn tell_all(&self, control: Control) {
        let (bytes, others) =
            (control.encode(), (0..self.place.processes).filter(|other| *other != self.place.process));
        others.for_each(|process| self.send(process, bytes.clone()));
    }

    /// Sends a control message. It is never waited for.
    pub(super) fn tell(&self, process: usize, control: Control) {
        self.send(process, control.encode());
    }

    fn send(&self, process: usize, bytes: Vec<u8>) {
        // SAFETY: the bytes lie where they are, on the heap, in the outbox, until the request is over.
        let request = unsafe { self.control.send(bytes.as_ptr(), bytes.len(), process, 0) };
        // What cannot be told is found by others when their time is up.
        if let Ok(request) = request {
            self.outbox().push((bytes, request));
        }
    }

    /// Forgets what has been sent; whether that is all.
    pub(super) fn sweep(&self) -> bool {
        let mut outbox = self.outbox();
        outbox.retain_mut(|(_, request)| !request.test().unwrap_or(false));
        outbox.is_empty()
    }

    fn outbox(&self) -> MutexGuard<'_, Vec<(Vec<u8>, Request)>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MpiWorld {
    fn drop(&mut self) {
        // The library may still read what has not been sent.
        core::mem::forget(core::mem::take(&mut *self.outbox()));
    }
}

impl fmt::Debug for MpiWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, threads, watchdog, .. } = self;
        f.debug_struct("MpiWorld")
            .field("place", place)
            .field("threads", threads)
            .field("watchdog", watchdog)
            .finish_non_exhaustive()
    }
}
