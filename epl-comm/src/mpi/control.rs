//! What the processes of a run tell each other beside the data.
//!
//! One thread in each process, the watcher, takes the messages; it also keeps the library going while the ranks compute.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::failure::Failure;
use super::inquiry::{self, Answer, Answers};
use super::wire::{Reader, Writer};
use super::world::World;
use crate::error::{Error, Result};
use crate::rank::Rank;

/// A failure: who, why.
pub(super) const FAIL: u64 = 1;
/// A rank has ended: who, and the last numbers it took.
pub(super) const END: u64 = 2;
/// No rank of the process runs any more.
pub(super) const DONE: u64 = 3;
/// What keeps a rank from a call? The number of the question, the rank, the call.
pub(super) const ASK: u64 = 4;
/// The answer.
pub(super) const ANSWER: u64 = 5;

/// How often the watcher looks.
const PACE: Duration = Duration::from_millis(1);

/// Takes messages until it is told to stop.
pub(super) fn watch(world: &Arc<World>, answers: &Answers, stop: &AtomicBool) {
    loop {
        let is_last = stop.load(Ordering::Acquire);
        if let Err(error) = look(world, answers) {
            world.fail_together(Rank(world.own().start), error);
            return;
        }
        world.sweep();
        if is_last {
            return;
        }
        thread::sleep(PACE);
    }
}

fn look(world: &Arc<World>, answers: &Answers) -> Result<()> {
    while let Some(message) = world.control.look()? {
        let bytes = world.control.take(&message)?;
        take(world, answers, message.process, &mut Reader(&bytes))?;
    }
    Ok(())
}

fn take(world: &Arc<World>, answers: &Answers, from: usize, bytes: &mut Reader<'_>) -> Result<()> {
    match bytes.number()? {
        FAIL => world.record(Failure::read(bytes)?, false),
        END => {
            let (rank, count) = (bytes.rank()?, bytes.number()?);
            let counts = (0..count).map(|_| Ok((bytes.number()?, bytes.number()?))).collect::<Result<_>>()?;
            world.has_ended(rank, counts);
        }
        DONE => {
            world.done.fetch_add(1, Ordering::AcqRel);
        }
        ASK => {
            let (question, rank, at) = (bytes.number()?, bytes.rank()?, inquiry::place(bytes)?);
            let mut reply = Writer::default();
            inquiry::answer(world, rank, at).write(reply.number(ANSWER).number(question));
            world.tell(from, reply.0);
        }
        ANSWER => answers.put(bytes.number()?, Answer::read(bytes)?),
        other => {
            return Err(Error::Medium {
                message: format!(
                    "process {from} sent a message of kind {other}; run the same program in all processes"
                ),
            });
        }
    }
    Ok(())
}
