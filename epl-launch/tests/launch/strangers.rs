//! The rendezvous under attack, and whom it refuses: nothing that is not a member's is accepted, memory stays bounded, a run goes on
//! undisturbed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use epl_launch::Store;
use epl_launch::rendezvous::{Client, Event, MAX_FRAME, Refusal, Secret, Server, Settings};
use proptest::prelude::{Rng, RngExt};
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::ALLOCATOR;
use crate::by_hand::{HELLO, hello};
use crate::rendezvous::{LIMIT, beside, by_hand_inside, in_vain, members, secret, settings, until};

/// As of a machine where another version of this program was installed.
#[test]
fn another_version_is_told_at_once_with_both_numbers() {
    let told = "speaks version 1 of the rendezvous' protocol, and this end version 2; run the same version of epl-launch on \
                all machines";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = Mutex::new([0; 8]);
    let older = |stream: &mut TcpStream| {
        // Its greeting has another length.
        stream.write_all(b"EPL-RDV1 and no more")?;
        stream.read_exact(&mut *heard.lock().unwrap())
    };
    beside(&listener, older, || {
        let begin = Instant::now();
        let error = Client::join(&address, 0, 1, &secret(), LIMIT).unwrap_err().to_string();
        assert_eq!(error, format!("the rendezvous at {address} does not let worker 0 in: it {told}"));
        assert!(begin.elapsed() < LIMIT / 2, "at once");
    });
    // The other end can tell, too.
    assert_eq!(*heard.lock().unwrap(), *b"EPL-RDV2");
    let (sender, events) = mpsc::channel();
    let server = Server::start_with(settings(1), move |event| drop(sender.send(event.clone()))).unwrap();
    let mut older = TcpStream::connect(server.address()).unwrap();
    older.write_all(b"EPL-RDV1").unwrap();
    match events.recv_timeout(LIMIT).expect("it is told") {
        Event::Refused(_, refusal) => assert_eq!(refusal.to_string(), format!("it {told}")),
        other => panic!("{other:?}"),
    }
}

/// Anybody who listens there for a while can say so, as what has the port before the server does.
#[test]
fn another_version_that_is_heard_once_ends_no_join() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let joined = scope.spawn(|| Client::join(&address.to_string(), 0, 1, &secret(), LIMIT).map(drop));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"EPL-RDV1").unwrap();
        // To the end, so that the port is not kept for a while.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        drop((stream, listener));
        let server =
            crate::launched::until("the port", LIMIT, || Server::start(Settings { address, ..settings(1) }).ok());
        joined.join().unwrap().unwrap();
        drop(server);
    });
}

#[test]
fn strangers_are_told_from_workers_that_are_refused() {
    let (sender, events) = mpsc::channel();
    let server = Server::start_with(settings(2), move |event| drop(sender.send(event.clone()))).unwrap();
    TcpStream::connect(server.address()).unwrap().write_all(&[b'x'; 100]).unwrap();
    let is_stranger = || match events.recv_timeout(LIMIT).expect("it is told") {
        Event::Refused(_, refusal) => matches!(refusal, Refusal::Stranger(_)),
        other => panic!("{other:?}"),
    };
    assert!(is_stranger());
    let join = |secret: &Secret| Client::join(&server.address().to_string(), 0, 3, secret, LIMIT).map(drop);
    assert!(join(&Secret::random().unwrap()).is_err() && is_stranger());
    assert!(join(&secret()).is_err() && !is_stranger());
}

#[test]
fn who_does_not_belong_is_refused_and_told_why() {
    let server = Server::start(settings(2)).unwrap();
    let address = server.address().to_string();
    let refused = |worker, workers, restart, secret: &Secret, said: &str| {
        in_vain(said, |limit| Client::join_again(&address, worker, workers, restart, secret, limit))
    };
    let other = Secret::from_bytes(b"the secret of other tests").unwrap();
    let error = refused(0, 2, 0, &other, "worker 0 in: it has another secret; give all workers the same");
    assert!(error.ends_with("the same"), "{error}");
    refused(0, 3, 0, &secret(), "it is worker 0 of 3, and the run there has 2");
    refused(2, 2, 0, &secret(), "it is worker 2 of 2, and the run there has 2");
    refused(0, 2, 1, &secret(), "it belongs to restart 1, and the run there is at 0");
    let _first = by_hand_inside(&server, 0, 2);
    refused(0, 2, 0, &secret(), "there was a worker of this number already");
    assert!(server.refused() >= 5);
    server.fail(0, "as a test");
    refused(1, 2, 0, &secret(), "the run there has ended");
}

/// A server that does not know the secret learns nothing but that it was asked.
#[test]
fn a_false_server_is_not_believed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let deceive = |stream: &mut TcpStream| {
        stream.write_all(&[&b"EPL-RDV2"[..], &[1; 32]].concat())?;
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello)?;
        // "I know you", and a proof that is none: its own sent back.
        stream.write_all(&[&[1], &hello[8..62]].concat())
    };
    beside(&listener, deceive, || {
        in_vain("what listens there does not know the secret", |limit| Client::join(&address, 0, 1, &secret(), limit));
    });
}

