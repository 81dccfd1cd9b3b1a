//! One rank's place in one group of threads.

use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;
use std::sync::{Arc, Mutex};

use burn::tensor::{DType, Shape};

use super::board::{Board, Post, describe};
use super::memory::{Divided, Memory};
use super::staging::Staged;
use super::work::work;
use super::world::World;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::Transport;

/// A member of a [`Board`].
#[derive(Debug)]
pub(super) struct LocalTransport {
    world: Arc<World>,
    board: Arc<Board>,
    member: usize,
    /// Held during a call: the board trusts that a member makes one at a time.
    busy: Mutex<()>,
}

impl LocalTransport {
    pub(super) fn new(world: Arc<World>, board: Arc<Board>, member: usize) -> Self {
        Self { world, board, member, busy: Mutex::new(()) }
    }

    fn rank(&self) -> Rank {
        self.board.members[self.member]
    }

    fn attempt(&self, call: Call, buffer: Buffer) -> Result<Buffer> {
        // Also when the lock is poisoned: a meeting was not left then.
        let Ok(_busy) = self.busy.try_lock() else {
            return Err(Error::invalid(format!("group `{}` was used by two threads at once", self.board.name)));
        };
        let due = self.board.posted(self.member) + 1;
        if call.sequence != due {
            let (group, sequence) = (&self.board.name, call.sequence);
            return Err(Error::invalid(format!("call {sequence} of group `{group}` came where call {due} was due")));
        }
        if let Some(failure) = self.world.failure() {
            return Err(failure.to_error(describe(&self.board.name, &call)));
        }
        let staged = stage(&call, buffer)?;
        let (memory, mut kept) = match call.operation {
            Operation::AllReduce(_) => (Memory::Write(Divided::new(staged.bytes)), None),
            Operation::Broadcast { root } if root != self.member => (Memory::Hidden, Some(staged.bytes)),
            Operation::Barrier => (Memory::Hidden, Some(staged.bytes)),
            _ => (Memory::Read { owner: staged.bytes, range: staged.range.clone() }, None),
        };
        // SAFETY: `busy` is held; the number is the next one; after an error the world has failed, which was looked
        // for above, and after a meeting that was not left `busy` is poisoned.
        let meeting = unsafe { self.board.meet(&self.world, self.member, Post { call, memory }) }?;
        let made = meeting.check().and_then(|()| work(&meeting, self.member, &mut kept));
        let post = meeting.leave();
        // A mismatch is known to all; it goes before what else may have happened by then.
        if let Some(made) = made? {
            post?;
            let range = 0..made.len();
            return Ok(staged.home.bring(made, range));
        }
        let bytes = match post?.memory {
            Memory::Write(memory) => memory.into_owner(),
            Memory::Read { owner, .. } => owner,
            Memory::Hidden => kept.expect("hidden memory was kept"),
        };
        Ok(staged.home.bring(bytes, staged.range))
    }
}

/// The buffer in host memory, checked against the call that is made with it.
fn stage(call: &Call, buffer: Buffer) -> Result<Staged> {
    let (dtype, elements) = (buffer.dtype(), buffer.shape().num_elements());
    if (dtype, elements) != (call.dtype, call.shape.num_elements()) {
        return Err(Error::invalid(format!("{call} was given {elements} elements of {}", dtype.name())));
    }
    let staged = Staged::new(buffer)?;
    Ok(match call.operation {
        Operation::AllReduce(_) => staged.whole(),
        _ => staged,
    })
}

impl Transport for LocalTransport {
    fn name(&self) -> &str {
        &self.board.name
    }

    fn member(&self) -> usize {
        self.member
    }

    fn members(&self) -> &[Rank] {
        &self.board.members
    }

    fn reserve(&self) -> u64 {
        self.board.reserve(self.member)
    }

    fn run(&self, call: Call, buffer: Buffer) -> Result<Buffer> {
        let result = self.attempt(call, buffer);
        if let Err(error) = &result {
            // All members blame the same rank for a mismatch.
            let culprit = if let Error::Mismatch { second, .. } = error { *second } else { self.rank() };
            self.world.fail(culprit, || error.to_string());
        }
        result
    }

    fn split(&self, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let sequence = self.reserve();
        let size = self.board.members.len();
        let wish = vec![color as i64, key as i64, fingerprint(name)];
        let call = Call {
            sequence,
            dim: Some(0),
            receive: vec![wish.len(); size],
            ..Call::new(Operation::AllGather, DType::I64, Shape::new([wish.len()]))
        };
        let wishes = self.run(call, Buffer::from_values(wish.clone()))?.into_values::<i64>();
        let wishes: Vec<&[i64]> = wishes.chunks(wish.len()).collect();
        if let Some(other) = (0..size).find(|other| wishes[*other][2] != wishes[0][2]) {
            return Err(self.different_names(name, wish[2], other, wishes[0][2], sequence));
        }
        let mut chosen: Vec<usize> = (0..size).filter(|member| wishes[*member][0] == wish[0]).collect();
        chosen.sort_by_key(|member| (wishes[*member][1], *member));
        let member = chosen.iter().position(|member| *member == self.member).expect("a member has its own color");
        let ranks = chosen.iter().map(|member| self.board.members[*member]).collect();
        let board = self.board.child(sequence, color, name, ranks, &self.world);
        Ok(Arc::new(Self::new(self.world.clone(), board, member)))
    }

    fn abort(&self, cause: &Error) {
        self.world.fail(self.rank(), || cause.to_string());
    }
}

impl LocalTransport {
    /// Member `other` gave another name than member 0; a member knows its own name only.
    fn different_names(&self, name: &str, own: i64, other: usize, first: i64, sequence: u64) -> Error {
        let call = |is_mine: bool| match is_mine {
            true => format!("split(`{name}`)"),
            false => format!("split with another name than `{name}`"),
        };
        let (first_call, second_call) =
            if own == first { (call(true), call(false)) } else { (call(false), call(true)) };
        let (first, second) = (self.board.members[0], self.board.members[other]);
        let error =
            Error::Mismatch { group: self.board.name.clone(), sequence, first, first_call, second, second_call };
        self.world.fail(second, || error.to_string());
        error
    }
}

fn fingerprint(name: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish() as i64
}
