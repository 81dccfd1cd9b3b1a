//! One rank's place in one group of processes.

use core::fmt;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::endpoint::Endpoint;
use super::failure::{Cause, Failure};
use super::waits::{DOWNWARD, KINDS, UPWARD};
use super::work::work;
use super::world::World;
use crate::buffer::Buffer;
use crate::error::{Error, Result, message_of};
use crate::host::fit::{check, describe, hides};
use crate::host::ranks::Fates;
use crate::host::staging::Staged;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Transport, colors_and_keys, link_name, of_one_color, wishes};

/// A member of a group whose messages travel over MPI.
pub(super) struct MpiTransport {
    endpoint: Endpoint,
    /// The last call that has taken a number.
    taken: Arc<AtomicU64>,
    /// The last call that was begun.
    begun: AtomicU64,
    /// True during a call; and for ever after one that panicked.
    busy: AtomicBool,
    links: Mutex<HashMap<(usize, usize), Arc<MpiTransport>>>,
}

impl MpiTransport {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let taken = endpoint.world.waits.counter(endpoint.rank(), endpoint.channel);
        let (begun, busy, links) = Default::default();
        Self { endpoint, taken, begun, busy, links }
    }

    fn attempt(&self, call: &Call, buffer: Buffer) -> Result<Buffer> {
        let has_turn = !self.busy.swap(true, Ordering::Acquire);
        let result = self.check_turn(call, has_turn).and_then(|()| self.take_part(call, buffer));
        if has_turn {
            self.busy.store(false, Ordering::Release);
        }
        result
    }

    /// Whether the world goes on, and this call is the next one of this member.
    fn check_turn(&self, call: &Call, has_turn: bool) -> Result<()> {
        let Endpoint { name: group, world, .. } = &self.endpoint;
        if let Some(failure) = world.failure() {
            return Err(failure.to_error(describe(group, call), group, call.whole().sequence));
        }
        if !has_turn {
            let message = "was used by two threads at once; use all groups of a rank from one thread";
            return Err(Error::invalid(format!("group `{group}` {message}")));
        }
        let (sequence, due) = (call.sequence, self.begun.load(Ordering::Relaxed) + 1);
        if sequence != due {
            return Err(Error::invalid(format!(
                "call {sequence} of group `{group}` came where call {due} was due; wait for what was started on the \
                 traced group before the other one is used, and the other way round"
            )));
        }
        self.begun.store(sequence, Ordering::Relaxed);
        Ok(())
    }

    /// The call itself. It is this member's next one, and `busy` is held.
    fn take_part(&self, call: &Call, buffer: Buffer) -> Result<Buffer> {
        let Endpoint { world, member, .. } = &self.endpoint;
        world.arena.tick();
        check(call, &buffer)?;
        let staged = if hides(call.operation, *member) { Staged::unseen(buffer) } else { Staged::new(buffer)? };
        work(&self.endpoint, call, staged)
    }

    /// Ends the world. All members blame the same rank for a mismatch, or none.
    fn fail(&self, error: &Error) {
        let world = &self.endpoint.world;
        match error {
            Error::Mismatch { second_is_odd: true, second, .. } => {
                world.record(Failure { rank: *second, cause: Cause::Odd(error.clone()) }, true);
            }
            Error::Mismatch { first, .. } => world.fail_together(*first, error.clone()),
            _ => world.fail(self.endpoint.rank(), error.to_string()),
        }
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
    world: &World,
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

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        match catch_unwind(AssertUnwindSafe(|| self.attempt(&call, buffer))) {
            Ok(result) => result.inspect_err(|error| self.fail(error)),
            Err(payload) => {
                // Its number is taken: peers wait for this rank, whatever its caller makes of the panic.
                self.endpoint
                    .world
                    .fail(self.endpoint.rank(), format!("it panicked in a collective: {}", message_of(&*payload)));
                resume_unwind(payload)
            }
        }
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
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = || {
            let Endpoint { name, channel, members, member, .. } = &self.endpoint;
            let channel = channel + if from < to { UPWARD } else { DOWNWARD };
            let (name, ranks) = (link_name(name, from, to), vec![members[from], members[to]]);
            Arc::new(Self::new(self.endpoint.beside(name, channel, ranks, usize::from(*member == to))))
        };
        Ok(links.entry((from, to)).or_insert_with(link).clone())
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
        if !world.seat(rank).driver.is_here() {
            // A helper thread: its rank goes on.
            return sleep();
        }
        world.waits.fall_asleep(rank, group.channel, group.brief(operation, sequence));
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
