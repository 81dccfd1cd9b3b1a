//! A thread that runs started calls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use super::ticket::Ticket;
use crate::buffer::Buffer;
use crate::error::{Error, Result, catch};
use crate::log::{Log, LogMark};
use crate::operation::Call;
use crate::transport::Transport;

struct Job {
    call: Box<Call>,
    buffer: Buffer,
    mark: LogMark,
    ticket: Ticket,
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
        let work = move || {
            for Job { call, buffer, mark, ticket } in queue {
                let carrier = ticket.transport();
                log.begin(mark);
                let result = catch(|| carrier.run(call, buffer)).unwrap_or_else(Err);
                log.end(mark);
                if let Err(error) = &result {
                    // The caller learns of it at `wait`, which may be late, or never come.
                    carrier.abort(error);
                }
                // Before the ticket is filled: the caller's next call may then run on its own thread.
                ended.fetch_sub(1, Ordering::Release);
                all.0.outstanding.fetch_sub(1, Ordering::Release);
                ticket.fill(result);
            }
        };
        let thread = Builder::new().name(name.clone()).spawn(work).map_err(|error| {
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

    /// Queues a call over `transport`.
    pub(crate) fn submit(
        &self,
        transport: Arc<dyn Transport>,
        call: Box<Call>,
        buffer: Buffer,
        mark: LogMark,
    ) -> Ticket {
        let ticket = Ticket::new(transport, &call);
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        self.helpers.0.outstanding.fetch_add(1, Ordering::Relaxed);
        let jobs = self.jobs.as_ref().expect("a helper has its queue until it is dropped");
        if jobs.send(Job { call, buffer, mark, ticket: ticket.clone() }).is_err() {
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
