//! The lives of the members of one group, which do on its board what `LocalTransport` does.

use std::sync::Arc;

use loom::model::Builder;
use loom::thread;

use super::board::{Board, Meeting, Post};
use super::memory::{Buffer, Memory};
use super::world::LocalWorld;
use crate::error::{Error, Result};
use crate::host::watchdog::ControlPlane;
use crate::operation::{Call, Operation};
use crate::rank::Rank;

/// How a call uses the members' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Buffers are small: they stay on the board, and nobody waits for the others to be done with it.
    Small,
    /// All read all buffers, and wait until all are done.
    Large,
    /// All write a part of all buffers, and wait until all are done.
    Written,
    /// Only member 0 has something to be read; the others do not wait.
    Hidden,
}

/// Who unwinds, and in which call, between the meeting and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwinds {
    /// The member.
    pub member: usize,
    /// The number of the call, from 1.
    pub sequence: u64,
}

/// Runs calls of these kinds on so many members in all orders of steps in which a thread is interrupted no more than so
/// often where it could go on.
pub fn meet(members: usize, kinds: &'static [Kind], unwinds: Option<Unwinds>, interruptions: usize) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(move || {
        let world = Arc::new(LocalWorld::new(members));
        let board = Arc::new(Board::new("g", (0..members).map(Rank).collect(), &world));
        // Kept to the end, so that a look at what has been freed is seen and does no harm.
        let buffers: Arc<Vec<Vec<Arc<Buffer>>>> = Arc::new(
            (0..members).map(|member| kinds.iter().map(|_| Buffer::new(member as u64, members)).collect()).collect(),
        );
        let life = |member: usize| {
            let (world, board, buffers) = (world.clone(), board.clone(), buffers.clone());
            move || {
                let member = Member { world: &world, board: &board, buffers: &buffers, member, unwinds };
                let result = member.live(kinds);
                world.end(Rank(member.member));
                check(result, kinds, unwinds, member.member);
            }
        };
        let others: Vec<_> = (1..members).map(|member| thread::spawn(life(member))).collect();
        life(0)();
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// All end well; or all but the one that unwinds hear of it, if they have more to do with it.
fn check(result: Result<()>, kinds: &[Kind], unwinds: Option<Unwinds>, member: usize) {
    match (result, unwinds) {
        (Ok(()), Some(culprit)) => assert!(member == culprit.member || !needs(kinds, culprit, member), "not told"),
        (Ok(()), None) => {}
        (Err(Error::Peer { rank, .. }), Some(culprit)) => assert!(rank == Rank(culprit.member) && member != rank.0),
        (Err(error), _) => panic!("member {member}: {error}"),
    }
}

/// Whether a member cannot end well without what the culprit does after it has unwound: because it waits for it at the end of
/// that call, or because there is another call.
fn needs(kinds: &[Kind], culprit: Unwinds, member: usize) -> bool {
    let waits = match kinds[culprit.sequence as usize - 1] {
        Kind::Small => false,
        Kind::Hidden => member == 0,
        Kind::Large | Kind::Written => true,
    };
    waits || kinds.len() as u64 > culprit.sequence
}

struct Member<'a> {
    world: &'a LocalWorld,
    board: &'a Board,
    /// Of each member, for each call.
    buffers: &'a [Vec<Arc<Buffer>>],
    member: usize,
    unwinds: Option<Unwinds>,
}

impl Member<'_> {
    fn live(&self, kinds: &[Kind]) -> Result<()> {
        for (sequence, kind) in (1..).zip(kinds) {
            self.board.membership.reserve(self.member);
            if let Some(failure) = self.world.failure() {
                return Err(failure.to_error(format!("call {sequence}")));
            }
            let call = Box::new(Call { operation: Operation::AllReduce, sequence });
            // SAFETY: as in `LocalTransport::take_part`.
            let mut meeting = unsafe {
                self.board.meet(self.world, self.member, Post { call, memory: self.memory(*kind, sequence) })
            }?;
            meeting.check()?;
            self.work(&meeting, *kind, sequence);
            if self.unwinds == Some(Unwinds { member: self.member, sequence }) {
                drop(meeting);
                self.world.fail(Rank(self.member), "it unwinds".to_string());
                return Ok(());
            }
            match kind {
                Kind::Small => meeting.leave_early(true),
                Kind::Hidden if self.member != 0 => meeting.leave_early(false),
                Kind::Large | Kind::Hidden => drop(meeting.leave()?),
                Kind::Written => {
                    let post = meeting.leave()?;
                    let Memory::Write(buffer) = &post.memory else { panic!("another's post") };
                    assert_eq!(buffer.parts(), vec![sequence; self.buffers.len()]);
                }
            }
        }
        Ok(())
    }

    fn memory(&self, kind: Kind, sequence: u64) -> Memory {
        let buffer = self.buffers[self.member][sequence as usize - 1].clone();
        match kind {
            Kind::Hidden if self.member != 0 => Memory::Hidden,
            Kind::Written => Memory::Write(buffer),
            Kind::Small | Kind::Large | Kind::Hidden => Memory::Read(buffer),
        }
    }

    /// Looks at all that was brought to be read, or writes its part of it.
    fn work(&self, meeting: &Meeting<'_>, kind: Kind, sequence: u64) {
        for member in 0..meeting.members() {
            assert_eq!(meeting.post(member).call.sequence, sequence);
            match &meeting.post(member).memory {
                Memory::Write(buffer) => buffer.write(self.member, sequence),
                Memory::Read(_) => assert_eq!(meeting.numbers::<u64>(member), [member as u64]),
                Memory::Hidden => assert!(kind == Kind::Hidden && !meeting.is_readable(member)),
            }
        }
    }
}
