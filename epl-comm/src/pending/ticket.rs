//! The result of a call on its way from the helper thread to the caller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::Operation;
use crate::transport::Transport;

/// How often the caller looks before it goes to sleep: a few microseconds.
const LOOKS: usize = 200;

/// A place for one result. The caller holds one clone, the job another.
#[derive(Clone)]
pub(crate) struct Ticket(Arc<Completion>);

struct Completion {
    /// What the caller waits in, and for which call.
    transport: Arc<dyn Transport>,
    operation: Operation,
    sequence: u64,
    /// The rank's.
    thread: ThreadId,
    result: Mutex<Option<Result<Landed>>>,
    filled: Condvar,
    is_done: AtomicBool,
}

/// What a call comes to.
pub(crate) enum Landed {
    Ready(Buffer),
    /// The call goes on behind; the rank's own thread makes the result.
    Behind(Box<dyn FnOnce() -> Result<Buffer> + Send>),
}

impl Ticket {
    pub(super) fn new(transport: Arc<dyn Transport>, operation: Operation, sequence: u64) -> Self {
        let (result, filled, is_done) = Default::default();
        let thread = thread::current().id();
        Self(Arc::new(Completion { transport, operation, sequence, thread, result, filled, is_done }))
    }

    /// What runs the call.
    pub(super) fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    pub(crate) fn fill(&self, result: Result<Landed>) {
        *self.0.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.0.is_done.store(true, Ordering::Release);
        self.0.filled.notify_all();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.is_done.load(Ordering::Acquire)
    }

    pub(crate) fn wait(self) -> Result<Buffer> {
        for _ in 0..LOOKS {
            if self.is_done() {
                return self.take();
            }
            core::hint::spin_loop();
        }
        let place = &*self.0;
        place.transport.sleep(place.operation, place.sequence, &mut || self.sleep());
        self.take()
    }

    fn sleep(&self) {
        let mut result = self.0.result.lock().unwrap_or_else(PoisonError::into_inner);
        while result.is_none() {
            result = self.0.filled.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn take(&self) -> Result<Buffer> {
        let result = self.0.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        match result.expect("a ticket is waited for once, after it was filled")? {
            Landed::Ready(buffer) => Ok(buffer),
            Landed::Behind(land) if thread::current().id() == self.0.thread => land(),
            Landed::Behind(_) => Err(self.elsewhere()),
        }
    }

    /// On another thread's stream the result would be used before it is there.
    fn elsewhere(&self) -> Error {
        let Completion { transport, operation, sequence, .. } = &*self.0;
        let error = Error::invalid(format!(
            "{operation}, call {sequence} of group `{}`, was waited for on thread `{}`, whose work on the device does not \
             come behind it; wait on the thread that started it",
            transport.name(),
            thread::current().name().unwrap_or("unnamed")
        ));
        transport.abort(&error);
        error
    }
}
