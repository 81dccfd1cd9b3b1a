//! `epl-launch`: whatever happens to a worker, the run ends soon, with the right exit code and the culprit's name, and
//! leaves no process.
#![cfg(target_os = "linux")]

mod given;
mod machines;

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::launched::{LIMIT, Launched, PROMPTLY, folder, has_mpi, launch, parent, script, signal, until};
use epl_launch::watch::{Group, OpenCall, RankStatus, Reporter};
use epl_launch::{Store, Worker};

/// Says who it is, and waits for ever, as does a process of its own.
const WAITS: &str = "echo \"I am $EPL_LAUNCH_WORKER of $$\"; sleep 1000 & wait";
const TWO: [&str; 4] = ["--num_workers", "2", "--start", "processes"];

/// A worker is killed, or stopped: all end.
fn after(name: &str, start: &[&str], sent: &str, code: i32, said: &[&str]) {
    let mut run = launch(name, &script(start, WAITS), &[]);
    let processes = run.processes(2);
    signal(processes[1], sent);
    let ended = run.end(PROMPTLY);
    ended.expect(code, said);
    assert!(ended.text.contains(&format!("epl-launch: worker 1 (process {}) ", processes[1])), "{}", ended.text);
}

#[test]
fn a_worker_that_is_killed_ends_all() {
    after("killed", &TWO, "KILL", 137, &["failed: it was killed by signal 9 (SIGKILL)"]);
}

#[test]
fn a_worker_that_is_stopped_ends_all() {
    after("stopped", &TWO, "STOP", 1, &["has been stopped for "]);
}

/// As by a debugger, a profiler or a shell's job control.
#[test]
fn a_process_of_another_group_below_a_worker_may_be_stopped() {
    let text = "set -m; sleep 1000 & kill -STOP $!; sleep 4; kill -KILL $!; echo it went on";
    let patient = [&TWO[..], &["--patience", "1"]].concat();
    let ended = launch("job", &script(&patient, text), &[]).end(LIMIT);
    ended.expect(0, &["[worker 0] it went on", "[worker 1] it went on"]);
}

/// Who asks a worker to end wants no other start of it.
#[test]
fn what_a_user_stopped_is_not_started_again() {
    let again = [&TWO[..], &["--max_restarts", "2"]].concat();
    for (text, sent, code) in [
        ("echo \"I am $EPL_LAUNCH_WORKER of $$\"; exec sleep 1000", "TERM", 143),
        ("trap 'exit 130' INT; echo \"I am $EPL_LAUNCH_WORKER of $$\"; while true; do sleep 0.05; done", "INT", 130),
    ] {
        let mut run = launch("asked", &script(&again, text), &[]);
        signal(run.processes(2)[1], sent);
        let ended = run.end(PROMPTLY);
        ended.expect(code, &["epl-launch: worker 1"]);
        assert!(!ended.text.contains("epl-launch: restart"), "{}", ended.text);
    }
}

#[test]
fn a_keeper_that_is_killed_or_stopped_ends_all() {
    for (sent, said) in [("KILL", "was lost"), ("STOP", "does not answer: nothing was heard from it for ")] {
        let mut run = launch("keeper", &script(&TWO, WAITS), &[]);
        let keeper = parent(run.processes(2)[1]);
        signal(keeper, sent);
        run.end(PROMPTLY).expect(1, &["epl-launch: worker 1 (process ", said]);
    }
}

/// The launcher, whose rendezvous excuses the silence of the time when it was away itself, sees all the time that the keeper is
/// stopped: it does not end it before it is missed, as it then would be told to be lost.
#[test]
fn a_keeper_that_is_stopped_while_the_launcher_is_away_is_missed() {
    let mut run = launch("away", &script(&TWO, WAITS), &[]);
    let keeper = parent(run.processes(2)[1]);
    signal(keeper, "STOP");
    thread::sleep(Duration::from_secs(2));
    signal(run.id(), "STOP");
    thread::sleep(Duration::from_secs(2));
    signal(run.id(), "CONT");
    run.end(PROMPTLY).expect(1, &["epl-launch: worker 1 (process ", "does not answer: nothing was heard from it for "]);
}

