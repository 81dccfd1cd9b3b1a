//! One rank's place in one group of threads.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::board::{Board, Post};
use super::memory::{Divided, Memory};
use super::roster::CallId;
use super::work::work;
use super::world::World;
use crate::buffer::Buffer;
use crate::error::{Error, Result, message_of};
use crate::host::fit::{check, describe, hides, is_small};
use crate::host::ranks::Fates;
use crate::host::staging::Staged;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Transport, colors_and_keys, of_one_color, wishes};

/// A member of a [`Board`].
#[derive(Debug)]
pub(crate) struct LocalTransport {
    pub(super) world: Arc<World>,
    pub(super) board: Arc<Board>,
    pub(super) member: usize,
    /// True during a call, as the board trusts that a member makes one at a time; and for ever after one that panicked,
    /// as its meeting was not left.
    busy: AtomicBool,
    /// The links of which this member is an end: one transport for each, however many groups share this one.
    links: Mutex<HashMap<(usize, usize), Arc<LocalTransport>>>,
}

impl LocalTransport {
    pub(super) fn new(world: Arc<World>, board: Arc<Board>, member: usize) -> Self {
        Self { world, board, member, busy: AtomicBool::new(false), links: Mutex::default() }
    }

    pub(super) fn rank(&self) -> Rank {
        self.board.roster.members[self.member]
    }

    fn id(&self, operation: Operation, sequence: u64) -> CallId {
        CallId { roster: self.board.roster.clone(), operation, sequence }
    }

    /// Does what a call is if it is this member's turn, with `busy` held.
    pub(super) fn in_turn<T>(&self, call: Box<Call>, attempt: impl FnOnce(Box<Call>) -> Result<T>) -> Result<T> {
        let has_turn = !self.busy.swap(true, Ordering::Acquire);
        let result = self.check_turn(&call, has_turn).and_then(|()| attempt(call));
        if has_turn {
            self.busy.store(false, Ordering::Release);
        }
        result
    }

    /// Whether the world goes on, and this call is the next one of this member.
    fn check_turn(&self, call: &Call, has_turn: bool) -> Result<()> {
        let group = &self.board.roster.name;
        // Looked for after `busy` was taken: whoever gave up with a post on the board has seen the failure before.
        if let Some(failure) = self.world.failure() {
            return Err(failure.to_error(describe(group, call)));
        }
        // Also after a panic: a meeting was not left then.
        if !has_turn {
            let message = "was used by two threads at once; use all groups of a rank from one thread";
            return Err(Error::invalid(format!("group `{group}` {message}")));
        }
        let (sequence, due) = (call.sequence, self.board.posted(self.member) + 1);
        if sequence != due {
            return Err(Error::invalid(format!(
                "call {sequence} of group `{group}` came where call {due} was due; wait for what was started on the \
                 traced group before the other one is used, and the other way round"
            )));
        }
        Ok(())
    }

    /// The call itself. It is this member's next one, and `busy` is held.
    fn take_part(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        self.world.arena().tick();
        let stays = is_small(&call, self.world.eager_limit());
        let (is_written, is_hidden) =
            (!stays && writes(call.operation, self.member), hides(call.operation, self.member));
        check(&call, &buffer)?;
        let staged = match is_hidden {
            true => Staged::unseen(buffer),
            // What is written, or stays on the board, is the buffer and nothing else.
            false if is_written || stays => Staged::new(buffer)?.whole(),
            false => Staged::new(buffer)?,
        };
        let (memory, mut kept) = match () {
            () if is_written => (Memory::Write(Divided::new(staged.bytes)), None),
            () if is_hidden => (Memory::Hidden, Some(staged.bytes)),
            () => {
                let kept = stays.then(|| staged.bytes.clone());
                (Memory::Read { owner: staged.bytes, range: staged.range.clone() }, kept)
            }
        };
        let leaves_early = kept.is_some();
        // SAFETY: `busy` is held; the number is the next one; after an error the world has failed, which was looked
        // for before, and after a panic `busy` stays held.
        let mut meeting = unsafe { self.board.meet(&self.world, self.member, Post { call, memory }) }?;
        let made = meeting.check().and_then(|()| work(&meeting, self.member, &mut kept));
        let post = match leaves_early {
            true => {
                meeting.leave_early(stays);
                Ok(None)
            }
            false => meeting.leave().map(Some),
        };
        // A mismatch is known to all; it goes before what else may have happened by then.
        if let Some(made) = made? {
            post?;
            let range = 0..made.len();
            return Ok(staged.home.bring(made, range));
        }
        let bytes = match post?.map(|post| post.memory) {
            Some(Memory::Write(memory)) => memory.into_owner(),
            Some(Memory::Read { owner, .. }) => owner,
            Some(Memory::Hidden) | None => kept.expect("what was not taken back was kept"),
        };
        Ok(staged.home.bring(bytes, staged.range))
    }

