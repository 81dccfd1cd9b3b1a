//! Launchers of several machines: what becomes of one becomes of all.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use epl_launch::Store;
use epl_launch::rendezvous::{Client, Secret, Server, Settings};

use crate::epl_launch::{TWO, WAITS, joining_with};
use crate::launched::{LIMIT, Launched, PROMPTLY, folder, launch, parent, script, signal, until};

/// Two addresses whose ports, and the next ones, are free.
fn machines() -> String {
    let free = |port: &u16| [*port, port + 1].into_iter().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    // Tests run at the same time.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = 20_000 + (std::process::id() % 100) as u16 * 100 + NEXT.fetch_add(4, Ordering::SeqCst);
    let first = (begin..begin + 2_000).step_by(2).find(free).expect("two ports are free");
    format!("127.0.0.1:{first},127.0.0.1:{}", first + 2)
}

/// What agents know of the secret that their machines share.
fn secret_of_agents() -> Secret {
    Secret::from_bytes(format!("keepers {}", SHARED.1).as_bytes()).expect("it is long enough")
}

const SHARED: (&str, &str) = ("EPL_LAUNCH_SECRET", "a secret of two machines");

#[test]
fn a_machine_that_never_comes_is_named() {
    let list = machines();
    let first = [&TWO[..], &["--machine_list", &list, "--machine_rank", "0", "--join_timeout", "2"]].concat();
    let ended = launch("no second", &script(&first, WAITS), &[SHARED]).end(LIMIT);
    ended.expect(1, &["worker 1 did not come within 2.0 s (1 of 2 have not come: 1)"]);
    assert!(!ended.text.contains("I am"), "nothing was started:\n{}", ended.text);
    let list = machines();
    let second = [&TWO[..], &["--machine_list", &list, "--machine_rank", "1", "--join_timeout", "1"]].concat();
    let ended = launch("no first", &script(&second, WAITS), &[SHARED]).end(LIMIT);
    ended.expect(1, &["worker 1 could not join the rendezvous at 127.0.0.1:"]);
}

#[test]
fn two_machines_end_together() {
    let list = machines();
    let text = "echo \"I am $EPL_LAUNCH_WORKER of $$\"; if [ $EPL_LAUNCH_WORKER = 2 ]; then exit 5; fi; sleep 1000";
    let start = |rank: &'static str| {
        let machine = ["--num_workers", "4", "--start", "processes", "--machine_list", &list, "--machine_rank", rank];
        launch(&format!("machine {rank}"), &script(&machine, text), &[SHARED])
    };
    let mut runs = [start("0"), start("1")];
    for run in &mut runs {
        run.end(LIMIT).expect(5, &["epl-launch: worker 2", "failed: it exited with code 5"]);
    }
    assert!(runs[0].text().contains("[worker 1] I am 1") && !runs[0].text().contains("[worker 2]"));
    assert!(runs[1].text().contains("[worker 3] I am 3") && runs[1].text().contains("[worker 2]"));
}

/// Programs that meet, on two machines.
fn joining_machines(name: &str, what: &str) -> [Launched; 2] {
    let list = machines();
    ["0", "1"].map(|rank| {
        let machine = ["--machine_list", &list, "--machine_rank", rank];
        joining_with(&format!("{name} {rank}"), what, &machine, &[SHARED])
    })
}

#[test]
fn the_first_machine_that_watches_sees_the_ranks_of_all() {
    let list = machines();
    let [mut first, mut second] = ["0", "1"].map(|rank| {
        let machine = ["--watch", "--machine_list", &list, "--machine_rank", rank];
        joining_with(&format!("watched {rank}"), "tells what it does", &machine, &[SHARED])
    });
    let ended = first.end(LIMIT);
    // The rank of the other machine has not come to the call: the first one can tell.
    ended.expect(0, &["epl-launch: rank 1: step 5/9, ", " for rank 1 in barrier, call 7 of group `world`\n"]);
    let ended = second.end(LIMIT);
    ended.expect(0, &["epl-launch: rank 1: step 5/9, "]);
    assert!(!ended.text.contains("rank 0"), "{}", ended.text);
}