#[test]
fn a_worker_that_exits_ends_all_with_its_code_and_its_last_lines() {
    let text = "if [ $EPL_LAUNCH_WORKER = 1 ]; then echo these are; echo last words >&2; exit 3; fi; sleep 1000";
    let ended = launch("exits", &script(&TWO, text), &[]).end(LIMIT);
    ended.expect(3, &["failed: it exited with code 3", "epl-launch:   these are\n", "epl-launch:   last words\n"]);
    // One that is done is waited for, and ends nobody.
    let text = "if [ $EPL_LAUNCH_WORKER = 1 ]; then exit 0; fi; sleep 1; echo I stayed";
    launch("exits", &script(&TWO, text), &[]).end(LIMIT).expect(0, &["[worker 0] I stayed"]);
}

/// What the next tests start: meets the others, then does what it is told.
#[test]
fn joins() {
    let Ok(what) = std::env::var("EPL_TEST_JOINS") else { return };
    let worker = Worker::from_environment(None).expect("it can be read").expect("it was launched");
    let meeting = worker.meet(LIMIT).expect("all meet");
    let client = meeting.client();
    client.set(&format!("of {}", worker.worker()), b"here").expect("it is kept");
    for other in 0..worker.workers() {
        assert_eq!(client.get(&format!("of {other}"), LIMIT).expect("it is there"), b"here");
    }
    println!("\nI am {} of {}", worker.worker(), std::process::id());
    // Nobody fails while another still reads.
    client.set(&format!("{} has read", worker.worker()), b"").expect("it is kept");
    if worker.worker() == 1 {
        client.get("0 has read", LIMIT).expect("it is there");
    }
    match what.as_str() {
        "panics" if worker.worker() == 1 => panic!("as it was told"),
        "fails" if worker.worker() == 1 => {
            client.fail("rank 1: loss is not a number");
            // Not the first to end.
            thread::sleep(Duration::from_millis(300));
            std::process::exit(9);
        }
        "fails well" => {
            if worker.worker() == 1 {
                client.fail("rank 1: no memory");
            }
            until("the failure", LIMIT, || client.failure());
            std::process::exit(0);
        }
        "leaves" => return,
        "tells what it does" => {
            let number = worker.worker();
            let reporter = Reporter::from_environment(number, move || vec![doing(number)]);
            assert!(reporter.is_some(), "somebody watches");
            // Longer than it takes until it is told where there is no terminal.
            thread::sleep(Duration::from_secs(9));
            return;
        }
        _ => {}
    }
    let error = until("a failure", LIMIT, || client.failure());
    println!("\nI heard that {error}");
    std::process::exit(7);
}

fn joining(name: &str, what: &str, more: &[&str]) -> Launched {
    joining_with(name, what, more, &[])
}

fn joining_with(name: &str, what: &str, more: &[&str], environment: &[(&str, &str)]) -> Launched {
    let own = std::env::current_exe().expect("a test has a path");
    let own = own.to_str().expect("it is text");
    let environment = [&[("EPL_TEST_JOINS", what)], environment].concat();
    launch(name, &[&TWO, more, &["--", own, "--exact", "epl_launch::joins", "--nocapture"]].concat(), &environment)
}

/// A rank that has made four steps, or five; the first one is in a barrier to which the second has not come.
fn doing(rank: usize) -> RankStatus {
    let group = Group { name: "world".into(), members: vec![0, 1] };
    let open = || OpenCall {
        group: group.clone(),
        sequence: 7,
        words: "barrier, call 7 of group `world`".into(),
        since: Duration::from_secs(2),
    };
    let (call, calls) = ((rank == 0).then(open), vec![(group.clone(), 7 - rank as u64)]);
    RankStatus { rank, step: 4 + rank as u64, steps: Some(9), call, calls, ..RankStatus::default() }
}

