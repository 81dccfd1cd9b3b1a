//! The rendezvous, and when members fail: whoever fails is named to all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use epl_launch::rendezvous::{Client, Event, Fault, MAX_KEY, MAX_VALUE, Secret, Server, Settings};
use epl_launch::{Carrier, Error, MeetingPoint, Result, Store, Worker};

use crate::by_hand::{ByHand, meet};

/// Guards against hangs only.
pub const LIMIT: Duration = Duration::from_secs(120);

pub fn secret() -> Secret {
    Secret::from_bytes(b"the secret of these tests").unwrap()
}

pub fn settings(workers: usize) -> Settings {
    Settings { silence: Duration::from_secs(20), ..Settings::new(workers, secret()) }
}

fn join(server: &Server, worker: usize, workers: usize) -> Result<Client> {
    Client::join(&server.address().to_string(), worker, workers, &secret(), LIMIT)
}

/// Runs `f` once a worker, each on a thread, and returns what each returned.
pub fn members<T: Send>(server: &Server, workers: usize, f: impl Fn(Client) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let f = &f;
        let run = move |worker| f(join(server, worker, workers).unwrap());
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Where nobody listens, on a host of a test's own: on 127.0.0.1 a test beside it may be given the port meanwhile. Other systems
/// than Linux have only that one.
fn free(host: u8) -> SocketAddr {
    let host = if cfg!(target_os = "linux") { host } else { 1 };
    TcpListener::bind(SocketAddr::from(([127, 0, 0, host], 0))).unwrap().local_addr().unwrap()
}

/// What is said to one that joins in vain. It may be over before anything was heard, so that it is given more and more time.
pub fn in_vain(said: &str, join: impl Fn(Duration) -> Result<Client>) -> String {
    let mut limit = Duration::from_millis(1);
    loop {
        let error = join(limit).unwrap_err().to_string();
        if error.contains(said) {
            return error;
        }
        assert!(limit < LIMIT, "no `{said}` in: {error}");
        limit *= 2;
    }
}

/// What a member that is told of a failure has been told, by every way.
fn told(client: &Client) -> Error {
    let (sender, receiver) = mpsc::channel();
    client.on_failure(move |error| drop(sender.send(error.clone())));
    let error = receiver.recv_timeout(LIMIT).expect("it is told");
    assert_eq!(client.failure(), Some(error.clone()));
    assert_eq!(client.get("anything", LIMIT), Err(error.clone()));
    assert_eq!(client.barrier("any", LIMIT), Err(error.clone()));
    error
}

#[test]
fn members_share_values_and_meet_at_barriers() {
    let server = Server::start(settings(3)).unwrap();
    let arrived = AtomicUsize::new(0);
    let read = members(&server, 3, |client| {
        let me = client.worker();
        client.set(&format!("of {me}"), &[me as u8]).unwrap();
        for round in 1..=5 {
            arrived.fetch_add(1, Ordering::SeqCst);
            client.barrier("round", LIMIT).unwrap();
            assert!(arrived.load(Ordering::SeqCst) >= 3 * round);
            client.barrier("round", LIMIT).unwrap();
        }
        (0..3).flat_map(|of| client.get(&format!("of {of}"), LIMIT).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(read, [[0, 1, 2], [0, 1, 2], [0, 1, 2]]);
    assert_eq!((server.failure(), server.refused()), (None, 0));
}

#[test]
fn the_store_of_the_server_is_that_of_its_members() {
    let server = Server::start(settings(1)).unwrap();
    let client = join(&server, 0, 1).unwrap();
    server.set("address", b"there").unwrap();
    assert_eq!(client.get("address", LIMIT).unwrap(), b"there");
    client.set("code", b"3").unwrap();
    assert_eq!(server.get("code", LIMIT).unwrap(), b"3");
    assert!(server.set("code", b"4").unwrap_err().to_string().contains("`code` has another value already"));
    assert!(client.set("code", b"4").unwrap_err().to_string().contains("`code` has another value already"));
    assert_eq!(client.set("code", b"3"), Ok(()));
}

#[test]
fn what_does_not_fit_is_refused_with_both_numbers() {
    let server = Server::start(settings(1)).unwrap();
    let client = join(&server, 0, 1).unwrap();
    client.set(&"k".repeat(MAX_KEY), &vec![7; MAX_VALUE]).unwrap();
    assert_eq!(client.get(&"k".repeat(MAX_KEY), LIMIT).unwrap(), vec![7; MAX_VALUE]);
    let error = client.set("k", &vec![0; MAX_VALUE + 1]).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("a key of 1 bytes with a value of {}; allowed are {MAX_KEY} and {MAX_VALUE}", MAX_VALUE + 1)
    );
    assert!(client.get(&"k".repeat(MAX_KEY + 1), LIMIT).is_err());
    // All together have a bound, too.
    let full = (0..1000).find_map(|key| client.set(&key.to_string(), &vec![0; MAX_VALUE]).err()).unwrap().to_string();
    assert!(full.contains("no room for"), "{full}");
    // What is forgotten makes room, at a member's word or the host's.
    (0..200).for_each(|key| client.forget(&key.to_string()).unwrap());
    (0..200).for_each(|key| client.set(&key.to_string(), &vec![1; MAX_VALUE]).unwrap());
    server.forget("7").unwrap();
    assert!(matches!(client.get("7", Duration::ZERO), Err(Error::Unset { .. })));
    assert_eq!(client.failure(), None);
}

#[test]
fn who_does_not_come_to_a_barrier_or_sets_nothing_is_told() {
    let server = Server::start(settings(2)).unwrap();
    let errors = members(&server, 2, |client| {
        let wait = Duration::from_millis(100);
        let error = match client.worker() {
            0 => client.barrier("alone", wait),
            _ => client.get("nothing", wait).map(|_| ()),
        };
        // It fails nobody.
        client.barrier("together", LIMIT).unwrap();
        error.unwrap_err().to_string()
    });
    assert_eq!(errors[0], "barrier `alone` has waited 0.1 s for 1 of 2 workers: worker 1");
    assert_eq!(errors[1], "nobody has set `nothing` within 0.1 s");
}

#[test]
fn a_member_that_fails_is_named_with_its_cause() {
    let server = Server::start(settings(3)).unwrap();
    let errors = members(&server, 3, |client| {
        client.barrier("go", LIMIT).map_or_else(
            |error| error,
            |()| {
                if client.worker() == 1 {
                    client.fail("rank 2: out of memory");
                }
                told(&client)
            },
        )
    });
    let expected = Error::Worker { worker: 1, cause: "failed: rank 2: out of memory".into() };
    assert!(errors.iter().all(|error| *error == expected), "{errors:?}");
    assert_eq!(expected.to_string(), "worker 1 failed: rank 2: out of memory");
    assert_eq!(server.failure().unwrap().worker, 1);
}

#[test]
fn a_member_that_panics_fails_and_one_that_leaves_does_not() {
    let server = Server::start(settings(3)).unwrap();
    thread::scope(|scope| {
        let client = |worker| join(&server, worker, 3).unwrap();
        let leaves = scope.spawn(move || drop(client(0)));
        let panics = scope.spawn(move || {
            let client = client(1);
            let _ = client.get("0 has left", LIMIT).unwrap();
            std::panic::resume_unwind(Box::new(client));
        });
        let stays = client(2);
        leaves.join().unwrap();
        assert_eq!(stays.failure(), None);
        let error = stays.barrier("all", Duration::from_millis(100)).unwrap_err().to_string();
        assert!(error.contains("worker 0 (which has left), worker 1"), "{error}");
        stays.set("0 has left", b"").unwrap();
        // The client in the payload is alive: it is dropped out of the panic, and leaves.
        drop(panics.join().unwrap_err());
        assert_eq!(stays.failure(), None);
    });
    let server = Server::start(settings(2)).unwrap();
    thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let _client = join(&server, 0, 2).unwrap();
            std::panic::resume_unwind(Box::new("no message on the screen"));
        });
        // It may hear of it before it hears that all have joined.
        let error = join(&server, 1, 2).map_or_else(|error| error, |client| told(&client));
        assert_eq!(error.to_string(), "worker 0 failed: it panicked");
        assert!(panics.join().is_err());
    });
}