#[test]
fn all_machines_name_the_program_that_failed_first() {
    for killed in [0, 1] {
        let mut runs = joining_machines("met", "waits");
        let processes: Vec<u32> = runs.iter_mut().map(|run| run.processes(1)[0]).collect();
        signal(processes[killed], "KILL");
        for run in &mut runs {
            let named = format!("epl-launch: worker {killed} ");
            run.end(PROMPTLY).expect(137, &[&named, "failed: it was killed by signal 9 (SIGKILL)"]);
        }
    }
    for mut run in joining_machines("said", "fails") {
        run.end(LIMIT).expect(9, &["epl-launch: worker 1 "]);
    }
}

#[test]
fn who_waits_for_another_machine_can_be_interrupted() {
    for (sent, code) in [("INT", 130), ("TERM", 143)] {
        let list = machines();
        let first = [&TWO[..], &["--machine_list", &list, "--machine_rank", "0"]].concat();
        let mut run = launch("waiting", &script(&first, WAITS), &[SHARED]);
        until("the keeper", LIMIT, || (run.left().len() > 1).then_some(()));
        thread::sleep(Duration::from_millis(500));
        signal(run.id(), sent);
        run.end(PROMPTLY).expect(code, &[&format!("epl-launch: interrupted by signal {}", code - 128)]);
    }
}

#[test]
fn a_stopped_keeper_on_another_machine_ends_all() {
    let mut runs = two_machines("stopped keeper", [&[], &[]], WAITS);
    let keepers: Vec<u32> = runs.iter_mut().map(|run| parent(run.processes(1)[0])).collect();
    signal(keepers[1], "STOP");
    for run in &mut runs {
        run.end(PROMPTLY).expect(1, &["worker 1 "]);
    }
}

/// Two launchers as two machines, with what each is given besides.
fn two_machines(name: &str, more: [&[&str]; 2], text: &str) -> [Launched; 2] {
    let list = machines();
    [0, 1].map(|rank| {
        let number = rank.to_string();
        let two = if more[rank].contains(&TWO[0]) { &TWO[2..] } else { &TWO[..] };
        let machine = [two, &["--machine_list", &list, "--machine_rank", &number], more[rank]].concat();
        launch(&format!("{name} {rank}"), &script(&machine, text), &[SHARED])
    })
}

#[test]
fn all_machines_restart_or_none() {
    let text = "echo \"try $EPL_LAUNCH_RESTART of $EPL_LAUNCH_ID.\"; if [ $EPL_LAUNCH_RESTART$EPL_LAUNCH_WORKER = 01 ]; then exit 4; fi; \
                if [ $EPL_LAUNCH_RESTART = 1 ]; then exit 0; fi; sleep 1000";
    let once = ["--max_restarts", "1"];
    let mut ids = BTreeSet::new();
    for mut run in two_machines("again", [&once, &once], text) {
        let ended = run.end(LIMIT);
        ended.expect(0, &["try 0", "restart 1 of 1", "try 1"]);
        let told = ended.text.lines().filter_map(|line| line.split_once("] try ")?.1.split_once(" of "));
        ids.extend(told.map(|(_, id)| id.to_string()));
    }
    assert!(ids.len() == 1 && ids.iter().all(|id| id.len() > 16), "one launch: {ids:?}");
    // The user of one machine wants an end.
    let waits = "echo \"I am $EPL_LAUNCH_WORKER of $$\"; exec sleep 1000";
    let mut runs = two_machines("interrupted", [&once, &once], waits);
    runs.iter_mut().for_each(|run| drop(run.processes(1)));
    signal(runs[1].id(), "TERM");
    for run in &mut runs {
        let ended = run.end(LIMIT);
        ended.expect(143, &[]);
        assert!(!ended.text.contains("restart 1"), "{}", ended.text);
    }
    assert!(runs[0].text().contains("no restart: machine 1 (127.0.0.1:"), "{}", runs[0].text());
}