#[test]
fn who_watches_sees_what_ranks_do_and_for_whom_they_wait() {
    let ended = joining("watched", "tells what it does", &["--watch"]).end(LIMIT);
    ended.expect(
        0,
        &[
            "epl-launch: rank 0: step 4/9, ",
            " for rank 1 in barrier, call 7 of group `world`\n",
            "epl-launch: rank 1: step 5/9, ",
        ],
    );
    let of_second: Vec<&str> = ended.text.lines().filter(|line| line.contains("rank 1: step")).collect();
    assert!(of_second.len() >= 2 && of_second[0].ends_with(", runs"), "{of_second:?}");
    assert!(of_second[of_second.len() - 1].ends_with(", ended"), "{of_second:?}");
    // Who does not watch sees nothing, and the programs are told of no folder.
    let ended = launch("unwatched", &script(&TWO, "echo \"folder: $EPL_LAUNCH_WATCH\""), &[]).end(LIMIT);
    ended.expect(0, &["[worker 0] folder: \n"]);
    assert!(!ended.text.contains("rank 0"), "{}", ended.text);
}

#[test]
fn programs_meet_and_leave() {
    joining("meet", "leaves", &[]).end(LIMIT).expect(0, &["[worker 0] I am 0 of ", "[worker 1] I am 1 of "]);
}

#[test]
fn a_worker_that_panics_ends_all() {
    let ended = joining("panics", "panics", &[]).end(LIMIT);
    ended.expect(101, &["epl-launch: worker 1 (process ", "failed: it panicked", "epl-launch:   as it was told"]);
}

#[test]
fn what_a_program_says_of_its_failure_is_heard_by_all() {
    let ended = joining("fails", "fails", &[]).end(LIMIT);
    ended.expect(
        9,
        &[
            "epl-launch: worker 1 (process ",
            "failed: rank 1: loss is not a number",
            "[worker 0] I heard that worker 1 failed: rank 1: loss is not a number",
        ],
    );
}

/// Though all programs exit with 0.
#[test]
fn a_failure_that_a_program_has_told_counts() {
    joining("fails well", "fails well", &[])
        .end(LIMIT)
        .expect(1, &["epl-launch: worker 1 ", "failed: rank 1: no memory"]);
}

#[test]
fn a_joined_worker_that_is_killed_is_named_though_others_end_first() {
    for killed in [0, 1] {
        let mut run = joining("joined killed", "waits", &[]);
        let processes = run.processes(2);
        signal(processes[killed], "KILL");
        let named = format!("epl-launch: worker {killed} (process {}) ", processes[killed]);
        run.end(PROMPTLY).expect(137, &[&named, "failed: it was killed by signal 9 (SIGKILL)"]);
    }
}

/// More workers than a member of the session may wait for things.
#[test]
fn the_first_of_many_workers_that_end_is_named() {
    let own = std::env::current_exe().expect("a test has a path");
    let program = ["--", own.to_str().expect("it is text"), "--exact", "epl_launch::joins", "--nocapture"];
    let many = [&["--num_workers", "80", "--start", "processes"][..], &program].concat();
    let mut run = launch("many", &many, &[("EPL_TEST_JOINS", "waits")]);
    // Their numbers are sorted as text.
    let process = run.processes(80)[0];
    signal(process, "KILL");
    let named = format!("epl-launch: worker 0 (process {process}) ");
    run.end(LIMIT).expect(137, &[&named, "failed: it was killed by signal 9 (SIGKILL)"]);
}

#[test]
fn a_joined_worker_that_is_stopped_ends_all() {
    let mut run = joining("joined", "waits", &[]);
    let stopped = run.processes(2)[1];
    signal(stopped, "STOP");
    run.end(PROMPTLY).expect(1, &[&format!("epl-launch: worker 1 (process {stopped}) ")]);
}

#[test]
fn a_port_in_use_is_named() {
    let used = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = used.local_addr().expect("it has an address").to_string();
    let machine = ["--machine_list", &address, "--machine_rank", "0", "--start", "processes"];
    let ended = launch("port", &script(&machine, WAITS), &[]).end(LIMIT);
    ended.expect(1, &[&format!("the rendezvous cannot listen at {address}: "), "in use"]);
}

