//! Processes that come to an end of their own: the others end soon, and somebody says who it was.

use std::process::Command;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result, mpi};

use crate::kind::launcher;
use crate::processes::{World, mpirun};

/// In the environment: what goes wrong.
pub const KIND: &str = "EPL_MPI_TEST_FAULT";

const CHILD: [&str; 3] = ["--exact", "faults::child", "--ignored"];
/// All that others need of the culprit is done.
const AT_THE_END: &str = "stop at the end";
const CULPRIT: usize = 1;
const WORLDS: [World; 3] = [World::of(3, 1), World::of(2, 2), World::of(4, 1).on_hosts_of(2)];

fn signal(name: &str) {
    let id = std::process::id().to_string();
    Command::new("kill").args([name, &id]).status().unwrap();
    std::thread::sleep(Duration::from_secs(300));
}

fn go_wrong(kind: &str) -> Result<()> {
    match kind {
        "error" => return Err(Error::invalid("out of luck")),
        "panic" => panic!("out of luck"),
        "exit" => std::process::exit(3),
        "kill" => signal("-KILL"),
        "stop" | "stop under way" => signal("-STOP"),
        "sleep" => std::thread::sleep(Duration::from_secs(300)),
        _ => {}
    }
    Ok(())
}

fn life(kind: &str, world: &ProcessGroup) -> Result<()> {
    let others = world.split("others", usize::from(world.rank() == 0), 0)?;
    for round in 0..10 {
        let x = Tensor::<1>::ones([100_000], &Device::flex());
        if round == 3 && kind == "stop under way" && world.rank() != CULPRIT {
            // Nobody of this process waits for it but its helper thread.
            drop(world.start_all_reduce(x, ReduceOp::Sum)?);
            return Ok(());
        }
        if round == 3 && kind != AT_THE_END && world.rank() == CULPRIT {
            if kind == "outstanding" {
                drop(world.start_all_reduce(x, ReduceOp::Sum)?);
            }
            return go_wrong(kind);
        }
        // Rank 0 waits for those that wait for rank 1.
        others.all_reduce(x.clone(), ReduceOp::Sum)?;
        world.start_all_reduce(x, ReduceOp::Sum)?.wait()?;
    }
    if kind == AT_THE_END && world.rank() == CULPRIT {
        // Messages of the last call are on their way to the others.
        std::thread::sleep(Duration::from_millis(500));
        signal("-STOP");
    }
    Ok(())
}

#[test]
#[ignore = "run by the tests below"]
fn child() {
    let kind = std::env::var(KIND).unwrap();
    let limit = Duration::from_secs(if kind == "sleep" || kind.starts_with("stop") { 8 } else { 200 });
    let ended = launcher().time_limit(limit).run(|world| life(&kind, &world));
    let (rank, error) = ended.expect_err("one of them goes wrong");
    assert_eq!(rank, Rank(CULPRIT), "{error}");
    println!("process {} says: {error}", mpi::place().unwrap().process);
    std::process::exit(1);
}

/// What the processes said, what `mpirun` said, and its exit code.
fn fault(kind: &str, world: World) -> (Vec<String>, String, Option<i32>) {
    let begun = Instant::now();
    let output = mpirun(world, Duration::from_secs(100), &CHILD, kind);
    assert!(begun.elapsed() < Duration::from_secs(60), "{kind} took {:?}", begun.elapsed());
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().filter_map(|line| line.split_once(" says: ")).map(|(_, text)| text.to_string()).collect();
    (said, String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

/// Runs in which everybody hears of the failure, and checks what each process says.
fn all_say(kinds: &[&str], check: impl Fn(&str) -> bool) {
    for world in WORLDS {
        for kind in kinds {
            let (said, stderr, code) = fault(kind, world);
            assert_eq!((said.len(), code), (world.processes, Some(1)), "{kind} in {world:?}: {said:?}\n{stderr}");
            assert!(said.iter().all(|text| check(text)), "{kind} in {world:?}: {said:?}");
        }
    }
}

#[test]
fn an_error_and_a_panic() {
    let own = ["out of luck", "panicked: out of luck"];
    all_say(&["error", "panic"], |text| {
        let of_a_peer = text.starts_with("rank 1 failed: ") && text.contains("out of luck (noticed in all_reduce(sum)");
        own.contains(&text) || of_a_peer
    });
}

#[test]
fn a_return() {
    let cause = "rank 1 failed: it returned without taking part in all_reduce(sum) of f32 [100000], call ";
    all_say(&["return"], |text| text.starts_with(cause));
}

/// Nobody waits until what it has started is over: that waits for those who wait for it.
#[test]
fn a_return_with_a_started_call_outstanding() {
    let cause =
        "rank 1 failed: it returned without taking part in all_reduce(sum) of f32 [100000], call 4 of group `others`";
    all_say(&["outstanding"], |text| text.starts_with(cause));
}

/// Runs in which one process says nothing more; checks what those say that come to it before they are ended.
fn some_say(worlds: &[World], kind: &str, part: &str) {
    for world in worlds.iter().copied() {
        let (said, stderr, code) = fault(kind, world);
        assert!(code == Some(1) && !said.is_empty(), "{kind} in {world:?}: {said:?}\n{stderr}");
        assert!(said.iter().all(|text| text.contains(part)), "{kind} in {world:?}: {said:?}");
    }
}

#[test]
fn one_that_hangs() {
    some_say(
        &WORLDS,
        "sleep",
        "for rank 1, whose last call was all_reduce(sum) of f32 [100000], call 4 of group `world`, which ended",
    );
}

#[test]
fn one_that_was_stopped() {
    some_say(&WORLDS, "stop", STOPPED);
}

const STOPPED: &str = "for rank 1, whose process does not answer: it was stopped, or it is gone";
/// Of which a process that is stopped takes no other rank with it.
const OF_ONE_EACH: [World; 2] = [WORLDS[0], WORLDS[2]];

#[test]
fn one_that_was_stopped_when_all_others_were_done() {
    some_say(&OF_ONE_EACH, AT_THE_END, STOPPED);
}

/// Those who have returned wait for what they have started, which ends with the time limit.
#[test]
fn one_that_was_stopped_while_others_have_calls_under_way() {
    some_say(&OF_ONE_EACH, "stop under way", STOPPED);
}

#[test]
fn one_that_was_killed_and_one_that_leaves() {
    let (_, stderr, code) = fault("kill", WORLDS[0]);
    assert!(stderr.contains("process rank 1 ") && stderr.contains("signal 9"), "{stderr}");
    assert_ne!(code, Some(0));
    let (_, stderr, code) = fault("exit", WORLDS[0]);
    assert!(stderr.contains("Exit code:    3") && stderr.contains(",1]"), "{stderr}");
    assert_eq!(code, Some(3));
}
