//! What the processes of a run tell each other beside the data.
//!
//! One thread in each process, the watcher, takes the messages; it also keeps the library going while the ranks compute.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::library::Arriving;
use super::message::{Control, garbled};
use super::wait_query::{self, Answers};
use super::world::MpiWorld;
use crate::error::Result;
use crate::host::failure::Failure;
use crate::host::watchdog::ControlPlane;
use crate::rank::Rank;

/// How often the watcher looks.
const PACE: Duration = Duration::from_millis(1);

/// Takes messages until it is told to stop.
pub(super) fn watch(world: &Arc<MpiWorld>, answers: &Answers, stop: &AtomicBool) {
    let mut inbox = Inbox::default();
    loop {
        let is_last = stop.load(Ordering::Acquire);
        if let Err(error) = look(world, answers, &mut inbox) {
            world.record(Failure::shared(error, Rank(world.own().start)));
            return;
        }
        world.sweep();
        if is_last {
            return;
        }
        thread::sleep(PACE);
    }
}

fn look(world: &Arc<MpiWorld>, answers: &Answers, inbox: &mut Inbox) -> Result<()> {
    while let Some(message) = world.control.look()? {
        inbox.0.push(world.control.take(&message)?);
    }
    while let Some((process, bytes)) = inbox.next()? {
        take(world, answers, process, Control::decode(&bytes)?)?;
    }
    Ok(())
}

/// Messages that are coming in. One whose sender was stopped may stay here, and keeps nobody else's from being read.
#[derive(Default)]
struct Inbox(Vec<Arriving>);

impl Inbox {
    /// The next message that is here, and whose it is: those of one process in the order in which it sent them.
    fn next(&mut self) -> Result<Option<(usize, Vec<u8>)>> {
        let mut held_up: Vec<usize> = Vec::new();
        for index in 0..self.0.len() {
            let message = &mut self.0[index];
            let process = message.process;
            if held_up.contains(&process) {
                continue;
            }
            if let Some(bytes) = message.bytes()? {
                self.0.remove(index);
                return Ok(Some((process, bytes)));
            }
            held_up.push(process);
        }
        Ok(None)
    }
}

fn take(world: &Arc<MpiWorld>, answers: &Answers, from: usize, control: Control) -> Result<()> {
    match control {
        Control::Fail(failure) => world.learn(failure),
        Control::End { rank, counts } => world.has_ended(rank, counts),
        Control::Done => world.is_done(from),
        Control::Ask { rank, .. } if !world.own().contains(&rank.0) => return Err(garbled()),
        Control::Ask { question, rank, at } => {
            world.tell(from, Control::Answer { question, answer: wait_query::answer(world, rank, at) });
        }
        Control::Answer { question, answer } => answers.put(question, answer),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::join::join;
    use super::super::testing::mpirun;
    use super::super::waits::Channel;
    use super::*;
    use crate::host::failure::Cause;
    use crate::host::watchdog::Options;

    /// On the clock that all processes of a machine have.
    fn now() -> u128 {
        std::time::SystemTime::UNIX_EPOCH.elapsed().expect("it is later").as_nanos()
    }

    /// Rank 1 ends with so many groups that its message is not sent before it is received, and its process is stopped then.
    #[test]
    #[ignore = "run by the test below"]
    fn child() -> Result<()> {
        let (world, answers, mut inbox) =
            (join(1, None, Options { time_limit: None, ..Options::default() })?, Answers::default(), Inbox::default());
        if world.place.process == 1 {
            let counts = (0..1000).map(|number| (Channel { number: number << 40, link: None }, u64::MAX)).collect();
            world.tell(0, Control::End { rank: Rank(1), counts });
            // To this thread: a signal to the process may be taken by another one, while this one goes on.
            // SAFETY: it does not touch memory.
            assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
            // As it is ended, before it does anything that would bring the message on its way.
            println!("is woken up at {};", now());
        }
        while world.control.look()?.is_none() {
            thread::sleep(PACE);
        }
        let failure = Failure { rank: Rank(0), cause: Cause::Own("out of luck".into()) };
        world.tell(0, Control::Fail(failure));
        while world.failure().is_none() {
            look(&world, &answers, &mut inbox)?;
        }
        println!("has heard of it at {};", now());
        std::process::exit(1);
    }

    #[test]
    fn a_process_that_was_stopped_keeps_nobody_from_hearing_of_a_failure() {
        // Else memory of a process that does not run may be read by another one.
        let without_direct_reads = |command: &mut Command| {
            command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
        };
        let text = mpirun(2, "mpi::control::tests::child", without_direct_reads);
        // `mpirun` does not keep the order of what two processes print.
        let moment = |what: &str| {
            let (_, rest) = text.split_once(what)?;
            rest.split_once(';')?.0.parse::<u128>().ok()
        };
        let has_heard = moment("has heard of it at ").expect(&text);
        assert!(moment("is woken up at ").is_none_or(|woken| has_heard < woken), "{text}");
    }
}
