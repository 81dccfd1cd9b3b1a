//! What all clones of a group share: the transport, the thread that owns it and its queue of started calls.

use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::Call;
use crate::pending::{Helper, Helpers, Pending};
use crate::transport::Transport;

/// One transport, used by one thread, in one total order of calls.
pub(super) struct Communicator {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) helpers: Helpers,
    owner: OnceLock<ThreadId>,
    helper: OnceLock<Helper>,
}

impl Communicator {
    pub(super) fn new(transport: Arc<dyn Transport>, helpers: Helpers) -> Self {
        Self { transport, helpers, owner: OnceLock::new(), helper: OnceLock::new() }
    }

    /// Makes the calling thread the owner, if there is none yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when another thread is the owner: two threads could not keep the order that peers expect.
    pub(super) fn enter(&self) -> Result<()> {
        let here = thread::current().id();
        if *self.owner.get_or_init(|| here) == here {
            return Ok(());
        }
        let message = format!(
            "group `{}` was first used by another thread than `{}`; use a group from one thread, or split() one for each",
            self.transport.name(),
            thread::current().name().unwrap_or("unnamed")
        );
        Err(Error::Invalid { message })
    }

    /// Runs a call after all started ones.
    pub(super) fn run(&self, call: Call, buffer: Buffer) -> Result<Buffer> {
        self.enter()?;
        match self.helper.get().filter(|helper| !helper.is_idle()) {
            Some(helper) => helper.submit(self.number(call), buffer.contiguous()).wait(),
            None => self.transport.run(self.number(call), buffer),
        }
    }

    /// Queues a call behind the started ones.
    pub(super) fn start<T>(
        &self,
        call: Call,
        buffer: Buffer,
        finish: impl FnOnce(Buffer) -> T + Send + 'static,
    ) -> Result<Pending<T>> {
        self.enter()?;
        let helper = match self.helper.get() {
            Some(helper) => helper,
            None => {
                let helper = Helper::spawn(self.transport.clone(), self.helpers.clone())?;
                self.helper.get_or_init(|| helper)
            }
        };
        Ok(Pending::running(helper.submit(self.number(call), buffer.contiguous()), finish))
    }

    /// Divides the group, after all started calls.
    pub(super) fn split(
        &self,
        divide: impl FnOnce(&dyn Transport) -> Result<Arc<dyn Transport>>,
    ) -> Result<Arc<dyn Transport>> {
        self.enter()?;
        if let Some(helper) = self.helper.get() {
            helper.drain();
        }
        divide(&*self.transport)
    }

    fn number(&self, call: Call) -> Call {
        Call { sequence: self.transport.reserve(), ..call }
    }
}
