//! Who stands between a member and the server reads nothing of what they say, and changes nothing without being noticed.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use epl_launch::rendezvous::{Client, MAX_VALUE, Secret, Server, Settings};
use epl_launch::{Error, Store};

use crate::launched::{LIMIT, until};

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ToServer,
    ToMember,
}

/// What is done to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A bit of one is another.
    Change,
    /// One is left out.
    Drop,
    /// One comes after the next.
    Swap,
    /// One comes twice.
    Repeat,
    /// One that was never sent is put before one.
    Forge,
}

/// Takes a message, and says what is sent on instead.
type Touch = Box<dyn FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// What has gone one way.
#[derive(Clone, Default)]
struct Record {
    said: Arc<Mutex<Vec<u8>>>,
    messages: Arc<AtomicUsize>,
}

/// A relay for one connection. What goes over it is recorded; once it is armed, a fault is done, once.
struct Relay {
    address: SocketAddr,
    /// To the server, and to the member.
    records: [Record; 2],
    /// Messages until the fault is done; none while it is not to be done.
    armed: Arc<AtomicUsize>,
}

const NEVER: usize = usize::MAX;

impl Relay {
    fn before(server: SocketAddr, fault: Option<(Way, Fault)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let records: [Record; 2] = Default::default();
        let armed = Arc::new(AtomicUsize::new(NEVER));
        let ([to_server, to_member], is_armed) = (records.clone(), armed.clone());
        thread::spawn(move || {
            let member = listener.accept().unwrap().0;
            let server = TcpStream::connect(server).unwrap();
            let ends = || (member.try_clone().unwrap(), server.try_clone().unwrap());
            let touch = |way| -> Touch {
                match fault {
                    Some((of, fault)) if of == way => touching(fault, is_armed.clone()),
                    _ => Box::new(|message| vec![message]),
                }
            };
            let (from, to) = ends();
            let (first, second) = (touch(Way::ToServer), touch(Way::ToMember));
            // A hello; a greeting and an answer.
            thread::spawn(move || carry(from, to, &[8 + 32 + 15 + 16], &to_server, first));
            let (to, from) = ends();
            carry(from, to, &[40, 1 + 32 + 6 + 16], &to_member, second)
        });
        Self { address, records, armed }
    }

    fn join(&self) -> Client {
        let client = Client::join(&self.address.to_string(), 0, 1, &secret(), LIMIT).unwrap();
        // That it is there, and its first beat, are answered: nothing else is under way, until the test says something.
        let answered = || self.records[1].messages.load(Ordering::SeqCst) >= 2;
        until("the first beat", LIMIT, || answered().then_some(()));
        client
    }
}

/// Carries bytes one way: what the handshake has, which are so many bytes each, and then message by message.
fn carry(mut from: TcpStream, mut to: TcpStream, handshake: &[usize], record: &Record, mut touch: Touch) {
    let mut carry = || -> Result<()> {
        for length in handshake {
            let mut begin = vec![0; *length];
            from.read_exact(&mut begin)?;
            record.said.lock().unwrap().extend(&begin);
            to.write_all(&begin)?;
        }
        loop {
            let mut length = [0; 2];
            from.read_exact(&mut length)?;
            let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
            from.read_exact(&mut message)?;
            record.said.lock().unwrap().extend([&length[..], &message].concat());
            record.messages.fetch_add(1, Ordering::SeqCst);
            for message in touch(message) {
                to.write_all(&[&(message.len() as u16).to_be_bytes(), &message[..]].concat())?;
            }
        }
    };
    let _ = carry();
    let _ = [from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)];
}

/// Does a fault to one message, when it is told to.
fn touching(fault: Fault, armed: Arc<AtomicUsize>) -> Touch {
    let mut held = None;
    Box::new(move |mut message| {
        if let Some(held) = held.take() {
            return vec![message, held];
        }
        if armed.load(Ordering::SeqCst) == NEVER || armed.fetch_sub(1, Ordering::SeqCst) > 0 {
            return vec![message];
        }
        armed.store(NEVER, Ordering::SeqCst);
        match fault {
            Fault::Change => {
                let at = message.len() / 2;
                message[at] ^= 1;
                vec![message]
            }
            Fault::Drop => vec![],
            Fault::Swap => {
                held = Some(message);
                vec![]
            }
            Fault::Repeat => vec![message.clone(), message],
            Fault::Forge => vec![vec![7; message.len()], message],
        }
    })
}

fn secret() -> Secret {
    Secret::from_bytes(b"the secret of these tests").unwrap()
}

/// Long beats, so that what a test says is next.
fn server() -> Server {
    Server::start(Settings { silence: Duration::from_secs(600), ..Settings::new(1, secret()) }).unwrap()
}

/// What goes wrong, if something does.
fn failure(client: &Client) -> String {
    until("a failure", LIMIT, || client.failure()).to_string()
}

fn contains(said: &[u8], part: &[u8]) -> bool {
    said.windows(part.len()).any(|window| window == part)
}

