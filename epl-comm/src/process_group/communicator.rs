//! What all clones of a group share: the transport, the rank's state, the queue of started calls, the links.

use std::sync::{Arc, OnceLock};
use std::thread;

use super::rank_state::RankState;
use crate::buffer::Buffer;
use crate::call_hooks::hooked;
use crate::error::{Error, Result};
use crate::log::LogMark;
use crate::operation::{Call, Operation};
use crate::pending::{Helper, Pending, Ticket};
use crate::rank::Rank;
use crate::transport::{Links, Transport};

/// One transport, used by one thread, in one total order of calls.
pub(super) struct Communicator {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) rank_state: RankState,
    /// The group's name and its ranks, for the log.
    name: Arc<str>,
    members: Arc<[Rank]>,
    /// Made when it is first needed.
    helper: OnceLock<Helper>,
    /// The links of which this member is an end, by their members: made when they are first needed.
    links: Links<Communicator>,
}

impl Communicator {
    pub(super) fn new(transport: Arc<dyn Transport>, rank_state: RankState) -> Self {
        let (name, members) = (Arc::from(transport.name()), Arc::from(transport.members()));
        Self { transport, rank_state, name, members, helper: OnceLock::new(), links: Links::default() }
    }

    /// Makes the calling thread the owner of the rank, if there is none yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when another thread is: two threads could not keep the order that peers expect.
    fn enter(&self) -> Result<()> {
        if self.rank_state.owner.enter() {
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
    pub(super) fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        hooked(|| self.run_hooked(call, buffer))
    }

    fn run_hooked(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        self.enter()?;
        if !self.rank_state.recall.is_on() {
            return self.run_anew(call, buffer);
        }
        // Without its number, which the second run does not take.
        let told = format!("{call} of group `{}`", self.name);
        self.rank_state.recall.through(told, || self.run_anew(call, buffer))
    }

    fn run_anew(&self, mut call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        // What may panic comes before the number: peers wait for whoever has taken one.
        let buffer = buffer.contiguous();
        let helper = match self.transport.is_ordered(&buffer) {
            true => Some(self.helper()?),
            false => self.busy_helper(),
        };
        let mark = self.issue(&mut call, helper.is_none());
        match helper {
            Some(helper) => self.submit(helper, call, buffer, mark)?.wait(),
            None => {
                let result = self.transport.run(call, buffer);
                self.rank_state.log.end(mark);
                result
            }
        }
    }

    /// Queues a call behind the started ones.
    pub(super) fn start<T>(
        &self,
        call: Box<Call>,
        buffer: Buffer,
        finish: impl FnOnce(Buffer) -> T + Send + 'static,
    ) -> Result<Pending<T>> {
        hooked(|| self.start_hooked(call, buffer, finish))
    }

    fn start_hooked<T>(
        &self,
        mut call: Box<Call>,
        buffer: Buffer,
        finish: impl FnOnce(Buffer) -> T + Send + 'static,
    ) -> Result<Pending<T>> {
        if self.rank_state.recall.is_on() {
            // What is kept, or given again, is known at once.
            return Ok(Pending::from(finish(self.run_hooked(call, buffer)?)));
        }
        self.enter()?;
        let helper = self.helper()?;
        let buffer = buffer.contiguous();
        let mark = self.issue(&mut call, false);
        Ok(Pending::running(self.submit(helper, call, buffer, mark)?, finish))
    }

    /// Does this thread's part of a started call, and queues the rest.
    fn submit(&self, helper: &Helper, call: Box<Call>, buffer: Buffer, mark: LogMark) -> Result<Ticket> {
        let what = (call.operation, call.sequence);
        match self.transport.clone().stage(call, buffer) {
            Ok(staged) => Ok(helper.submit(self.transport.clone(), what, staged, mark)),
            Err(error) => {
                // It has a number, with which peers wait for it.
                self.transport.abort(&error);
                Err(error)
            }
        }
    }

    fn helper(&self) -> Result<&Helper> {
        if let Some(helper) = self.helper.get() {
            return Ok(helper);
        }
        let name = format!("{} of {}", self.name, self.transport.members()[self.transport.member()]);
        let helper = Helper::spawn(name, self.rank_state.helpers.clone(), self.rank_state.log.clone())?;
        Ok(self.helper.get_or_init(|| helper))
    }

    /// Divides the group, after all started calls.
    pub(super) fn split(
        &self,
        call: Call,
        divide: impl FnOnce(&dyn Transport, u64) -> Result<Arc<dyn Transport>>,
    ) -> Result<Arc<dyn Transport>> {
        hooked(|| self.split_hooked(call, divide))
    }

    fn split_hooked(
        &self,
        mut call: Call,
        divide: impl FnOnce(&dyn Transport, u64) -> Result<Arc<dyn Transport>>,
    ) -> Result<Arc<dyn Transport>> {
        self.enter()?;
        let mark = self.issue(&mut call, false);
        if let Some(helper) = self.busy_helper() {
            self.transport.sleep(Operation::Split, call.sequence, &mut || helper.drain());
        }
        self.rank_state.log.begin(mark);
        let result = divide(&*self.transport, call.sequence);
        self.rank_state.log.end(mark);
        result
    }

    /// The way from one member to another, of which this one is an end.
    pub(super) fn link(&self, from: usize, to: usize) -> Result<Arc<Self>> {
        let link = || Ok(Arc::new(Self::new(self.transport.link(from, to)?, self.rank_state.clone())));
        self.links.get(from, to, link)
    }

    fn busy_helper(&self) -> Option<&Helper> {
        self.helper.get().filter(|helper| !helper.is_idle())
    }

    /// Takes the number of a call and logs it; `begun`: that it goes out at once.
    fn issue(&self, call: &mut Call, begun: bool) -> LogMark {
        call.sequence = self.transport.reserve(call.operation);
        self.rank_state.log.issue((&self.name, &self.members), call, begun)
    }
}