/// Messages of a stranger: random ones, and ones that are nearly right.
fn message(random: &mut TestRng, number: usize, overheard: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(0..200)];
    random.fill_bytes(&mut bytes);
    let crafted = |rest: &[u8]| [&b"EPL-RDV2"[..], rest].concat();
    match number % 8 {
        0 => bytes,
        1 => crafted(&bytes),
        // What a member said, again.
        2 => overheard.to_vec(),
        3 => {
            let mut one = overheard.to_vec();
            let at = random.random_range(0..one.len());
            one[at] ^= 1 << random.random_range(0..8);
            one
        }
        // Frames, without a word on who it is: a failure, a value, the longest there is, and one that is longer.
        4 => [&[5, 0, 0, 0, 4][..], b"dead"].concat(),
        5 => vec![11, 0, 0, 0, 1, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        6 => [&(MAX_FRAME as u32 + number as u32 % 2).to_le_bytes()[..], &bytes].concat(),
        _ => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
    }
}

/// How many keys each member uses below.
const KEYS: u64 = 2000;

#[test]
fn ten_thousand_messages_of_strangers_disturb_nothing() {
    // What is allocated is counted for a whole process.
    epl_testing::alone(|| {
        let (accepted, refusals) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (joined, counted) = (accepted.clone(), refusals.clone());
        let server = Server::start_with(settings(3), move |event| match event {
            Event::Joined(worker) => joined.lock().unwrap().push(*worker),
            Event::Refused(..) => drop(counted.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        });
        let server = server.unwrap();
        let address = server.address();
        let (is_over, last) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
        thread::scope(|scope| {
            let run = scope.spawn(|| {
                members(&server, 3, |client| {
                    for rounds in 1_u64.. {
                        // However long the attack takes, the store has room: what was set may be set to the same again.
                        let number = (rounds % KEYS).to_le_bytes();
                        let key = |worker| format!("{} {worker}", rounds % KEYS);
                        client.set(&key(client.worker()), &number).unwrap();
                        // All see the end at the same round: the first says it, before it meets the others.
                        if client.worker() == 0 && is_over.load(Ordering::SeqCst) {
                            last.store(rounds, Ordering::SeqCst);
                        }
                        assert_eq!(client.get(&key((client.worker() + 1) % 3), LIMIT).unwrap(), number);
                        client.barrier("round", LIMIT).unwrap();
                        if last.load(Ordering::SeqCst) <= rounds {
                            return rounds;
                        }
                        thread::sleep(Duration::from_millis(5));
                    }
                    unreachable!("no run has so many rounds")
                })
            });
            until("the run", || accepted.lock().unwrap().len() == 3);
            ALLOCATOR.look_anew();
            let before = ALLOCATOR.live();
            // 200 that connect and say nothing, and others that say half of it.
            let idle: Vec<TcpStream> = (0..200).filter_map(|_| TcpStream::connect(address).ok()).collect();
            let half: Vec<TcpStream> = (0..50)
                .filter_map(|number| {
                    let mut stream = TcpStream::connect(address).ok()?;
                    stream.write_all(&b"EPL-RDV2"[..number % 9]).ok()?;
                    if number % 2 == 0 {
                        stream.shutdown(Shutdown::Write).ok()?;
                    }
                    Some(stream)
                })
                .collect();
            attack(address);
            let most = ALLOCATOR.most() - before;
            assert!(most < 32 << 20, "{most} bytes");
            // A stranger's last word: nobody is left who might be let in later.
            drop((idle, half));
            is_over.store(true, Ordering::SeqCst);
            let rounds = run.join().unwrap();
            assert!(rounds.iter().all(|count| *count == rounds[0] && *count > 1), "{rounds:?}");
        });
        let mut accepted = accepted.lock().unwrap().clone();
        accepted.sort_unstable();
        assert_eq!(accepted, [0, 1, 2]);
        assert_eq!(server.failure(), None);
        // Who has connected last may wait to be heard yet.
        until("10,000 refusals", || server.refused() >= 10_000 && refusals.load(Ordering::SeqCst) >= 10_000);
    });
}

/// Sends 10,000 messages, each over a connection of its own.
fn attack(address: SocketAddr) {
    let overheard = {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut greeting = [0; 40];
        stream.read_exact(&mut greeting).unwrap();
        // A right hello, though not for another connection.
        hello(&greeting, [0, 3, 0], b"the secret of these tests").1
    };
    thread::scope(|scope| {
        for part in 0..4 {
            let overheard = &overheard;
            scope.spawn(move || {
                let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[part; 32]);
                for number in 0..2500 {
                    let mut stream = TcpStream::connect(address).unwrap();
                    // It may be closed by now, which is as well.
                    let _ = stream.write_all(&message(&mut random, number, overheard));
                }
            });
        }
    });
}
