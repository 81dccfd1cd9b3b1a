//! Processes that come to an end of their own: the others end soon, and somebody says who it was.

use std::process::Command;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result, mpi};

use crate::processes::mpirun;

/// In the environment: what goes wrong.
pub const KIND: &str = "EPL_MPI_TEST_FAULT";

const CHILD: [&str; 3] = ["--exact", "faults::child", "--ignored"];
const CULPRIT: usize = 1;
const PROCESSES: usize = 3;

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
        "stop" => signal("-STOP"),
        "sleep" => std::thread::sleep(Duration::from_secs(300)),
        _ => {}
    }
    Ok(())
}

fn life(kind: &str, world: &ProcessGroup) -> Result<()> {
    let pair = world.split("pair", usize::from(world.rank() == 0), 0)?;
    for round in 0..10 {
        if round == 3 && world.rank() == CULPRIT {
            return go_wrong(kind);
        }
        let x = Tensor::<1>::ones([100_000], &Device::flex());
        // Rank 0 waits for rank 2, which waits for rank 1.
        pair.all_reduce(x.clone(), ReduceOp::Sum)?;
        world.start_all_reduce(x, ReduceOp::Sum)?.wait()?;
    }
    Ok(())
}

#[test]
#[ignore = "run by the tests below"]
fn child() {
    let kind = std::env::var(KIND).unwrap();
    let limit = Duration::from_secs(if matches!(&*kind, "sleep" | "stop") { 2 } else { 200 });
    let ended = mpi::Launcher::new().time_limit(limit).run(|world| life(&kind, &world));
    let (rank, error) = ended.expect_err("one of them goes wrong");
    assert_eq!(rank, Rank(CULPRIT));
    println!("process {} says: {error}", mpi::place().unwrap().process);
    std::process::exit(1);
}

/// What the processes said, what `mpirun` said, and its exit code.
fn fault(kind: &str) -> Option<(Vec<String>, String, Option<i32>)> {
    if mpi::is_launched() {
        return None;
    }
    let begun = Instant::now();
    let output = mpirun(PROCESSES, 1, Duration::from_secs(100), &CHILD, kind);
    assert!(begun.elapsed() < Duration::from_secs(60), "{kind} took {:?}", begun.elapsed());
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().filter_map(|line| line.split_once(" says: ")).map(|(_, text)| text.to_string()).collect();
    Some((said, String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code()))
}

#[test]
fn an_error_and_a_panic() {
    for kind in ["error", "panic"] {
        let Some((said, stderr, code)) = fault(kind) else { return };
        assert_eq!((said.len(), code), (PROCESSES, Some(1)), "{said:?}\n{stderr}");
        assert!(said.iter().all(|text| text.contains("out of luck")), "{said:?}");
        assert_eq!(said.iter().filter(|text| text.starts_with("rank 1 failed: ")).count(), PROCESSES - 1, "{said:?}");
    }
}

#[test]
fn a_return() {
    let Some((said, stderr, code)) = fault("return") else { return };
    assert_eq!((said.len(), code), (PROCESSES, Some(1)), "{said:?}\n{stderr}");
    let text =
        "rank 1 failed: it returned without taking part in all_reduce(sum) of f32 [100000], call 4 of group `pair`";
    assert!(said.iter().all(|said| said.starts_with(text)), "{said:?}");
}

#[test]
fn one_that_hangs() {
    let Some((said, stderr, code)) = fault("sleep") else { return };
    assert!(code == Some(1) && !said.is_empty(), "{said:?}\n{stderr}");
    let last = "for rank 1, whose last call was all_reduce(sum) of f32 [100000], call 4 of group `world`, which ended";
    assert!(said.iter().all(|text| text.contains(last)), "{said:?}");
}

#[test]
fn one_that_was_stopped() {
    let Some((said, stderr, code)) = fault("stop") else { return };
    assert!(code == Some(1) && !said.is_empty(), "{said:?}\n{stderr}");
    let answer = "for rank 1, whose process does not answer: it was stopped, or it is gone";
    assert!(said.iter().all(|text| text.contains(answer)), "{said:?}");
}

#[test]
fn one_that_was_killed_and_one_that_leaves() {
    let Some((_, stderr, code)) = fault("kill") else { return };
    assert!(stderr.contains("process rank 1 ") && stderr.contains("signal 9"), "{stderr}");
    assert_ne!(code, Some(0));
    let Some((_, stderr, code)) = fault("exit") else { return };
    assert!(stderr.contains("Exit code:    3") && stderr.contains(",1]"), "{stderr}");
    assert_eq!(code, Some(3));
}
