//! One member's end of an NCCL communicator that does not block.
//!
//! Every call comes back at once, and goes on behind: NCCL is then asked again and again whether it is over. In between,
//! the caller looks whether the world has failed, so that nobody waits in NCCL for a member that never comes.

use core::cell::RefCell;
use core::ffi::c_int;
use core::ptr::null_mut;
use core::time::Duration;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use super::abi::{Config, IN_PROGRESS, NO_COLOR, RawComm, SUCCESS, Status, UniqueId};
use super::library::Library;
use crate::error::Result;
use crate::pending::Pause;

/// How long the last work of a communicator may take when it is given back.
const PARTING: Duration = Duration::from_secs(5);

/// Whether waiting still makes sense.
pub(super) type GoOn<'a> = dyn Fn() -> Result<()> + 'a;

/// A communicator. Dropped, it is given back once what was begun is over; [`abort`](Self::abort)ed, at once.
#[derive(Debug)]
pub(super) struct NcclCommunicator {
    library: Arc<Library>,
    raw: RawComm,
    /// Where a split that was given up writes a communicator, until this one is aborted.
    unfinished: RefCell<Option<CommSlot>>,
}

// SAFETY: NCCL's communicators may be used from any thread, by one at a time; what uses one borrows it, and the transport
// keeps it behind a lock.
unsafe impl Send for NcclCommunicator {}

impl NcclCommunicator {
    /// Meets the other members, who come with the same `id`.
    pub(super) fn join(
        library: &Arc<Library>,
        id: UniqueId,
        (size, member): (usize, usize),
        go_on: &GoOn<'_>,
    ) -> Result<Self> {
        let mut config = Config::not_blocking();
        let slot = CommSlot::new();
        // SAFETY: the slot is there to be written; the rest are values.
        let status = unsafe { (library.functions.comm_init)(slot.0, size as c_int, id, member as c_int, &mut config) };
        Self::made(library, slot, status, "ncclCommInitRankConfig", go_on)
    }

    fn of(library: &Arc<Library>, raw: RawComm) -> Self {
        Self { library: library.clone(), raw, unfinished: RefCell::default() }
    }

    /// The communicator in a slot, when it is ready.
    fn made(library: &Arc<Library>, slot: CommSlot, status: Status, what: &str, go_on: &GoOn<'_>) -> Result<Self> {
        let new = Self::of(library, slot.read());
        match new.settled(status, what, go_on) {
            Ok(()) => {
                slot.free();
                Ok(new)
            }
            Err(error) => {
                new.abort();
                Err(error)
            }
        }
    }

    /// Divides the communicator. Members with the same color form a new one, in the order of `key`; who has none is in
    /// no new one. All members call it.
    pub(super) fn split(&self, color: Option<usize>, key: usize, go_on: &GoOn<'_>) -> Result<Option<Self>> {
        let mut config = Config::not_blocking();
        let slot = CommSlot::new();
        let color_code = color.map_or(NO_COLOR, |color| color as c_int);
        // SAFETY: the communicator is alive; the slot is there to be written.
        let status =
            unsafe { (self.library.functions.comm_split)(self.raw, color_code, key as c_int, slot.0, &mut config) };
        if let Err(error) = self.settled(status, "ncclCommSplit", go_on) {
            self.unfinished.replace(Some(slot));
            return Err(error);
        }
        match color {
            Some(_) => Self::made(&self.library, slot, SUCCESS, "ncclCommSplit", go_on).map(Some),
            None => Ok(None),
        }
    }

    /// What holds for all calls that are put on a stream together.
    pub(super) fn group(&self, calls: impl FnOnce() -> Result<()>, go_on: &GoOn<'_>) -> Result<()> {
        // SAFETY: no arguments.
        let started = unsafe { (self.library.functions.group_start)() };
        self.library.check(started, "ncclGroupStart")?;
        let called = calls();
        // SAFETY: no arguments; also after a call failed, as what has begun must end.
        let status = unsafe { (self.library.functions.group_end)() };
        called?;
        self.settled(status, "ncclGroupEnd", go_on)
    }

