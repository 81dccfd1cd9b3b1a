//! Where the members of one group meet.

use core::cell::OnceCell;
use core::fmt;
use core::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use super::event_count::EventCount;
use super::membership::{CallId, Membership};
use super::memory::{Memory, Window};
use super::registry::Registry;
use super::sync::UnsafeCell;
use super::sync::atomic::{AtomicU64, Ordering};
use super::world::LocalWorld;
use crate::error::Result;
use crate::host::arena::Arena;
use crate::host::fit::{describe, left};
use crate::host::mismatch::compare;
use crate::host::number::Number;
use crate::host::watchdog::ControlPlane;
use crate::operation::Call;
use crate::rank::Rank;
use crate::transport::link_name;

/// What a member brings to a meeting.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) call: Box<Call>,
    pub(super) memory: Memory,
}

/// One group's meeting place.
pub(super) struct Board {
    pub(super) membership: Arc<Membership>,
    slots: Box<[Slot]>,
    event_count: Arc<EventCount>,
    /// Boards of groups being split off, and of links.
    children: Registry<Child, Self>,
}

/// What a board is made for beside the one of its group.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Child {
    /// The part that is split off in a call, by its color.
    Part { sequence: u64, color: usize },
    /// The link from one member to another.
    Link { from: usize, to: usize },
}

/// One member's place, written by that member only.
///
/// What peers need in most calls lies on the first cache line: one look fetches it all.
#[repr(C, align(128))]
struct Slot {
    /// The last call this member has put its post up for.
    posted: AtomicU64,
    heads: [UnsafeCell<Head>; 2],
    /// The last call in which this member has said that it is done with everybody's memory.
    left: Apart<AtomicU64>,
    /// The posts of calls with an even and with an odd number: what was put up for a call may be looked at until its
    /// member has met the others in the next one.
    posts: [UnsafeCell<Option<Post>>; 2],
}

/// On a cache line that nobody looks at who does not want this.
#[derive(Default)]
#[repr(align(64))]
struct Apart<T>(T);

/// The gist of a post.
#[derive(Clone, Copy)]
struct Head {
    /// See [`Call::digest`].
    digest: Option<NonZeroU64>,
    window: Window,
}

// SAFETY: heads and posts are reached only through the `Meeting` of their call, and by their member before and after
// that; see there.
unsafe impl Sync for Slot {}

impl Head {
    fn of(post: &Post) -> Self {
        // One of all numbers stands for two.
        let digest = post.call.digest().and_then(|digest| NonZeroU64::new(digest.max(1)));
        Self { digest, window: post.memory.window() }
    }
}

impl Slot {
    fn new() -> Self {
        let head = || UnsafeCell::new(Head { digest: None, window: Window::NONE });
        let (posted, left, posts) = Default::default();
        Self { posted, heads: [head(), head()], left, posts }
    }

    fn head(&self, sequence: u64) -> &UnsafeCell<Head> {
        &self.heads[(sequence % 2) as usize]
    }

    fn post(&self, sequence: u64) -> &UnsafeCell<Option<Post>> {
        &self.posts[(sequence % 2) as usize]
    }
}

impl Board {
    pub(super) fn new(name: &str, members: Vec<Rank>, world: &LocalWorld) -> Self {
        let slots = members.iter().map(|_| Slot::new()).collect();
        let membership = Arc::new(Membership::new(name, members));
        Self { membership, slots, event_count: world.event_count(), children: Registry::default() }
    }

    /// Puts a member's post up and waits for all the others'.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`](crate::Error::Peer) when one of them cannot come. The post then stays on the board.
    ///
    /// # Safety
    ///
    /// One thread at a time does this for a member, with `post.call.sequence` one above the last; and not again after
    /// an error, or while a meeting is neither left nor left early.
    pub(super) unsafe fn meet<'a>(&'a self, world: &'a LocalWorld, member: usize, post: Post) -> Result<Meeting<'a>> {
        let sequence = post.call.sequence;
        let slot = &self.slots[member];
        // SAFETY: the place was last used two calls ago. This member has met everybody in the call between, to which
        // they came when they were done with that one. Nobody looks before `posted` says so; the caller is the only
        // one who writes.
        let last = unsafe {
            slot.head(sequence).with_mut(|head| *head = Head::of(&post));
            slot.post(sequence).with_mut(|place| (*place).replace(post))
        };
        slot.posted.store(sequence, Ordering::Release);
        // Only now: to free memory that others have read would hold the store up.
        drop(last);
        let meeting =
            Meeting { board: self, world, member, sequence, is_uniform: false, asleep_since: OnceCell::new() };
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
        world: &LocalWorld,
    ) -> Arc<Self> {
        self.children.take(Child::Part { sequence, color }, members.len(), || Self::new(name, members, world))
    }

    /// The board of the link from one member to another, each of which asks for it once; made by the one that asks first.
    pub(super) fn link(&self, from: usize, to: usize, world: &LocalWorld) -> Arc<Self> {
        let Membership { name, members, .. } = &*self.membership;
        let ends = vec![members[from], members[to]];
        self.children.take(Child::Link { from, to }, 2, || Self::new(&link_name(name, from, to), ends, world))
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("membership", &self.membership).finish_non_exhaustive()
    }
}

/// The time in which all posts of one call are up and may be looked at.
///
/// Begins when all have posted; ends, for each member, when it leaves. Its own post stays up until the call after the
/// next, if it does not wait for the others and take it back; for ever, if it drops this without leaving (it unwinds).
pub(super) struct Meeting<'a> {
    board: &'a Board,
    world: &'a LocalWorld,
    member: usize,
    sequence: u64,
    /// Whether all are known to have made the same call, down to the digest.
    is_uniform: bool,
    /// When this member first fell asleep in it.
    asleep_since: OnceCell<Instant>,
}