#[test]
fn who_hosts_the_rendezvous_waits_until_the_others_have_left_or_failed() {
    for fails in [false, true] {
        let free = free(2);
        let worker = |number| {
            let point = MeetingPoint { address: free.to_string(), secret: secret(), is_hosted_by_first: true };
            Worker::new(2, number, 1, Carrier::Mpi).unwrap().with_meeting_point(point)
        };
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(worker(0).meet(LIMIT).unwrap());
                has_ended.store(true, Ordering::SeqCst);
            });
            let other = worker(1).meet(LIMIT).unwrap();
            // Long enough that the first worker would have ended its server.
            thread::sleep(Duration::from_millis(300));
            other.client().set("late", b"value").unwrap();
            assert_eq!(other.client().get("late", LIMIT).unwrap(), b"value");
            assert!(!has_ended.load(Ordering::SeqCst), "this worker is still there");
            if fails {
                other.client().fail("out of luck");
                until("the first worker ends", || has_ended.load(Ordering::SeqCst));
            }
        });
        assert!(has_ended.load(Ordering::SeqCst));
    }
}

#[test]
fn workers_that_host_the_rendezvous_may_meet_again() {
    let free = free(3);
    thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                let point = MeetingPoint { address: free.to_string(), secret: secret(), is_hosted_by_first: true };
                let worker = Worker::new(3, number, 1, Carrier::Mpi).unwrap().with_meeting_point(point);
                for round in 0..5 {
                    let meeting = worker.meet(LIMIT).unwrap();
                    meeting.client().set("round", format!("{round}").as_bytes()).unwrap();
                    // Some leave early, and come again before the others have left.
                    thread::sleep(Duration::from_millis(40 * ((number + round) % 3) as u64));
                }
            });
        }
    });
}

