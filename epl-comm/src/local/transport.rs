//! One rank's place in one group of threads.

use std::sync::Arc;

use super::board::{Board, Post};
use super::membership::CallId;
use super::memory::{Divided, Memory};
use super::work::work;
use super::world::LocalWorld;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::host::failure::Failure;
use crate::host::fit::{check, describe, hides, is_small};
use crate::host::guard::{CallGuard, told};
use crate::host::staging::StagedBuffer;
use crate::host::watchdog::ControlPlane;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Links, Transport, colors_and_keys, of_one_color, wishes};

/// A member of a [`Board`].
#[derive(Debug)]
pub(crate) struct LocalTransport {
    pub(super) world: Arc<LocalWorld>,
    pub(super) board: Arc<Board>,
    pub(super) member: usize,
    /// The board trusts that a member makes one call at a time, and none after one that panicked, whose meeting was not
    /// left.
    guard: CallGuard,
    /// The links of which this member is an end: one transport for each, however many groups share this one.
    links: Links<LocalTransport>,
}

impl LocalTransport {
    pub(super) fn new(world: Arc<LocalWorld>, board: Arc<Board>, member: usize) -> Self {
        Self { world, board, member, guard: CallGuard::default(), links: Links::default() }
    }

    pub(super) fn rank(&self) -> Rank {
        self.board.membership.members[self.member]
    }

    fn id(&self, operation: Operation, sequence: u64) -> CallId {
        CallId { membership: self.board.membership.clone(), operation, sequence }
    }

    /// Does what a call is if it is this member's turn.
    pub(super) fn in_turn<T>(&self, call: Box<Call>, attempt: impl FnOnce(Box<Call>) -> Result<T>) -> Result<T> {
        let turn = || self.guard.take(&self.board.membership.name, call, |call| self.go_on(call), attempt);
        told(turn, |error| self.fail(error))
    }

    /// Whether the world goes on.
    ///
    /// # Errors
    ///
    /// Its failure, as it is told to a rank that is in `call`.
    pub(crate) fn go_on(&self, call: &Call) -> Result<()> {
        match self.world.failure() {
            Some(failure) => Err(failure.to_error(describe(&self.board.membership.name, call))),
            None => Ok(()),
        }
    }

    /// The call itself, in this member's turn.
    fn take_part(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        self.world.arena().tick();
        let stays = is_small(&call, self.world.eager_limit());
        let (is_written, is_hidden) =
            (!stays && writes(call.operation, self.member), hides(call.operation, self.member));
        check(&call, &buffer)?;
        let staged = match is_hidden {
            true => StagedBuffer::unseen(buffer),
            // What is written, or stays on the board, is the buffer and nothing else.
            false if is_written || stays => StagedBuffer::new(buffer)?.whole(),
            false => StagedBuffer::new(buffer)?,
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
        // SAFETY: the turn is held, and the number is the next one, as all before it came to a good end; after an error
        // the world has failed, which was looked for before, and after a panic nobody gets a turn.
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

    /// Ends the world.
    pub(super) fn fail(&self, error: &Error) {
        self.world.record(Failure::found(error, self.rank()));
    }

    /// The part of the group in which this member is, once it has been divided.
    pub(crate) fn part(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<Self>> {
        let members = &self.board.membership.members;
        let wishes = wishes(self, sequence, name, &[color as i64, key as i64])?;
        let (chosen, member) = of_one_color(&colors_and_keys(&wishes), self.member);
        let ranks = chosen.iter().map(|member| members[*member]).collect();
        let board = self.board.child(sequence, color, name, ranks, &self.world);
        Ok(Arc::new(Self::new(self.world.clone(), board, member)))
    }

    /// The link from one member to another, of which this one is an end.
    pub(crate) fn way(&self, from: usize, to: usize) -> Result<Arc<Self>> {
        let link = || {
            let board = self.board.link(from, to, &self.world);
            Ok(Arc::new(Self::new(self.world.clone(), board, usize::from(self.member == to))))
        };
        self.links.get(from, to, link)
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
        &self.board.membership.name
    }

    fn member(&self) -> usize {
        self.member
    }

    fn members(&self) -> &[Rank] {
        &self.board.membership.members
    }

    fn reserve(&self, operation: Operation) -> u64 {
        let sequence = self.board.membership.reserve(self.member);
        self.world.issue(self.rank(), operation, || self.id(operation, sequence));
        sequence
    }

    fn reserve_stage(&self, whole: Operation, _stage: Operation) -> u64 {
        self.reserve(whole)
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        self.in_turn(call, |call| self.take_part(call, buffer))
    }

    fn moves_rows(&self) -> bool {
        true
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        Ok(self.part(sequence, name, color, key)?)
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        Ok(self.way(from, to)?)
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
