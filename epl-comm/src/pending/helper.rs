//! A thread that runs started calls.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use super::ticket::{Landed, Ticket};
use crate::error::{Error, Result, catch};
use crate::log::{Log, LogMark};
use crate::operation::Operation;
use crate::transport::{Launched, Staged, Transport, Watch};

struct Job {
    staged: Staged,
    mark: LogMark,
    ticket: Ticket,
}

/// What a helper has begun and looks after.
struct WorkQueue {
    outstanding: Arc<AtomicUsize>,
    helpers: Helpers,
    log: Log,
    /// Calls that go on behind, the oldest first.
    watched: VecDeque<(Watch, LogMark, Ticket)>,
}

impl WorkQueue {
    /// Runs what comes until nothing more does, and looks after what goes on behind.
    fn run(mut self, queue: &Receiver<Job>) {
        let mut pause = Pause::default();
        loop {
            let next = match self.watched.is_empty() {
                true => queue.recv().map_err(|_| TryRecvError::Disconnected),
                false => queue.try_recv(),
            };
            match next {
                Ok(job) => self.begin(job),
                Err(TryRecvError::Disconnected) if self.watched.is_empty() => return,
                Err(_) if self.look() => pause = Pause::default(),
                Err(_) => pause.rest(),
            }
        }
    }

    fn begin(&mut self, Job { staged, mark, ticket }: Job) {
        self.log.begin(mark);
        let begun = catch(|| match staged {
            Staged::Whole(call, buffer) => {
                ticket.transport().run(call, buffer).map(|result| (Landed::Ready(result), None))
            }
            Staged::Launch(launch) => launch().map(|Launched { land, watch }| (Landed::Behind(land), watch)),
        });
        match begun.unwrap_or_else(Err) {
            Ok((landed, Some(watch))) => {
                ticket.fill(Ok(landed));
                self.watched.push_back((watch, mark, ticket));
            }
            Ok((landed, None)) => {
                self.end(mark);
                ticket.fill(Ok(landed));
            }
            Err(error) => {
                self.end(mark);
                self.failed(&ticket, &error);
                ticket.fill(Err(error));
            }
        }
    }

    /// Looks at the oldest call that goes on behind; whether it is over.
    fn look(&mut self) -> bool {
        let Some((mut watch, mark, ticket)) = self.watched.pop_front() else { return false };
        match catch(&mut watch).unwrap_or_else(Err) {
            Ok(false) => {
                self.watched.push_front((watch, mark, ticket));
                return false;
            }
            Ok(true) => {}
            Err(error) => self.failed(&ticket, &error),
        }
        // What it holds goes first: whoever sees that nothing is outstanding finds it gone.
        drop(watch);
        self.end(mark);
        true
    }

    /// The caller learns of it at `wait` or in its next call, which may be late, or never come.
    fn failed(&self, ticket: &Ticket, error: &Error) {
        ticket.transport().abort(error);
    }

    /// Before the ticket is filled: the caller's next call may then run on its own thread.
    fn end(&self, mark: LogMark) {
        self.log.end(mark);
        self.outstanding.fetch_sub(1, Ordering::Release);
        self.helpers.0.outstanding.fetch_sub(1, Ordering::Release);
    }
}

/// The time between two looks: none at first, then a little.
#[derive(Default)]
pub(crate) struct Pause {
    looks: u32,
}

impl Pause {
    pub(crate) fn rest(&mut self) {
        self.looks = self.looks.saturating_add(1);
        match self.looks {
            0..100 => core::hint::spin_loop(),
            100..1000 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// A queue of calls and the thread that runs them. Dropped, it runs what is queued, then ends.
pub(crate) struct Helper {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    outstanding: Arc<AtomicUsize>,
    helpers: Helpers,
}

/// All helpers of a world, to be ended by whoever launched the ranks.
///
/// A group cannot join its helper when it is dropped: the helper may wait for a peer that waits for this very thread,
/// and that is resolved only after the rank has been left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Helpers(Arc<All>);

#[derive(Debug, Default)]
struct All {
    /// Threads of dropped groups.
    retired: Mutex<Vec<JoinHandle<()>>>,
    /// Calls that are queued or running, of all groups.
    outstanding: AtomicUsize,
}

impl Helpers {
    /// Whether no call is queued or running.
    #[cfg(feature = "mpi")]
    pub(crate) fn are_idle(&self) -> bool {
        self.0.outstanding.load(Ordering::Acquire) == 0
    }

    /// Waits until no call is left, also of groups that outlive their ranks, whose calls fail now; then joins the
    /// helpers of all groups that have been dropped. To be called when all ranks have ended.
    pub(crate) fn join(&self) {
        while self.0.outstanding.load(Ordering::Acquire) > 0 {
            thread::sleep(Duration::from_micros(20));
        }
        let threads = core::mem::take(&mut *self.0.retired.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A helper catches what its jobs unwind with; nothing is left to report.
            let _ = thread.join();
        }
    }
}

impl Helper {
    /// Starts a thread of this name.
    pub(crate) fn spawn(name: String, helpers: Helpers, log: Log) -> Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let outstanding = Arc::new(AtomicUsize::new(0));
        let (ended, all) = (outstanding.clone(), helpers.clone());
        let work = WorkQueue { outstanding: ended, helpers: all, log, watched: VecDeque::new() };
        let thread = Builder::new().name(name.clone()).spawn(move || work.run(&queue)).map_err(|error| {
            Error::invalid(format!(
                "cannot start the helper thread `{name}`: {error}; start collectives on fewer groups, or allow the \
                 process more threads"
            ))
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), outstanding, helpers })
    }

    /// Whether no call is queued or running.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0
    }

    /// Waits until no call is queued or running.
    pub(crate) fn drain(&self) {
        while !self.is_idle() {
            thread::sleep(Duration::from_micros(20));
        }
    }

    /// Queues what is left of a call over `transport`.
    pub(crate) fn submit(
        &self,
        transport: Arc<dyn Transport>,
        (operation, sequence): (Operation, u64),
        staged: Staged,
        mark: LogMark,
    ) -> Ticket {
        let ticket = Ticket::new(transport, operation, sequence);
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        self.helpers.0.outstanding.fetch_add(1, Ordering::Relaxed);
        let jobs = self.jobs.as_ref().expect("a helper has its queue until it is dropped");
        if jobs.send(Job { staged, mark, ticket: ticket.clone() }).is_err() {
            unreachable!("a helper ends only after its queue was closed");
        }
        ticket
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let mut retired = self.helpers.0.retired.lock().unwrap_or_else(PoisonError::into_inner);
            // A world may make and drop many groups.
            retired.retain(|thread| !thread.is_finished());
            retired.push(thread);
        }
    }
}
