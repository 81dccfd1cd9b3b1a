//! Where the members of one group meet.

use core::cell::UnsafeCell;
use core::fmt;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::bell::Bell;
use super::memory::Memory;
use super::quarrel::Quarrel;
use super::roster::{CallId, Roster};
use super::world::World;
use crate::error::{Error, Result};
use crate::operation::Call;
use crate::rank::Rank;
use crate::transport::link_name;

/// What a member brings to a meeting.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) call: Call,
    pub(super) memory: Memory,
}

/// One group's meeting place.
pub(super) struct Board {
    pub(super) roster: Arc<Roster>,
    slots: Box<[Slot]>,
    bell: Arc<Bell>,
    /// Boards of groups being split off, by the call and the color, with the members that have not yet taken theirs.
    children: Mutex<HashMap<(u64, usize), (Arc<Board>, usize)>>,
    /// Boards of links, by their members.
    links: Mutex<HashMap<(usize, usize), Arc<Board>>>,
}

/// One member's place. Its counters lie on a cache line that only the member writes.
#[repr(C, align(128))]
struct Slot {
    /// The last call this member has put its post up for.
    posted: AtomicU64,
    /// The last call in which this member is done with everybody's memory.
    left: AtomicU64,
    /// Written by the member while `posted == left` on all slots; read by all while `posted` is ahead somewhere.
    post: UnsafeCell<Option<Post>>,
}

// SAFETY: `post` is reached only through `Meeting`, which exists between the two synchronisations, and by its member
// outside of them; see there.
unsafe impl Sync for Slot {}

impl Board {
    pub(super) fn new(name: &str, members: Vec<Rank>, world: &World) -> Self {
        let slot = |_: &Rank| Slot { posted: AtomicU64::new(0), left: AtomicU64::new(0), post: UnsafeCell::new(None) };
        let slots = members.iter().map(slot).collect();
        let roster = Arc::new(Roster::new(name, members));
        Self { roster, slots, bell: world.bell(), children: Mutex::default(), links: Mutex::default() }
    }

    /// The number of the last call that a member has posted.
    pub(super) fn posted(&self, member: usize) -> u64 {
        self.slots[member].posted.load(Ordering::Relaxed)
    }

    /// Puts a member's post up and waits for all the others'.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] when one of them cannot come. The post then stays on the board.
    ///
    /// # Safety
    ///
    /// One thread at a time does this for a member, with `post.call.sequence` one above the last; and not again after
    /// an error, or after a meeting that was not left.
    pub(super) unsafe fn meet<'a>(&'a self, world: &'a World, member: usize, post: Post) -> Result<Meeting<'a>> {
        let sequence = post.call.sequence;
        let slot = &self.slots[member];
        // SAFETY: everybody has left the last call, or this would not be called; nobody looks into the slot before
        // `posted` says so; the caller is the only one who writes.
        unsafe { *slot.post.get() = Some(post) };
        slot.posted.store(sequence, Ordering::Release);
        self.bell.ring();
        let meeting = Meeting { board: self, world, member, sequence };
        meeting.wait_for_all(|slot| &slot.posted)?;
        Ok(meeting)
    }

    /// The board of a group that is split off in call `sequence`; made by whoever comes first.
    pub(super) fn child(
        &self,
        sequence: u64,
        color: usize,
        name: &str,
        members: Vec<Rank>,
        world: &World,
    ) -> Arc<Self> {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        let takers = members.len();
        let (board, left) =
            children.entry((sequence, color)).or_insert_with(|| (Arc::new(Self::new(name, members, world)), takers));
        let board = board.clone();
        *left -= 1;
        if *left == 0 {
            children.remove(&(sequence, color));
        }
        board
    }

    /// The board of the link from one member to another; made by the end that asks first.
    pub(super) fn link(&self, from: usize, to: usize, world: &World) -> Arc<Self> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let Roster { name, members, .. } = &*self.roster;
        let board = || Self::new(&link_name(name, from, to), vec![members[from], members[to]], world);
        links.entry((from, to)).or_insert_with(|| Arc::new(board())).clone()
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("roster", &self.roster).finish_non_exhaustive()
    }
}

/// The time in which all posts of one call are up and may be looked at.
///
/// Begins when all have posted; ends, for each member, when it has left. A member that drops it without leaving
/// (it unwinds) keeps its post up for ever.
pub(super) struct Meeting<'a> {
    board: &'a Board,
    world: &'a World,
    member: usize,
    sequence: u64,
}