/// There is nobody to tell of it yet.
#[test]
fn a_failure_before_the_others_have_come_is_told_once_they_have() {
    let (list, logs) = (machines(), folder("logs of a machine that cannot be"));
    fs::create_dir(logs.join("worker-1.log")).expect("a folder can be made");
    let start = |rank: &str, more: &[&str]| {
        let machine = ["--max_restarts", "1", "--grace", "1", "--machine_list", &list, "--machine_rank", rank];
        launch(&format!("early {rank}"), &script(&[&TWO[..], &machine, more].concat(), WAITS), &[SHARED])
    };
    let mut second = start("1", &["--log_dir", logs.to_str().expect("it is text")]);
    second.said("the keeper of worker 1 exited with code 1", 1);
    let mut first = start("0", &[]);
    for run in [&mut first, &mut second] {
        run.end(LIMIT).expect(1, &["the keeper of worker 1 exited with code 1", "epl-launch: restart 1 of 1"]);
    }
}

/// It waits for the others, to tell them.
#[test]
fn what_one_machine_cannot_begin_with_is_told_by_all() {
    let list = machines();
    let first: SocketAddr = list.split(',').next().and_then(|first| first.parse().ok()).expect("an address");
    let used = TcpListener::bind((first.ip(), first.port() + 1)).expect("the port is free");
    let start = |rank: &str| {
        let machine = [&TWO[..], &["--machine_list", &list, "--machine_rank", rank]].concat();
        launch(&format!("cannot begin {rank}"), &script(&machine, WAITS), &[SHARED])
    };
    let mut first = start("0");
    first.said("waits for the other machines, to tell them: ", 1);
    let mut second = start("1");
    let told = format!("the rendezvous cannot listen at {}: ", used.local_addr().expect("it has an address"));
    for run in [&mut first, &mut second] {
        run.end(PROMPTLY).expect(1, &[&format!("epl-launch: {told}"), "in use"]);
    }
}

/// A machine that has said that it can start once more, and hears of no decision, is told nothing else than the others.
#[test]
fn the_restart_decision_is_one_for_all() {
    let list = machines();
    let address = list.split(',').next().expect("it has two");
    let machine = ["--machine_list", &list, "--machine_rank", "0", "--max_restarts", "2"];
    let mut run = launch("one decision", &script(&[&TWO[..], &machine].concat(), "exit 4"), &[SHARED]);
    let client = Client::join(address, 1, 2, &secret_of_agents(), LIMIT).expect("it joins");
    let told = |key: &str| client.get(key, LIMIT).expect("it is told");
    client.set("0/can/1", b"yes").expect("it is said once");
    assert_eq!(told("0/again"), b"yes");
    told("1/failure");
    // That of the first machine, too, is bound by what was said first.
    client.set("1/again", b"1").expect("it is said once");
    client.set("1/can/1", b"yes").expect("it is said once");
    run.said("no restart: machine 1 (127.0.0.1:", 1);
    drop(client);
    run.end(PROMPTLY).expect(4, &["restart 1 of 2"]);
}

/// It left without a word of its workers: nobody waits for that.
#[test]
fn a_machine_that_has_left_is_not_waited_for() {
    let list = machines();
    let address = list.split(',').next().expect("it has two");
    let machine = ["--machine_list", &list, "--machine_rank", "0"];
    let mut run = launch("left", &script(&[&TWO[..], &machine].concat(), "true"), &[SHARED]);
    let client = Client::join(address, 1, 2, &secret_of_agents(), LIMIT).expect("it joins");
    client.get("0/done/0", LIMIT).expect("it is told");
    client.set("left/1", b"").expect("it is said once");
    drop(client);
    run.end(PROMPTLY).expect(1, &["machine 1 has left before its workers ended well"]);
}