    /// Ends the world. All members blame the same rank for a mismatch, or none.
    pub(super) fn fail(&self, error: &Error) {
        match error {
            Error::Mismatch { second_is_odd: true, second, .. } => self.world.fail(*second, error.to_string()),
            Error::Mismatch { first, .. } => self.world.fail_together(*first, error.clone()),
            _ => self.world.fail(self.rank(), error.to_string()),
        }
    }

    /// The part of the group in which this member is, once it has been divided.
    pub(crate) fn part(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<Self>> {
        let members = &self.board.roster.members;
        let wishes = wishes(self, sequence, name, &[color as i64, key as i64])?;
        let (chosen, member) = of_one_color(&colors_and_keys(&wishes), self.member);
        let ranks = chosen.iter().map(|member| members[*member]).collect();
        let board = self.board.child(sequence, color, name, ranks, &self.world);
        Ok(Arc::new(Self::new(self.world.clone(), board, member)))
    }

    /// The link from one member to another, of which this one is an end.
    pub(crate) fn way(&self, from: usize, to: usize) -> Arc<Self> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = || {
            let board = self.board.link(from, to, &self.world);
            Arc::new(Self::new(self.world.clone(), board, usize::from(self.member == to)))
        };
        links.entry((from, to)).or_insert_with(link).clone()
    }
}

/// Whether the members write a member's buffer, if it is large, each its own part. All come to the same answer.
fn writes(operation: Operation, member: usize) -> bool {
    match operation {
        Operation::AllReduce(_) => true,
        Operation::Reduce { root, .. } => root == member,
        _ => false,
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &str {
        &self.board.roster.name
    }

    fn member(&self) -> usize {
        self.member
    }

    fn members(&self) -> &[Rank] {
        &self.board.roster.members
    }

    fn reserve(&self, operation: Operation) -> u64 {
        let sequence = self.board.roster.reserve(self.member);
        self.world.issue(self.rank(), operation, || self.id(operation, sequence));
        sequence
    }

    fn reserve_stage(&self, whole: Operation, _stage: Operation) -> u64 {
        self.reserve(whole)
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        match catch_unwind(AssertUnwindSafe(|| self.in_turn(call, |call| self.take_part(call, buffer)))) {
            Ok(result) => result.inspect_err(|error| self.fail(error)),
            Err(payload) => {
                // Its number is taken: peers wait for this rank, whatever its caller makes of the panic.
                self.world.fail(self.rank(), format!("it panicked in a collective: {}", message_of(&*payload)));
                resume_unwind(payload)
            }
        }
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        Ok(self.part(sequence, name, color, key)?)
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        Ok(self.way(from, to))
    }

    fn lanes(&self) -> usize {
        self.world.lanes()
    }

    fn warmed_up(&self) {}

    fn trim(&self) {
        self.world.arena().trim();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.world.sleep(self.rank(), self.id(operation, sequence), sleep);
    }

    fn abort(&self, cause: &Error) {
        self.fail(cause);
    }
}