/// A program that runs one world after the other may be back before its last word of the one before has been read.
#[test]
fn who_comes_again_is_let_in_once_its_last_word_is_read() {
    let server = Server::start(settings(1)).unwrap();
    let mut before = by_hand_inside(&server, 0, 1);
    thread::scope(|scope| {
        let again = scope.spawn(|| join(&server, 0, 1).map(drop));
        until("a try", || server.refused() > 0 || again.is_finished());
        // It leaves.
        before.send(&[5]);
        again.join().unwrap().unwrap();
    });
    assert_eq!(server.failure(), None);
}

#[test]
fn who_has_left_is_not_served_any_more() {
    let server = Server::start(settings(1)).unwrap();
    let mut member = by_hand_inside(&server, 0, 1);
    // It leaves, and sets something, at once.
    let set = [&[1, 1, 4][..], b"late", &[1, 7]].concat();
    let mut seal = |contents: &[u8]| member.sealed(&[&(contents.len() as u32).to_le_bytes(), contents].concat());
    let both = [seal(&[5]), seal(&set)].concat();
    member.stream.write_all(&both).unwrap();
    // The server ends the connection.
    while matches!(member.stream.read(&mut [0; 100]), Ok(1..)) {}
    assert!(matches!(server.get("late", Duration::ZERO), Err(Error::Unset { .. })));
    assert_eq!(server.failure(), None);
}

/// Nothing that may be given is too much.
#[test]
fn limits_without_end_are_none() {
    let ever = Duration::MAX;
    let server = Server::start(Settings { handshake: ever, silence: ever, join_within: Some(ever), ..settings(1) });
    let server = server.unwrap();
    let client = Client::join(&server.address().to_string(), 0, 1, &secret(), ever).unwrap();
    client.set_patience(ever);
    client.set("key", b"value").unwrap();
    assert_eq!(client.get("key", ever).unwrap(), b"value");
    client.barrier("all", ever).unwrap();
}

#[test]
fn a_server_before_which_nobody_may_wait_is_refused() {
    let error = Server::start(Settings { pending: 0, ..settings(2) }).unwrap_err().to_string();
    assert!(error.contains("0 connections"), "{error}");
}