impl Meeting<'_> {
    /// What a member has brought.
    pub(super) fn post(&self, member: usize) -> &Post {
        // SAFETY: all have posted this call, which happened before. Its post is taken back only after everybody has
        // left, and replaced only after everybody has come to the next call; this member has done neither, as `self`
        // exists.
        let post = self.board.slots[member].post(self.sequence).with(|post| unsafe { &*post });
        post.as_ref().expect("whoever has posted has a post")
    }

    /// All posts, in the order of the members.
    pub(super) fn posts(&self) -> impl ExactSizeIterator<Item = &Post> {
        (0..self.members()).map(|member| self.post(member))
    }

    /// How many members there are.
    pub(super) fn members(&self) -> usize {
        self.board.slots.len()
    }

    /// The call of a member of an all-to-all; of an even one, this member's own, which is the same and nearer.
    pub(super) fn call(&self, member: usize) -> &Call {
        if self.is_uniform { self.own_call() } else { &self.post(member).call }
    }

    /// Whether a member's buffer may be read.
    pub(super) fn is_readable(&self, member: usize) -> bool {
        !self.head(member).window.is_none()
    }

    /// The numbers that a member has brought to be read.
    pub(super) fn numbers<N: Number>(&self, member: usize) -> &[N] {
        // SAFETY: the post that owns the memory is up as long as `self` is; what is posted to be read is written by
        // nobody.
        unsafe { self.head(member).window.numbers() }
    }

    fn head(&self, member: usize) -> Head {
        // SAFETY: as for a post.
        self.board.slots[member].head(self.sequence).with(|head| unsafe { *head })
    }

    /// Compares all calls. Every member finds the same.
    pub(super) fn check(&mut self) -> Result<()> {
        let own = self.head(self.member).digest;
        self.is_uniform = own.is_some() && (0..self.members()).all(|member| self.head(member).digest == own);
        if self.is_uniform {
            return Ok(());
        }
        let Membership { name, members, .. } = &*self.board.membership;
        compare(name, members, self.own_call(), |member| &self.post(member).call)
    }

    /// Says that this member is done, unless nobody waits for that, and leaves its post up. `all_do`: that members that
    /// make the same call all leave like this.
    pub(super) fn leave_early(self, all_do: bool) {
        if !(all_do && self.is_uniform) {
            self.done();
            self.board.event_count.notify();
        }
    }

    /// Says that this member is done, waits for all the others, and takes its post back.
    pub(super) fn leave(self) -> Result<Post> {
        self.done();
        self.wait_for_all(|slot| &slot.left.0)?;
        // SAFETY: everybody has left; nobody looks before this member posts again.
        let post = self.board.slots[self.member].post(self.sequence).with_mut(|post| unsafe { (*post).take() });
        Ok(post.expect("this member has posted"))
    }

    fn done(&self) {
        self.board.slots[self.member].left.0.store(self.sequence, Ordering::Release);
    }

    /// Where results are made.
    pub(super) fn arena(&self) -> &Arc<Arena> {
        self.world.arena()
    }

    /// Waits until all have counted as far as this member just has.
    fn wait_for_all(&self, counter: impl Fn(&Slot) -> &AtomicU64) -> Result<()> {
        let (event_count, membership) = (&self.board.event_count, &self.board.membership);
        let has_come = |slot: &Slot| counter(slot).load(Ordering::Acquire) >= self.sequence;
        let are_here = self.board.slots.iter().all(|slot| event_count.spin(|| has_come(slot)));
        // Only now: to notify takes as long as the way of this member's own count to the others.
        event_count.notify();
        if are_here {
            return Ok(());
        }
        for (member, (slot, rank)) in self.board.slots.iter().zip(&membership.members).enumerate() {
            let has_come = || has_come(slot);
            let cannot_come = || self.world.has_ended(*rank) && !membership.has_reserved(member, self.sequence);
            let is_over = || has_come() || self.world.failure().is_some() || cannot_come();
            if has_come() {
                continue;
            }
            if !event_count.look(is_over) {
                let begun = *self.asleep_since.get_or_init(Instant::now);
                let is_over = || is_over() || self.world.is_overdue(begun);
                self.world.sleep(membership.members[self.member], self.id(), &mut || event_count.sleep(is_over));
                if self.world.failure().is_none() && !has_come() && !cannot_come() {
                    self.world.fail_overdue(self.describe(), begun.elapsed(), self.missing(&counter));
                }
            }
            if self.world.failure().is_none() && cannot_come() && !has_come() {
                self.world.fail(*rank, left(&self.describe()));
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
    fn missing(&self, counter: &impl Fn(&Slot) -> &AtomicU64) -> Vec<(Rank, bool)> {
        let membership = &self.board.membership;
        let slots = self.board.slots.iter().zip(&membership.members).enumerate();
        let missing = slots.filter(|(_, (slot, _))| counter(slot).load(Ordering::Acquire) < self.sequence);
        missing.map(|(member, (_, rank))| (*rank, membership.has_reserved(member, self.sequence))).collect()
    }

    fn id(&self) -> CallId {
        let (membership, operation) = (self.board.membership.clone(), self.own_call().operation);
        CallId { membership, operation, sequence: self.sequence }
    }

    fn describe(&self) -> String {
        describe(&self.board.membership.name, self.own_call())
    }

    fn own_call(&self) -> &Call {
        // SAFETY: a member's own post is written by nobody else, and not by itself while it waits.
        let own = self.board.slots[self.member].post(self.sequence).with(|post| unsafe { &*post });
        &own.as_ref().expect("this member has posted").call
    }
}