#[test]
fn who_waits_for_the_other_machines_workers_can_be_interrupted() {
    let text = "if [ $EPL_LAUNCH_WORKER = 1 ]; then sleep 1000; fi; echo done";
    let mut runs = two_machines("done", [&[], &[]], text);
    runs[0].said("[worker 0] done", 1);
    thread::sleep(Duration::from_secs(1));
    signal(runs[0].id(), "INT");
    for run in &mut runs {
        run.end(PROMPTLY).expect(130, &["epl-launch: interrupted by signal 2"]);
    }
}

#[test]
fn what_cannot_be_started_on_one_machine_is_tried_again_on_none() {
    let folder = folder("one machine's program");
    let file = folder.join("program");
    fs::write(&file, "#!/no/such/interpreter\n").expect("a file can be written");
    Command::new("chmod").arg("+x").arg(&file).status().expect("there is a chmod");
    let list = machines();
    let start = |rank: &str, program: &str| {
        let often = ["--max_restarts", "3", "--machine_list", &list, "--machine_rank", rank, "--", program, "1000"];
        launch(&format!("unstarted {rank}"), &[&TWO[..], &often].concat(), &[SHARED])
    };
    let mut runs = [start("0", "sleep"), start("1", file.to_str().expect("it is text"))];
    for run in &mut runs {
        let ended = run.end(LIMIT);
        ended.expect(127, &["epl-launch: worker 1", "it could not be started"]);
        assert!(!ended.text.contains("epl-launch: restart"), "{}", ended.text);
    }
    assert!(runs[0].text().contains("no restart: machine 1 (127.0.0.1:"), "{}", runs[0].text());
}