    /// A fault that has come up since.
    pub(super) fn check(&self) -> Result<()> {
        match self.state()? {
            SUCCESS | IN_PROGRESS => Ok(()),
            status => Err(self.library.error(status, "the communicator")),
        }
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    pub(super) fn raw(&self) -> RawComm {
        self.raw
    }

    /// Ends all that is under way, and gives the communicator back.
    pub(super) fn abort(mut self) {
        self.end(true);
    }

    /// Waits until a call that gave `status` is over.
    fn settled(&self, status: Status, what: &str, go_on: &GoOn<'_>) -> Result<()> {
        if status != SUCCESS && status != IN_PROGRESS {
            return Err(self.library.error(status, what));
        }
        if self.raw.is_null() {
            return self.library.check(3, what);
        }
        let mut pause = Pause::default();
        loop {
            match self.state()? {
                SUCCESS => return Ok(()),
                IN_PROGRESS => go_on()?,
                status => return Err(self.library.error(status, what)),
            }
            pause.rest();
        }
    }

    fn state(&self) -> Result<Status> {
        let mut status = SUCCESS;
        // SAFETY: the communicator is alive; `status` is there to be written.
        let asked = unsafe { (self.library.functions.comm_async_error)(self.raw, &mut status) };
        self.library.check(asked, "ncclCommGetAsyncError")?;
        Ok(status)
    }

    fn end(&mut self, at_once: bool) {
        if self.raw.is_null() {
            return;
        }
        let is_over = if at_once || !self.finalized() {
            self.abort_within(PARTING)
        } else {
            // SAFETY: the communicator is alive, and nobody uses it any more.
            unsafe { (self.library.functions.comm_destroy)(self.raw) };
            true
        };
        self.raw = null_mut();
        // NCCL may have made it before the split was given up, or meanwhile.
        if let Some(slot) = self.unfinished.get_mut().take().filter(|_| is_over) {
            Self::of(&self.library, slot.read()).abort();
        }
    }

    /// Aborts on a thread of its own: in some versions, and with some faults, NCCL hangs in this, too. Returns whether it is over.
    fn abort_within(&self, limit: Duration) -> bool {
        let (library, raw) = (self.library.clone(), Given(self.raw));
        let (done, is_done) = channel();
        let abort = move || {
            let Given(raw) = { raw };
            // SAFETY: the communicator is alive, and nobody uses it any more.
            unsafe { (library.functions.comm_abort)(raw) };
            // Whoever has lost patience does not listen any more.
            let _ = done.send(());
        };
        let aborts = thread::Builder::new().name("NCCL abort".into()).spawn(abort);
        aborts.is_ok() && is_done.recv_timeout(limit).is_ok()
    }

    /// Whether all that was begun is over, as it should be.
    fn finalized(&self) -> bool {
        // SAFETY: the communicator is alive.
        let status = unsafe { (self.library.functions.comm_finalize)(self.raw) };
        let begun = Instant::now();
        let patience = || match begun.elapsed() < PARTING {
            true => Ok(()),
            false => self.library.check(IN_PROGRESS, "ncclCommFinalize"),
        };
        self.settled(status, "ncclCommFinalize", &patience).is_ok()
    }
}

/// A communicator that is given to another thread.
struct Given(RawComm);

// SAFETY: as for `NcclCommunicator`.
unsafe impl Send for Given {}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        self.end(thread::panicking());
    }
}

/// Where NCCL writes a new communicator, perhaps only while the call goes on behind: so it stays for ever where the call
/// did not come to its end.
#[derive(Debug)]
struct CommSlot(*mut RawComm);

impl CommSlot {
    fn new() -> Self {
        Self(Box::into_raw(Box::new(null_mut())))
    }

    fn read(&self) -> RawComm {
        // SAFETY: it was made by `new`, and is freed by value only. NCCL writes it before the call that is given it comes
        // back or is over, or before what it was called on is aborted, after which this is called.
        unsafe { self.0.read() }
    }

    fn free(self) {
        // SAFETY: it was made by `new`, and the call that writes it is over.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
