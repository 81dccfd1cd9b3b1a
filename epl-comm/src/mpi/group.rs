//! One rank's place in one group of processes.

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::endpoint::Endpoint;
use super::waits::{DOWNWARD, KINDS, UPWARD};
use super::work::work;
use super::world::MpiWorld;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::host::failure::Failure;
use crate::host::fit::{check, describe, hides};
use crate::host::guard::{CallGuard, told};
use crate::host::staging::StagedBuffer;
use crate::host::watchdog::ControlPlane;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Links, Transport, colors_and_keys, link_name, of_one_color, wishes};

/// A member of a group whose messages travel over MPI.
pub(super) struct MpiTransport {
    endpoint: Endpoint,
    /// The last call that has taken a number.
    taken: Arc<AtomicU64>,
    guard: CallGuard,
    links: Links<MpiTransport>,
}

impl MpiTransport {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let taken = endpoint.world.waits.counter(endpoint.rank(), endpoint.counted_in());
        Self { endpoint, taken, guard: CallGuard::default(), links: Links::default() }
    }

    /// Whether the world goes on.
    fn go_on(&self, call: &Call) -> Result<()> {
        let Endpoint { name, world, .. } = &self.endpoint;
        match world.failure() {
            Some(failure) => Err(failure.to_error_in(describe(name, call), name, call.whole().sequence)),
            None => Ok(()),
        }
    }

    /// The call itself, in this member's turn.
    fn take_part(&self, call: &Call, buffer: Buffer) -> Result<Buffer> {
        let Endpoint { world, member, .. } = &self.endpoint;
        world.arena.tick();
        check(call, &buffer)?;
        let staged =
            if hides(call.operation, *member) { StagedBuffer::unseen(buffer) } else { StagedBuffer::new(buffer)? };
        work(&self.endpoint, call, staged)
    }

    /// Ends the world.
    fn fail(&self, error: &Error) {
        self.endpoint.world.record(Failure::found(error, self.endpoint.rank()));
    }
}

/// A group that is to be.
pub(super) struct New {
    /// The same on all members, and that of no other group of theirs.
    pub(super) number: u64,
    pub(super) ranks: Vec<Rank>,
    pub(super) member: usize,
}

/// Agrees on the groups into which one is divided. Beside its wish, every member tells the least number that none of its
/// groups has had; the largest that members of a new group tell becomes that group's. Groups without a common rank may have
/// one number.
///
/// # Errors
///
/// As [`Transport::split`]; [`Error::Invalid`] when there are no tags for it.
pub(super) fn agree(
    group: &dyn Transport,
    world: &MpiWorld,
    sequence: u64,
    name: &str,
    [color, key]: [usize; 2],
) -> Result<New> {
    let ranks = group.members();
    let own = ranks[group.member()];
    let free = world.free_group(own);
    let wishes = wishes(group, sequence, name, &[color as i64, key as i64, free as i64])?;
    let (chosen, member) = of_one_color(&colors_and_keys(&wishes), group.member());
    let number = chosen.iter().map(|member| wishes[*member][2] as u64).max().unwrap_or(free);
    world.tags.check(number)?;
    world.take_group(own, number);
    Ok(New { number, ranks: chosen.iter().map(|member| ranks[*member]).collect(), member })
}

impl Transport for MpiTransport {
    fn name(&self) -> &str {
        &self.endpoint.name
    }

    fn member(&self) -> usize {
        self.endpoint.member
    }

    fn members(&self) -> &[Rank] {
        &self.endpoint.members
    }

    fn reserve(&self, _operation: Operation) -> u64 {
        self.taken.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn reserve_stage(&self, whole: Operation, _stage: Operation) -> u64 {
        self.reserve(whole)
    }

    fn moves_rows(&self) -> bool {
        false
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        let attempt = |call: &Call| self.take_part(call, buffer);
        let turn = || self.guard.take(&self.endpoint.name, &*call, |call| self.go_on(call), attempt);
        told(turn, |error| self.fail(error))
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let New { number, ranks, member } = agree(self, &self.endpoint.world, sequence, name, [color, key])?;
        Ok(Arc::new(Self::new(self.endpoint.beside(name.to_string(), number * KINDS, ranks, member))))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        let link = || {
            let Endpoint { name, channel, members, member, .. } = &self.endpoint;
            let channel = channel + if from < to { UPWARD } else { DOWNWARD };
            let (name, ranks) = (link_name(name, from, to), vec![members[from], members[to]]);
            Ok(Arc::new(Self::new(self.endpoint.beside(name, channel, ranks, usize::from(*member == to)))))
        };
        Ok(self.links.get(from, to, link)?)
    }

    fn lanes(&self) -> usize {
        self.endpoint.world.lanes
    }

    fn warmed_up(&self) {}

    fn trim(&self) {
        self.endpoint.world.arena.trim();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        let group = &self.endpoint;
        let (world, rank) = (&group.world, group.rank());
        if !world.rank_state(rank).owner.is_here() {
            // A helper thread: its rank goes on.
            return sleep();
        }
        world.waits.fall_asleep(rank, group.counted_in(), group.brief(operation, sequence));
        sleep();
        world.waits.wake_up(rank);
    }

    fn abort(&self, cause: &Error) {
        self.fail(cause);
    }
}

impl fmt::Debug for MpiTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiTransport")
            .field("name", &self.endpoint.name)
            .field("members", &self.endpoint.members)
            .field("member", &self.endpoint.member)
            .field("world", &self.endpoint.world)
            .finish_non_exhaustive()
    }
}