#[test]
fn signals_are_handed_on() {
    let traps =
        "trap 'echo got it; exit 0' TERM; echo \"I am $EPL_LAUNCH_WORKER of $$\"; while true; do sleep 0.05; done";
    let mut run = launch("signals", &script(&[&TWO[..], &["--watch"]].concat(), traps), &[]);
    run.processes(2);
    assert_eq!(run.temporary_folders().len(), 2, "of the socket and of what ranks tell: gone at the end");
    signal(run.id(), "TERM");
    run.end(LIMIT).expect(0, &["[worker 0] got it", "[worker 1] got it"]);
    for (sent, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut run = launch("signals", &script(&TWO, "echo \"I am $EPL_LAUNCH_WORKER of $$\"; exec sleep 1000"), &[]);
        run.processes(2);
        signal(run.id(), sent);
        run.end(PROMPTLY).expect(code, &[]);
    }
    // Who does not listen is killed at the third.
    let deaf = "trap '' TERM; echo \"I am $EPL_LAUNCH_WORKER of $$\"; while true; do sleep 0.05; done";
    let mut run = launch("signals", &script(&TWO, deaf), &[]);
    run.processes(2);
    for _ in 0..3 {
        signal(run.id(), "TERM");
        thread::sleep(Duration::from_millis(500));
    }
    run.end(PROMPTLY).expect(143, &["epl-launch: interrupted by signal 15"]);
    // What reaches the keepers, too, as from who ends a whole session, does not end their programs before the time.
    let slow = "trap 'sleep 1; echo saved; exit 0' TERM; echo \"I am $EPL_LAUNCH_WORKER of $$\"; while true; do sleep 0.05; done";
    let mut run = launch("signals", &script(&[&TWO[..], &["--grace", "0.2"]].concat(), slow), &[]);
    let keepers = run.processes(2).into_iter().map(parent).collect::<Vec<_>>();
    keepers.iter().for_each(|keeper| signal(*keeper, "TERM"));
    thread::sleep(Duration::from_millis(500));
    signal(run.id(), "TERM");
    run.end(LIMIT).expect(0, &["[worker 0] saved", "[worker 1] saved"]);
}

#[test]
fn a_keeper_that_cannot_write_its_log_is_the_cause() {
    let logs = folder("logs that cannot be");
    fs::create_dir(logs.join("worker-0.log")).expect("a folder can be made");
    let with = [&TWO[..], &["--log_dir", logs.to_str().expect("it is text")]].concat();
    let ended = launch("no log", &script(&with, WAITS), &[]).end(LIMIT);
    ended.expect(1, &["the log of worker 0 cannot be written", "the keeper of worker 0 exited with code 1"]);
}

#[test]
fn no_process_survives_the_launcher() {
    let mut run = launch("orphans", &script(&TWO, WAITS), &[]);
    run.processes(2);
    signal(run.id(), "KILL");
    until("the end of all", PROMPTLY, || run.left().is_empty().then_some(()));
    // Nor those that left their group, or ignore that they are asked to end.
    let text =
        "(trap '' TERM; setsid sleep 1000) & setsid sleep 1000 & echo \"I am $EPL_LAUNCH_WORKER of $$\"; sleep 0.3";
    let daemons = [&TWO[..], &["--grace", "0.5"]].concat();
    launch("daemons", &script(&daemons, text), &[]).end(LIMIT).expect(0, &[]);
}

#[test]
fn each_worker_has_a_log_and_all_have_one() {
    let logs = folder("logs of workers");
    let text = "echo out of $EPL_LAUNCH_WORKER; echo err of $EPL_LAUNCH_WORKER >&2; printf 'no end'";
    let with = [&TWO[..], &["--log_dir", logs.to_str().expect("it is text")]].concat();
    launch("logs", &script(&with, text), &[]).end(LIMIT).expect(0, &["[worker 1] no end"]);
    let read = |name: &str| fs::read_to_string(logs.join(name)).expect("the log is there");
    for worker in 0..2 {
        let log = read(&format!("worker-{worker}.log"));
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, [format!("err of {worker}").as_str(), "no end", format!("out of {worker}").as_str()]);
        assert!(read("merged.log").contains(&format!("[worker {worker}] out of {worker}\n")));
    }
}

