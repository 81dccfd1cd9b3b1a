//! What all clones of a group share: the transport, the thread that drives the rank and the queue of started calls.

use std::sync::{Arc, OnceLock};
use std::thread;

use super::driver::Driver;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::pending::{Helper, Helpers, Pending};
use crate::transport::Transport;

/// One transport, used by one thread, in one total order of calls.
pub(super) struct Communicator {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) helpers: Helpers,
    pub(super) driver: Driver,
    helper: OnceLock<Helper>,
}

impl Communicator {
    pub(super) fn new(transport: Arc<dyn Transport>, helpers: Helpers, driver: Driver) -> Self {
        Self { transport, helpers, driver, helper: OnceLock::new() }
    }

    /// Makes the calling thread the driver of the rank, if there is none yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when another thread is: two threads could not keep the order that peers expect.
    fn enter(&self) -> Result<()> {
        if self.driver.enter() {
            return Ok(());
        }
        let transport = &self.transport;
        Err(Error::invalid(format!(
            "group `{}` of {} was called from thread `{}`, but another thread was the first to use a group of this \
             rank; use all groups of a rank from one thread",
            transport.name(),
            transport.members()[transport.member()],
            thread::current().name().unwrap_or("unnamed")
        )))
    }

    /// Runs a call after all started ones.
    pub(super) fn run(&self, call: Call, buffer: Buffer) -> Result<Buffer> {
        self.enter()?;
        // What may panic comes before the number: peers wait for whoever has taken one.
        let buffer = buffer.contiguous();
        let call = self.number(call);
        match self.busy_helper() {
            Some(helper) => helper.submit(call, buffer).wait(),
            None => self.transport.run(call, buffer),
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
        let buffer = buffer.contiguous();
        Ok(Pending::running(helper.submit(self.number(call), buffer), finish))
    }

    /// Divides the group, after all started calls.
    pub(super) fn split(
        &self,
        divide: impl FnOnce(&dyn Transport, u64) -> Result<Arc<dyn Transport>>,
    ) -> Result<Arc<dyn Transport>> {
        self.enter()?;
        let sequence = self.transport.reserve();
        if let Some(helper) = self.busy_helper() {
            self.transport.sleep(Operation::Split, sequence, &mut || helper.drain());
        }
        divide(&*self.transport, sequence)
    }

    fn busy_helper(&self) -> Option<&Helper> {
        self.helper.get().filter(|helper| !helper.is_idle())
    }

    fn number(&self, call: Call) -> Call {
        Call { sequence: self.transport.reserve(), ..call }
    }
}