pub fn by_hand_inside(server: &Server, worker: u32, workers: u32) -> ByHand {
    meet(server.address(), [worker, workers, 0], b"the secret of these tests")
}

#[test]
fn a_member_that_is_lost_is_named() {
    let (sender, events) = mpsc::channel();
    let server = Server::start_with(settings(3), move |event| drop(sender.send(event.clone()))).unwrap();
    // As a process that is killed: the system closes its connections.
    let lost = by_hand_inside(&server, 1, 3);
    let address = server.address().to_string();
    thread::scope(|scope| {
        let joins = scope.spawn(|| Client::join(&address, 0, 3, &secret(), LIMIT));
        until("worker 0", || events.try_iter().any(|event| matches!(event, Event::Joined(0))));
        drop(lost);
        let error = joins.join().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("worker 1 was lost: its connection ended without a word"), "{error}");
    });
    assert_eq!(server.failure().unwrap().fault, Fault::Lost);
    // Who comes late hears of it, too.
    let error = Client::join(&address, 2, 3, &secret(), LIMIT).unwrap_err().to_string();
    assert!(error.ends_with("does not let worker 2 in: the run there has ended, as worker 1 failed"), "{error}");
}

#[test]
fn a_member_that_is_silent_is_named() {
    let server = Server::start(Settings { silence: Duration::from_secs(4), ..settings(2) }).unwrap();
    // As a process that is stopped: its connection stays, and nothing comes.
    let _silent = by_hand_inside(&server, 1, 2);
    let error = Client::join(&server.address().to_string(), 0, 2, &secret(), LIMIT).unwrap_err().to_string();
    assert!(error.starts_with("worker 1 does not answer: nothing was heard from it for "), "{error}");
    assert!(matches!(server.failure().unwrap().fault, Fault::Silent(time) if time >= Duration::from_secs(4)));
}

#[test]
fn a_member_that_talks_nonsense_is_named() {
    let garbage = [[1, 0, 0, 0, 99], [255; 5], [2, 0, 0, 0, 1]];
    for (bytes, is_sealed) in garbage.into_iter().flat_map(|bytes| [(bytes, true), (bytes, false)]) {
        let server = Server::start(settings(2)).unwrap();
        let mut nonsense = by_hand_inside(&server, 0, 2);
        let bytes = [&bytes[..], &[0]].concat();
        match is_sealed {
            true => nonsense.seal(&bytes),
            // As many as the first two say.
            false => nonsense.stream.write_all(&bytes.repeat(20_000)).unwrap_or_default(),
        }
        until("the failure", || server.failure().is_some());
        assert_eq!(server.failure().unwrap().worker, 0);
    }
}