#[test]
fn what_cannot_be_is_said_before_anything_is_started() {
    let refused = |arguments: &[&str], code: i32, said: &str| {
        launch("refused", arguments, &[]).end(LIMIT).expect(code, &[said]);
    };
    refused(&["--num_workers", "0", "true"], 2, "both are at least 1");
    refused(&["--num_workers", "2"], 2, "required arguments were not provided");
    refused(&["--num_worker", "2", "true"], 2, "num_workers");
    refused(&["--patience", "0.3", "true"], 2, "0.3 seconds; allowed: at least 1");
    let script = folder("a script").join("script");
    fs::write(&script, "#!/usr/bin/env python3\nprint()\n").expect("a file can be written");
    refused(&[script.to_str().expect("it is text")], 2, "may not be executed; chmod +x");
    refused(&["no-such-program"], 2, "there is no program `no-such-program`");
    refused(&["--machine_list", "a:1,b:1", "--num_workers", "2", "--start", "processes", "true"], 2, "--machine_rank");
    let secret =
        ["--machine_list", "a:1,b:1", "--machine_rank", "0", "--num_workers", "2", "--start", "processes", "true"];
    refused(&secret, 2, "2 machines, and EPL_LAUNCH_SECRET is not set");
    let port =
        ["--machine_list", "a:0,b:1", "--machine_rank", "1", "--num_workers", "2", "--start", "processes", "true"];
    refused(&port, 2, "the first machine's port, a:0, and the next one are where all meet");
    refused(&["--log_dir", "/proc/no", "true"], 2, "--log_dir /proc/no");
}

#[test]
fn a_run_that_fails_is_started_again_as_often_as_allowed() {
    let text = "echo \"try $EPL_LAUNCH_RESTART\"; if [ $EPL_LAUNCH_RESTART = 2 ]; then exit 0; fi; exit 4";
    let restarts = |most| [&TWO[..], &["--max_restarts", most]].concat();
    let ended = launch("restarts", &script(&restarts("2"), text), &[]).end(LIMIT);
    ended.expect(0, &["try 0", "restart 1 of 2", "try 1", "restart 2 of 2", "try 2"]);
    launch("restarts", &script(&restarts("1"), text), &[]).end(LIMIT).expect(4, &["restart 1 of 1"]);
    // Who was asked to end is not started again.
    let mut run =
        launch("restarts", &script(&restarts("1"), "echo \"I am $EPL_LAUNCH_WORKER of $$\"; exec sleep 1000"), &[]);
    run.processes(2);
    signal(run.id(), "TERM");
    let ended = run.end(PROMPTLY);
    assert!(ended.code == Some(143) && !ended.text.contains("restart 1"), "{}", ended.text);
}

const MPI: [&str; 4] = ["--num_workers", "2", "--start", "mpi"];

#[test]
fn mpi_starts_workers_that_are_watched_as_others() {
    if !has_mpi() {
        return;
    }
    let text =
        "echo \"$EPL_LAUNCH_WORKER is $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE\"; echo $EPL_LAUNCH_TRANSPORT";
    let ended = launch("mpi", &script(&MPI, text), &[]).end(LIMIT);
    ended.expect(
        0,
        &[
            "2 processes over MPI, 1 ranks each (--start mpi)",
            "[worker 0] 0 is 0 of 2",
            "[worker 1] 1 is 1 of 2",
            "[worker 1] mpi",
        ],
    );
    after("mpi killed", &MPI, "KILL", 137, &["failed: it was killed by signal 9 (SIGKILL)"]);
    after("mpi stopped", &MPI, "STOP", 1, &["has been stopped for "]);
    let text = "if [ $EPL_LAUNCH_WORKER = 1 ]; then echo last words; exit 3; fi; sleep 1000";
    launch("mpi exits", &script(&MPI, text), &[])
        .end(LIMIT)
        .expect(3, &["epl-launch: worker 1", "epl-launch:   last words"]);
    let mut run = launch("mpi signals", &script(&MPI, "echo \"I am $EPL_LAUNCH_WORKER of $$\"; exec sleep 1000"), &[]);
    run.processes(2);
    signal(run.id(), "TERM");
    run.end(PROMPTLY).expect(143, &[]);
    let mut run = launch("mpi orphans", &script(&MPI, WAITS), &[]);
    run.processes(2);
    signal(run.id(), "KILL");
    until("the end of all", PROMPTLY, || run.left().is_empty().then_some(()));
}