#[test]
fn nothing_that_is_said_can_be_read_on_the_way() {
    let server = server();
    let relay = Relay::before(server.address(), None);
    let client = relay.join();
    let long: Vec<u8> = (0..MAX_VALUE as u32 / 4).flat_map(u32::to_le_bytes).collect();
    client.set("the first key", b"a value that is short").unwrap();
    client.set("the second key", &long).unwrap();
    server.set("the third key", b"a value of the server").unwrap();
    assert_eq!(client.get("the first key", LIMIT).unwrap(), b"a value that is short");
    assert_eq!(client.get("the second key", LIMIT).unwrap(), long);
    assert_eq!(client.get("the third key", LIMIT).unwrap(), b"a value of the server");
    client.barrier("the name of a barrier", LIMIT).unwrap();
    client.forget("the third key").unwrap();
    client.fail("the cause of a failure");
    until("the failure", LIMIT, || server.failure());
    let parts: [&[u8]; 9] = [
        b"the first key",
        b"the second key",
        b"the third key",
        b"a value that is short",
        b"a value of the server",
        &long[4000..4032],
        b"the name of a barrier",
        b"the cause of a failure",
        b"the secret of these tests",
    ];
    for record in &relay.records {
        let said = record.said.lock().unwrap().clone();
        assert!(said.len() > long.len(), "both ways go over the relay: {}", said.len());
        assert!(contains(&said, b"EPL-RDV2"), "it is recorded");
        for part in parts {
            assert!(!contains(&said, part), "{} was read", String::from_utf8_lossy(part));
        }
    }
}

#[test]
fn nothing_of_what_was_recorded_comes_again_on_another_connection() {
    let record = || {
        let server = server();
        let relay = Relay::before(server.address(), None);
        relay.join().set("key", &[3; 1000]).unwrap();
        relay.records.map(|record| record.said.lock().unwrap().clone())
    };
    for (one, other) in record().into_iter().zip(record()) {
        let after = &one[8..];
        assert!(after.windows(16).all(|part| !contains(&other, part)));
    }
}

const FAULTS: [Fault; 5] = [Fault::Change, Fault::Drop, Fault::Swap, Fault::Repeat, Fault::Forge];
const NOTICED: &str = "a message from it was changed, left out or repeated on the way";

#[test]
fn a_message_that_was_touched_on_its_way_to_the_server_is_not_taken() {
    for fault in FAULTS {
        let server = server();
        let relay = Relay::before(server.address(), Some((Way::ToServer, fault)));
        let client = relay.join();
        client.set("before", b"value").unwrap();
        relay.armed.store(0, Ordering::SeqCst);
        let soon = Duration::from_millis(200);
        let first = client.set_within("touched", b"value", soon);
        let second = client.set_within("after", b"value", soon);
        assert!(second.is_err(), "{fault:?}");
        let failure = until("the failure", LIMIT, || server.failure());
        assert!(failure.to_string().starts_with(&format!("worker 0 failed: {NOTICED}")), "{fault:?}: {failure}");
        let there = |key| server.get(key, Duration::ZERO).is_ok();
        // What came as it was sent, before anything was touched, counts.
        let counts = fault == Fault::Repeat;
        assert_eq!([there("before"), there("touched"), there("after")], [true, counts, false], "{fault:?}");
        assert!(counts || first.is_err(), "{fault:?}");
        self::failure(&client);
    }
}

#[test]
fn a_message_that_was_touched_on_its_way_to_a_member_is_not_taken() {
    for fault in FAULTS {
        let server = server();
        let relay = Relay::before(server.address(), Some((Way::ToMember, fault)));
        let client = relay.join();
        server.set("one", b"first").unwrap();
        server.set("other", b"second").unwrap();
        relay.armed.store(0, Ordering::SeqCst);
        let asked = || relay.records[0].messages.load(Ordering::SeqCst);
        let before = asked();
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| client.get("one", Duration::ZERO));
            // One that is dropped, or kept back, is missed with the next one.
            until("the first is asked for", LIMIT, || (asked() > before).then_some(()));
            let second = client.get("other", Duration::ZERO);
            (first.join().unwrap(), second)
        });
        let failure = failure(&client);
        let lost = format!("worker 0 has lost the rendezvous at {}: {NOTICED}", relay.address);
        assert!(failure.starts_with(&lost), "{fault:?}: {failure}");
        let told = Err(Error::Joining { message: failure });
        let expected = if fault == Fault::Repeat { Ok(b"first".to_vec()) } else { told.clone() };
        assert_eq!((first, second), (expected, told), "{fault:?}");
    }
}

/// A long value goes as several messages: each counts.
#[test]
fn the_second_part_of_a_frame_is_missed_like_a_whole_one() {
    for fault in [Fault::Change, Fault::Drop] {
        let server = server();
        let relay = Relay::before(server.address(), Some((Way::ToServer, fault)));
        let client = relay.join();
        relay.armed.store(1, Ordering::SeqCst);
        let soon = Duration::from_millis(200);
        assert!(client.set_within("long", &vec![1; MAX_VALUE], soon).is_err());
        assert!(client.set_within("after", b"value", soon).is_err());
        let failure = until("the failure", LIMIT, || server.failure()).to_string();
        assert!(failure.contains(NOTICED), "{fault:?}: {failure}");
        assert!(server.get("long", Duration::ZERO).is_err() && server.get("after", Duration::ZERO).is_err());
    }
}
