//! What members say to each other beside the data: which call they make, that they failed, how they find each other.

use core::fmt::Debug;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::UniqueId;
use super::communicator::GoOn;
use super::launch_order::{Meetings, Turn};
use crate::error::{Error, Result};
use crate::local::LocalTransport;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::Transport;

/// One member's part of the control plane of one group.
pub(super) trait GroupControl: Debug + Send + Sync {
    fn name(&self) -> &str;

    fn member(&self) -> usize;

    fn members(&self) -> &[Rank];

    /// See [`Transport::reserve`].
    fn reserve(&self, operation: Operation) -> u64;

    /// Whether members meet at this call, and compare it, before it goes to the device; the same on all.
    fn meets(&self, call: &Call) -> bool;

    /// See [`Transport::warmed_up`].
    fn warmed_up(&self) {}

    /// Waits until all members have made this call, and compares them.
    fn agree(&self, call: &Call, go_on: &GoOn<'_>) -> Result<()>;

    /// Whether calls get their [`turn`](Self::turn)s where members meet; if not, each rank has its own order of calls.
    fn gives_turns(&self) -> bool {
        false
    }

    /// The turn of a call at which members have met, if it gets one there.
    fn turn(&self, _call: &Call) -> Option<Turn> {
        None
    }

    /// Divides the group. See [`Transport::split`].
    fn split(&self, sequence: u64, name: &str, wish: (usize, usize), go_on: &GoOn<'_>)
    -> Result<Arc<dyn GroupControl>>;

    /// See [`Transport::link`].
    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn GroupControl>>;

    /// The name of a communicator of the group, the same on all members.
    fn id(&self, make: &dyn Fn() -> Result<UniqueId>, go_on: &GoOn<'_>) -> Result<UniqueId>;

    /// All members have used the [`id`](Self::id).
    fn joined(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the world goes on; if not, what it failed with, as told to a member that has `waited` in `call`.
    fn go_on(&self, call: &Call, waited: Duration) -> Result<()>;

    /// The error of a call that has taken too long.
    fn overdue(&self, call: &Call, waited: Duration) -> Error {
        in_nccl(self.name(), call, waited)
    }

    /// Ends the world.
    fn fail(&self, error: &Error);

    /// See [`Transport::sleep`].
    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut());
}

/// All members have come to a call, which does not end.
pub(super) fn in_nccl(group: &str, call: &Call, waited: Duration) -> Error {
    Error::Engine {
        message: format!(
            "{call}, call {} of group `{group}`, has been in NCCL for {:.1} s; a rank's process or its network may be \
             gone, or another started call, which was made before it, waits for a rank: set NCCL_DEBUG=INFO to see, or set \
             a longer time limit if it only takes that long",
            call.sequence,
            waited.as_secs_f64()
        ),
    }
}

/// Members that are threads of this process: they meet on the boards of the local transport.
#[derive(Debug)]
pub(super) struct Threads {
    local: Arc<LocalTransport>,
    /// Which group it is, the same on all members.
    path: String,
    shared: Arc<Shared>,
}

/// What all members of a process have.
#[derive(Debug)]
pub(super) struct Shared {
    ids: Ids,
    meetings: Meetings,
}

impl Shared {
    /// Of so many ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self { ids: Ids::default(), meetings: Meetings::new(ranks) }
    }
}

/// The names of communicators that are being made, by the group, with how many members have yet to ask.
#[derive(Default)]
struct Ids(Mutex<HashMap<String, (UniqueId, usize)>>);

impl Debug for Ids {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Ids")
    }
}

impl Threads {
    /// The world's.
    pub(super) fn new(local: Arc<LocalTransport>, shared: Arc<Shared>) -> Self {
        Self { local, path: "world".to_string(), shared }
    }
}

/// Which part of a group a new one is: in the call, with its lowest rank, which is in no other part.
pub(super) fn part_path(group: &str, sequence: u64, lowest: Option<&Rank>) -> String {
    format!("{group}/{sequence}.{}", lowest.map_or(0, |rank| rank.0))
}

/// Which link of a group it is.
pub(super) fn link_path(group: &str, from: usize, to: usize) -> String {
    format!("{group}/{from}-{to}")
}

impl GroupControl for Threads {
    fn name(&self) -> &str {
        self.local.name()
    }

    fn member(&self) -> usize {
        self.local.member()
    }

    fn members(&self) -> &[Rank] {
        self.local.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.local.reserve(operation)
    }

    fn meets(&self, _call: &Call) -> bool {
        true
    }

    fn agree(&self, call: &Call, _go_on: &GoOn<'_>) -> Result<()> {
        self.local.agree(Box::new(call.clone()))
    }

    fn gives_turns(&self) -> bool {
        true
    }

    fn turn(&self, call: &Call) -> Option<Turn> {
        let members = self.members();
        Some(self.shared.meetings.take(&self.path, call.sequence, members, members[self.member()]))
    }

    fn split(
        &self,
        sequence: u64,
        name: &str,
        (color, key): (usize, usize),
        _go_on: &GoOn<'_>,
    ) -> Result<Arc<dyn GroupControl>> {
        let local = self.local.part(sequence, name, color, key)?;
        let path = part_path(&self.path, sequence, local.members().iter().min());
        Ok(Arc::new(Self { local, path, shared: self.shared.clone() }))
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn GroupControl>> {
        let path = link_path(&self.path, from, to);
        Ok(Arc::new(Self { local: self.local.way(from, to)?, path, shared: self.shared.clone() }))
    }

    fn id(&self, make: &dyn Fn() -> Result<UniqueId>, _go_on: &GoOn<'_>) -> Result<UniqueId> {
        let mut ids = self.shared.ids.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, left) = match ids.remove(&self.path) {
            Some(known) => known,
            None => (make()?, self.members().len()),
        };
        if left > 1 {
            ids.insert(self.path.clone(), (id, left - 1));
        }
        Ok(id)
    }

    fn go_on(&self, call: &Call, _waited: Duration) -> Result<()> {
        self.local.go_on(call)
    }

    fn fail(&self, error: &Error) {
        self.local.abort(error);
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.local.sleep(operation, sequence, sleep);
    }
}