#[test]
fn machines_that_are_given_other_numbers_are_refused_with_both() {
    let terms = |ranks: &str, restarts: &str| format!("`--gpu_per_worker {ranks} --max_restarts {restarts}`");
    for (first, second) in [(["1", "2"], ["1", "0"]), (["2", "0"], ["1", "0"])] {
        let given = |[ranks, restarts]: [&'static str; 2]| ["--gpu_per_worker", ranks, "--max_restarts", restarts];
        let runs = two_machines("unlike", [&given(first), &given(second)], "echo never; sleep 1000");
        let [first, second] = [first, second].map(|[ranks, restarts]| terms(ranks, restarts));
        for mut run in runs {
            let ended = run.end(PROMPTLY);
            ended.expect(2, &[&first, &second, "give all machines the same"]);
            assert!(!ended.text.contains("epl-launch: restart"), "{}", ended.text);
        }
    }
}

#[test]
fn machines_that_are_given_other_workers_are_refused_with_both() {
    let four = ["--num_workers", "4"];
    for mut run in two_machines("other workers", [&[], &four], "echo never; sleep 1000") {
        let both = ["`--num_workers 2 --grace 5`", "`--num_workers 4 --grace 5`", "give all machines the same"];
        run.end(PROMPTLY).expect(2, &both);
    }
}

#[test]
fn a_machine_that_is_done_waits_for_the_others() {
    let text = "if [ $EPL_LAUNCH_WORKER = $LATE ]; then sleep 3; echo I stayed; exit $CODE; fi; echo done";
    for (late, code) in [("1", 0), ("1", 6), ("0", 6)] {
        let text = text.replace("$LATE", late).replace("$CODE", &code.to_string());
        for (rank, mut run) in two_machines("late", [&[], &[]], &text).into_iter().enumerate() {
            let said = if rank.to_string() == late { "] I stayed" } else { "] done" };
            run.end(LIMIT).expect(code, &[said]);
        }
    }
}

#[test]
fn a_launcher_that_is_killed_ends_the_other_machines() {
    let [mut first, mut second] = two_machines("half", [&[], &[]], WAITS);
    first.processes(1);
    second.processes(1);
    signal(second.id(), "KILL");
    first.end(PROMPTLY).expect(1, &["epl-launch: worker 1"]);
    until("the end of all", PROMPTLY, || second.left().is_empty().then_some(()));
}

/// The second machine by hand: what attempts tell has their number, and nobody comes anew.
#[test]
fn one_session_of_all_machines_lives_through_restarts() {
    let list = machines();
    let address = list.split(',').next().expect("it has two");
    let machine = ["--machine_list", &list, "--machine_rank", "0", "--max_restarts", "2"];
    let text = "if [ $EPL_LAUNCH_RESTART = 2 ]; then echo well; else exit 4; fi";
    let mut run = launch("by hand", &script(&[&TWO[..], &machine].concat(), text), &[SHARED]);
    let client = Client::join(address, 1, 2, &secret_of_agents(), LIMIT).expect("it joins");
    client.set("what machines are given", b"--gpu_per_worker 1 --max_restarts 2").expect("it is the same");
    let told = |key: &str| client.get(key, LIMIT).expect("it is told");
    let programs = told("0/programs");
    for restart in 0..2 {
        let failure = told(&format!("{restart}/failure"));
        assert!(String::from_utf8_lossy(&failure).contains("failed: it exited with code 4"), "{failure:?}");
        client.set(&format!("{restart}/can/1"), b"yes").expect("it is said once");
        assert_eq!(told(&format!("{restart}/can/0")), b"yes");
        assert_eq!(told(&format!("{}/programs", restart + 1)), programs);
    }
    assert!(client.get("0/failure", Duration::ZERO).is_err(), "old attempts are forgotten");
    told("2/done/0");
    client.set("2/done/1", b"").expect("it is said once");
    run.said("[worker 0] well", 1);
    thread::sleep(Duration::from_millis(500));
    assert!(!run.left().is_empty(), "who serves stays until the others have left");
    drop(client);
    run.end(PROMPTLY).expect(0, &["restart 1 of 2", "restart 2 of 2"]);
}

/// However many strangers have come before it.
#[test]
fn a_machine_that_is_refused_is_told() {
    let list = machines();
    let address = list.split(',').next().expect("it has two");
    let first = [&TWO[..], &["--machine_list", &list, "--machine_rank", "0"]].concat();
    let mut run = launch("strangers", &script(&first, WAITS), &[SHARED]);
    for _ in 0..8 {
        let mut stranger = until("the first machine", LIMIT, || TcpStream::connect(address).ok());
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is read");
    }
    run.said("epl-launch: refused 127.0.0.1:", 5);
    let error = Client::join(address, 1, 3, &secret_of_agents(), LIMIT).expect_err("there are two").to_string();
    assert!(error.contains("it is worker 1 of 3, and the run there has 2"), "{error}");
    run.said("worker 1 was not let in: Workers(2)", 1);
    signal(run.id(), "INT");
    run.end(PROMPTLY).expect(130, &["epl-launch: 8 connections of strangers were refused"]);
}

#[test]
fn a_keeper_hears_while_it_waits_for_where_programs_meet() {
    let secret = Secret::from_bytes(format!("keepers {}", SHARED.1).as_bytes()).expect("it is long enough");
    let server = Server::start(Settings::new(2, secret.clone())).expect("a port is free");
    let address = server.address().to_string();
    let list = format!("{address},127.0.0.1:1");
    let second = [&TWO[..], &["--machine_list", &list, "--machine_rank", "1"]].concat();
    let run = launch("deaf", &script(&second, WAITS), &[SHARED]);
    let client = Client::join(&address, 0, 2, &secret, LIMIT).expect("it joins");
    // It has joined, and asks where programs meet, which nobody says.
    let terms = client.get("what machines are given", LIMIT).expect("it is there");
    assert_eq!(terms, b"--gpu_per_worker 1 --max_restarts 0");
    thread::sleep(Duration::from_millis(200));
    signal(run.id(), "KILL");
    until("the end of the keeper", PROMPTLY, || run.left().is_empty().then_some(()));
    assert!(!run.text().contains("I am"), "{}", run.text());
    until("the word of it", PROMPTLY, || client.failure());
}