#[test]
fn a_host_that_never_comes_is_named() {
    let server = Server::start(Settings { join_within: Some(Duration::from_millis(500)), ..settings(4) }).unwrap();
    let errors = thread::scope(|scope| {
        let joins: Vec<_> = [0, 2]
            .map(|worker| {
                scope.spawn({
                    let server = &server;
                    move || join(server, worker, 4).unwrap_err().to_string()
                })
            })
            .into_iter()
            .collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect::<Vec<_>>()
    });
    for error in errors {
        assert!(error.starts_with("worker 1 did not come within 0.5 s (2 of 4 have not come: 1, 3)"), "{error}");
    }
    // Who waits for less time than the server hears it, too.
    let server = Server::start(settings(2)).unwrap();
    let address = server.address().to_string();
    let error = Client::join(&address, 0, 2, &secret(), Duration::from_secs(1)).unwrap_err().to_string();
    assert!(error.ends_with("1 of 2 workers: worker 1 (which has not joined)"), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named_and_one_that_comes_late_is_found() {
    let address = free(4);
    let text = address.to_string();
    let error = Client::join(&text, 3, 4, &secret(), Duration::from_millis(200)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("worker 3 could not join the rendezvous at {text} within 0.2 s: ")), "{error}");
    thread::scope(|scope| {
        let joins = scope.spawn(|| Client::join(&text, 0, 1, &secret(), LIMIT).map(drop));
        thread::sleep(Duration::from_millis(100));
        let _server = Server::start(Settings { address, ..settings(1) }).unwrap();
        joins.join().unwrap().unwrap();
    });
}

#[test]
fn a_port_in_use_is_named() {
    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = used.local_addr().unwrap();
    let error = Server::start(Settings { address, ..settings(1) }).unwrap_err().to_string();
    assert!(error.starts_with(&format!("the rendezvous cannot listen at {address}: ")), "{error}");
    // Who listens there instead is not taken for a rendezvous.
    beside(
        &used,
        |stream| stream.write_all(&[b'x'; 100]),
        || {
            in_vain("no rendezvous", |limit| Client::join(&address.to_string(), 0, 1, &secret(), limit));
        },
    );
}

/// Runs `f` while whoever connects, as often as it does, is given to `serve`.
pub fn beside(listener: &TcpListener, serve: impl Fn(&mut TcpStream) -> std::io::Result<()> + Sync, f: impl FnOnce()) {
    /// The thread ends, and with it the test, though `f` fails.
    struct End<'a>(&'a AtomicBool, SocketAddr);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
            drop(TcpStream::connect(self.1));
        }
    }

    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(&is_over, listener.local_addr().unwrap());
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                // One that has gone meanwhile does not matter.
                let _ = listener.accept().and_then(|(mut stream, _)| serve(&mut stream));
            }
        });
        f();
    });
}

#[test]
fn a_server_that_ends_is_missed() {
    let server = Server::start(settings(1)).unwrap();
    let client = join(&server, 0, 1).unwrap();
    let address = server.address();
    drop(server);
    let error = told(&client).to_string();
    assert!(error.starts_with(&format!("worker 0 has lost the rendezvous at {address}: ")), "{error}");
    // Its port is free again.
    drop(client);
    Server::start(Settings { address, ..settings(1) }).unwrap();
}

/// What the next test starts and stops: a server, which says where it is, and ends with its input.
#[test]
fn serves() {
    if std::env::var_os("EPL_TEST_SERVES").is_some() {
        let server = Server::start(settings(1)).unwrap();
        println!("\nat {}", server.address());
        let _ = std::io::stdin().read(&mut [0]);
    }
}

/// As one whose host swaps, or that a user has stopped.
#[test]
#[cfg(target_os = "linux")]
fn a_server_that_is_stopped_is_waited_for_as_long_as_a_member_has_patience() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    for patience in [Duration::from_millis(300), LIMIT] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "rendezvous::serves", "--nocapture"]).env("EPL_TEST_SERVES", "1");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(|line| line.ok());
        let address = lines.find_map(|line| Some(line.strip_prefix("at ")?.to_string())).unwrap();
        let client = Client::join(&address, 0, 1, &secret(), LIMIT).unwrap();
        client.set("early", b"value").unwrap();
        client.set_patience(patience);
        let id = process.id().to_string();
        let signal = |name: &str| assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
        signal("-STOP");
        // Each thread by itself, when it has heard of it.
        let tasks = || std::fs::read_dir(format!("/proc/{id}/task")).unwrap().map(|task| task.unwrap().path());
        let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let has_stopped = |task: std::path::PathBuf| state(std::fs::read_to_string(task.join("stat")).unwrap());
        until("the stop", || tasks().all(|task| has_stopped(task) == Some('T')));
        thread::scope(|scope| {
            let asks = scope.spawn(|| client.get("early", Duration::ZERO));
            // Longer than a server may be away without noticing it itself.
            thread::sleep(Duration::from_secs(2));
            signal("-CONT");
            let answer = asks.join().unwrap();
            match patience == LIMIT {
                true => assert_eq!((answer.unwrap(), client.failure()), (b"value".to_vec(), None)),
                false => {
                    let error = answer.unwrap_err().to_string();
                    assert!(error.contains("does not answer") || error.contains("nothing was heard"), "{error}");
                }
            }
        });
        drop(client);
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success());
    }
}
