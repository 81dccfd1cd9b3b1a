//! Messages between the members of a group that are on their way.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::endpoint::Endpoint;
use super::library::{MOST, Request, test_all};
use super::wait_query::{Finding, deadlock, is_sure};
use super::waits::{CallKey, Wait};
use super::world::Arrival;
use crate::error::{Error, Result};
use crate::host::failure::Failure;
use crate::host::fit::{describe, left};
use crate::host::watchdog::ControlPlane;
use crate::operation::Call;
use crate::rank::Rank;

/// Whoever is told of a failure looks for what was sent before it for so long: news of it may have been faster.
const STRAGGLERS: Duration = Duration::from_millis(20);
/// When a waiter first looks whether it waits in a circle; then after twice as long, and so on.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Whoever waits for one that has ended looks this many times, 5 ms apart, for its messages, before it blames it: news of its end
/// may be faster, and time alone says little, as a thread may stand still while others of its process run.
const LOOKS_FOR_STRAGGLERS: u32 = 100;

/// Some messages of one call.
///
/// Whoever begins one promises that its memory stays until [`wait`](Self::wait) has returned well; for ever, if it
/// does not: the library knows of no other way to be stopped.
pub(super) struct RequestSet<'a> {
    group: &'a Endpoint,
    call: &'a Call,
    /// Whether all members have come to the call.
    moves: bool,
    requests: Vec<Request>,
    /// With whom, for each of them.
    peers: Vec<usize>,
}

impl<'a> RequestSet<'a> {
    /// Messages to find out whether all have come.
    pub(super) fn of_heads(group: &'a Endpoint, call: &'a Call) -> Self {
        Self { group, call, moves: false, requests: Vec::new(), peers: Vec::new() }
    }

    /// Messages of data between members that have all come.
    pub(super) fn of_data(group: &'a Endpoint, call: &'a Call) -> Self {
        Self { moves: true, ..Self::of_heads(group, call) }
    }

    /// Begins to send numbers to a member.
    ///
    /// # Safety
    ///
    /// There are so many; they stay, and nobody writes them, until [`wait`](Self::wait) has returned well.
    pub(super) unsafe fn send<N>(&mut self, peer: usize, from: *const N, count: usize) -> Result<()> {
        let (tag, process) = self.group.way_to(peer);
        for (start, len) in messages(count * size_of::<N>()) {
            // SAFETY: a part of what the caller promises.
            let request = unsafe { self.group.world.data.send(from.cast::<u8>().add(start), len, process, tag) }?;
            self.requests.push(request);
            self.peers.push(peer);
        }
        Ok(())
    }

    /// Begins to receive numbers from a member.
    ///
    /// # Safety
    ///
    /// There is room for so many; it stays, and nobody else reads or writes it, until [`wait`](Self::wait) has returned
    /// well.
    pub(super) unsafe fn receive<N>(&mut self, peer: usize, to: *mut N, count: usize) -> Result<()> {
        let (tag, process) = self.group.way_from(peer);
        for (start, len) in messages(count * size_of::<N>()) {
            // SAFETY: a part of what the caller promises.
            let request = unsafe { self.group.world.data.receive(to.cast::<u8>().add(start), len, process, tag) }?;
            self.requests.push(request);
            self.peers.push(peer);
        }
        Ok(())
    }

    /// Waits until all messages have come to their end.
    ///
    /// # Errors
    ///
    /// What the world has failed with, or what keeps this call from going on.
    pub(super) fn wait(&mut self) -> Result<()> {
        let world = &self.group.world;
        let mut backoff = Backoff::new(world.is_crowded, self.moves);
        let mut sleeper = None;
        let mut failed: Option<Instant> = None;
        loop {
            if test_all(&mut self.requests)? {
                self.requests.clear();
                self.peers.clear();
                return Ok(());
            }
            if let Some(failure) = world.failure() {
                let since = *failed.get_or_insert_with(Instant::now);
                if since.elapsed() > STRAGGLERS {
                    let sequence = self.call.whole().sequence;
                    return Err(failure.to_error_in(self.describe(), &self.group.name, sequence));
                }
            }
            if let Some(waited) = backoff.pause() {
                sleeper.get_or_insert_with(|| Sleeper::new(self.group)).look(self, waited)?;
            }
        }
    }

    /// Those with whom some message is not over.
    fn missing(&mut self) -> Result<Vec<Rank>> {
        let mut missing = Vec::new();
        for (request, peer) in self.requests.iter_mut().zip(&self.peers) {
            let rank = self.group.members[*peer];
            if !request.test()? && !missing.contains(&rank) {
                missing.push(rank);
            }
        }
        Ok(missing)
    }

    fn describe(&self) -> String {
        describe(&self.group.name, self.call)
    }
}

/// Beginning and length of the messages of so many bytes.
fn messages(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(MOST).map(move |start| (start, MOST.min(bytes - start)))
}