impl Meeting<'_> {
    /// What a member has brought.
    pub(super) fn post(&self, member: usize) -> &Post {
        // SAFETY: all have posted this call, which happened before; a slot is written again, or emptied, only after
        // everybody has left, and this member has not, as `self` exists.
        let post = unsafe { &*self.board.slots[member].post.get() };
        post.as_ref().expect("whoever has posted has a post")
    }

    /// All posts, in the order of the members.
    pub(super) fn posts(&self) -> impl ExactSizeIterator<Item = &Post> {
        (0..self.board.slots.len()).map(|member| self.post(member))
    }

    /// Compares all calls. Every member finds the same.
    pub(super) fn check(&self) -> Result<()> {
        let quarrel = Quarrel::among(self.board.slots.len(), |member| &self.post(member).call);
        let Some(Quarrel { first, second, second_is_odd }) = quarrel else { return Ok(()) };
        let Roster { name, members, .. } = &*self.board.roster;
        Err(Error::Mismatch {
            group: name.clone(),
            sequence: self.sequence,
            first: members[first],
            first_call: self.post(first).call.to_string(),
            second: members[second],
            second_call: self.post(second).call.to_string(),
            second_is_odd,
        })
    }

    /// Says that this member is done, waits for all the others, and takes its post back.
    pub(super) fn leave(self) -> Result<Post> {
        let slot = &self.board.slots[self.member];
        slot.left.store(self.sequence, Ordering::Release);
        self.board.bell.ring();
        self.wait_for_all(|slot| &slot.left)?;
        // SAFETY: everybody has left; nobody looks before this member posts again.
        let post = unsafe { &mut *slot.post.get() }.take();
        Ok(post.expect("this member has posted"))
    }

    fn wait_for_all(&self, counter: fn(&Slot) -> &AtomicU64) -> Result<()> {
        let (bell, roster) = (&self.board.bell, &self.board.roster);
        for (member, (slot, rank)) in self.board.slots.iter().zip(&roster.members).enumerate() {
            let has_come = || counter(slot).load(Ordering::Acquire) >= self.sequence;
            let cannot_come = || self.world.has_ended(*rank) && !roster.has_reserved(member, self.sequence);
            let is_over = || has_come() || self.world.failure().is_some() || cannot_come();
            if has_come() {
                continue;
            }
            if !bell.look(is_over) {
                let begun = Instant::now();
                let is_over = || is_over() || self.world.is_overdue(begun);
                self.world.sleep(roster.members[self.member], self.id(), &mut || bell.sleep(is_over));
                if self.world.failure().is_none() && !has_come() && !cannot_come() {
                    self.world.fail_overdue(self.describe(), begun.elapsed(), self.missing(counter));
                }
            }
            if self.world.failure().is_none() && !has_come() {
                self.world.fail(*rank, format!("it returned without taking part in {}", self.describe()));
            }
            // Looked at again: what came before the failure counts.
            if !has_come()
                && let Some(failure) = self.world.failure()
            {
                return Err(failure.to_error(self.describe()));
            }
        }
        Ok(())
    }

    /// The ranks that have not come, with whether each has at least taken the number of the call.
    fn missing(&self, counter: fn(&Slot) -> &AtomicU64) -> Vec<(Rank, bool)> {
        let roster = &self.board.roster;
        let slots = self.board.slots.iter().zip(&roster.members).enumerate();
        let missing = slots.filter(|(_, (slot, _))| counter(slot).load(Ordering::Acquire) < self.sequence);
        missing.map(|(member, (_, rank))| (*rank, roster.has_reserved(member, self.sequence))).collect()
    }

    fn id(&self) -> CallId {
        let (roster, operation) = (self.board.roster.clone(), self.own_call().operation);
        CallId { roster, operation, sequence: self.sequence }
    }

    fn describe(&self) -> String {
        describe(&self.board.roster.name, self.own_call())
    }

    fn own_call(&self) -> &Call {
        // SAFETY: a member's own post is written by nobody else, and not by itself while it waits.
        let own = unsafe { &*self.board.slots[self.member].post.get() };
        &own.as_ref().expect("this member has posted").call
    }
}

/// A call with its place in its group.
pub(super) fn describe(group: &str, call: &Call) -> String {
    format!("{call}, call {} of group `{group}`", call.sequence)
}
