//! What members say to each other beside the data: which call they make, that they failed, how they find each other.

use core::fmt::Debug;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::UniqueId;
use super::communicator::GoOn;
use crate::error::{Error, Result};
use crate::local::LocalTransport;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::Transport;

/// Gives every member's numbers, as many of each, in the order of the members, for this member's: on the way that the
/// data goes.
pub(super) type Exchange<'a> = dyn FnMut(&[u64]) -> Result<Vec<Vec<u64>>> + 'a;

/// One member's seat where the members of one group confer.
pub(super) trait Council: Debug + Send + Sync {
    fn name(&self) -> &str;

    fn member(&self) -> usize;

    fn members(&self) -> &[Rank];

    /// See [`Transport::reserve`].
    fn reserve(&self, operation: Operation) -> u64;

    /// Whether a call is compared on the way of the data, which must be there first.
    fn needs_data(&self) -> bool;

    /// Waits until all members have made this call, and compares them.
    fn agree(&self, call: &Call, exchange: &mut Exchange<'_>) -> Result<()>;

    /// Divides the group. See [`Transport::split`].
    fn split(
        &self,
        sequence: u64,
        name: &str,
        wish: (usize, usize),
        exchange: &mut Exchange<'_>,
    ) -> Result<Arc<dyn Council>>;

    /// See [`Transport::link`].
    fn link(&self, from: usize, to: usize) -> Arc<dyn Council>;

    /// The name of a communicator of the group, the same on all members.
    fn id(&self, make: &dyn Fn() -> Result<UniqueId>, go_on: &GoOn<'_>) -> Result<UniqueId>;

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
             gone: set NCCL_DEBUG=INFO to see, or set a longer time limit if it only takes that long",
            call.sequence,
            waited.as_secs_f64()
        ),
    }
}

/// Members that are threads of this process: they meet on the boards of the local transport.
#[derive(Debug)]
pub(super) struct Threads {
    seat: Arc<LocalTransport>,
    /// Which group it is, the same on all members.
    path: String,
    ids: Arc<Ids>,
}

/// The names of communicators that are being made, by the group, with how many members have yet to ask.
#[derive(Default)]
pub(super) struct Ids(Mutex<HashMap<String, (UniqueId, usize)>>);

impl Debug for Ids {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Ids")
    }
}

impl Threads {
    /// The world's.
    pub(super) fn new(seat: Arc<LocalTransport>, ids: Arc<Ids>) -> Self {
        Self { seat, path: "world".to_string(), ids }
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

impl Council for Threads {
    fn name(&self) -> &str {
        self.seat.name()
    }

    fn member(&self) -> usize {
        self.seat.member()
    }

    fn members(&self) -> &[Rank] {
        self.seat.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.seat.reserve(operation)
    }

    fn needs_data(&self) -> bool {
        false
    }

    fn agree(&self, call: &Call, _exchange: &mut Exchange<'_>) -> Result<()> {
        self.seat.agree(Box::new(call.clone()))
    }

    fn split(
        &self,
        sequence: u64,
        name: &str,
        (color, key): (usize, usize),
        _exchange: &mut Exchange<'_>,
    ) -> Result<Arc<dyn Council>> {
        let seat = self.seat.part(sequence, name, color, key)?;
        let path = part_path(&self.path, sequence, seat.members().iter().min());
        Ok(Arc::new(Self { seat, path, ids: self.ids.clone() }))
    }

    fn link(&self, from: usize, to: usize) -> Arc<dyn Council> {
        let path = link_path(&self.path, from, to);
        Arc::new(Self { seat: self.seat.way(from, to), path, ids: self.ids.clone() })
    }

    fn id(&self, make: &dyn Fn() -> Result<UniqueId>, _go_on: &GoOn<'_>) -> Result<UniqueId> {
        let mut ids = self.ids.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.seat.go_on(call)
    }

    fn fail(&self, error: &Error) {
        self.seat.abort(error);
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.seat.sleep(operation, sequence, sleep);
    }
}