/// A wait that takes long enough for others to know of it.
struct Sleeper<'a> {
    group: &'a Endpoint,
    /// Whether it is the rank's own thread.
    is_owner: bool,
    next_look: Duration,
    /// The circle that was seen last.
    circle: Vec<(Rank, Wait)>,
    /// Of those who are missing, and have ended: how often they were looked for since.
    looks_since_end: HashMap<Rank, u32>,
}

impl<'a> Sleeper<'a> {
    fn new(group: &'a Endpoint) -> Self {
        let is_owner = group.world.rank_state(group.rank()).owner.is_here();
        Self { group, is_owner, next_look: FIRST_LOOK, circle: Vec::new(), looks_since_end: HashMap::new() }
    }

    /// Looks whether those who are missing can still come; ends the world when they cannot.
    fn look(&mut self, requests: &mut RequestSet<'_>, waited: Duration) -> Result<()> {
        let (group, world) = (self.group, &self.group.world);
        let at = CallKey { channel: group.counted_in(), sequence: requests.call.sequence };
        let wait = Wait { at, call: requests.describe(), missing: requests.missing()?, is_sure: true };
        world.waits.begin(group.rank(), wait.clone());
        if self.is_owner {
            let whole = requests.call.whole();
            world.waits.fall_asleep(group.rank(), at.channel, group.brief(whole.operation, whole.sequence));
        }
        if world.failure().is_some() || wait.missing.is_empty() {
            return Ok(());
        }
        if !requests.moves
            && let Some(gone) = self.gone(&wait)
        {
            world.fail(gone, left(&wait.call));
            return Ok(());
        }
        let is_overdue = world.watchdog.is_overdue(waited);
        if !is_overdue && waited < self.next_look {
            return Ok(());
        }
        self.next_look = waited * 2;
        let finding = group.answers.follow(world, &wait);
        // Asking takes a while, in which they may have come.
        if requests.missing()? != wait.missing {
            return Ok(());
        }
        let missing = match finding {
            Some(Finding::Circle(circle)) if is_sure(&circle) && (is_overdue || circle == self.circle) => {
                world.record(deadlock(circle));
                return Ok(());
            }
            Some(Finding::Circle(circle)) if is_overdue => {
                circle.into_iter().map(|(rank, wait)| (rank, format!("which waits in {}", wait.call))).collect()
            }
            // Each was asked at another time: it is one only if all of them still wait in the same calls when they have
            // been asked again.
            Some(Finding::Circle(circle)) => {
                (self.circle, self.next_look) = (circle, waited + FIRST_LOOK / 2);
                return Ok(());
            }
            Some(Finding::Sources(missing)) if is_overdue => missing,
            _ => return Ok(()),
        };
        world.record(Failure::shared(Error::Timeout { call: wait.call, waited, missing }, group.rank()));
        Ok(())
    }
}

impl Sleeper<'_> {
    /// One of those who are missing that does not come any more.
    fn gone(&mut self, wait: &Wait) -> Option<Rank> {
        let arrival = |rank: &&Rank| self.group.world.arrival_of(**rank, wait.at);
        if let Some(never) = wait.missing.iter().find(|rank| arrival(rank) == Arrival::Never) {
            return Some(*never);
        }
        let ended = wait.missing.iter().filter(|rank| arrival(rank) == Arrival::PerhapsOnTheWay).copied();
        looked_for_too_often(&mut self.looks_since_end, ended.collect())
    }
}

/// Counts a look for each of those who have ended and are missing, and forgets the others; the first that was looked for too often.
fn looked_for_too_often(looks: &mut HashMap<Rank, u32>, ended: Vec<Rank>) -> Option<Rank> {
    looks.retain(|rank, _| ended.contains(rank));
    ended.iter().for_each(|rank| *looks.entry(*rank).or_default() += 1);
    ended.into_iter().find(|rank| looks[rank] > LOOKS_FOR_STRAGGLERS)
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let (waits, rank) = (&self.group.world.waits, self.group.rank());
        waits.end(rank, self.group.counted_in());
        if self.is_owner {
            waits.wake_up(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_that_has_ended_is_looked_for_as_often() {
        let mut looks = HashMap::new();
        for _ in 0..LOOKS_FOR_STRAGGLERS {
            assert_eq!(looked_for_too_often(&mut looks, vec![Rank(3)]), None);
        }
        assert_eq!(
            looked_for_too_often(&mut looks, vec![Rank(1)]),
            None,
            "another one has ended just now, and rank 3 has come"
        );
        for _ in 1..LOOKS_FOR_STRAGGLERS {
            assert_eq!(looked_for_too_often(&mut looks, vec![Rank(3), Rank(1)]), None);
        }
        assert_eq!(looked_for_too_often(&mut looks, vec![Rank(3), Rank(1)]), Some(Rank(1)));
    }
}
