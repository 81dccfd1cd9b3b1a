//! A member by hand, as the protocol is written down: the handshake, and then only what a test sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use sha2::{Digest, Sha256};
use snow::{Builder, HandshakeState, TransportState};

use crate::launched::LIMIT;

/// How long a hello is.
pub const HELLO: usize = 8 + 32 + 15 + 16;

/// A member that was let in.
pub struct ByHand {
    pub stream: TcpStream,
    keys: TransportState,
}

/// The answer to a greeting, of a worker with these numbers: its own, how many there are, and the restart.
pub fn hello(greeting: &[u8; 40], [worker, workers, restart]: [u8; 3], secret: &[u8]) -> (HandshakeState, Vec<u8>) {
    assert_eq!(&greeting[..8], b"EPL-RDV2");
    let key = Sha256::new().chain_update("the key of EPL's rendezvous, version 2: ").chain_update(secret).finalize();
    let suite = "Noise_NNpsk0_25519_ChaChaPoly_SHA256".parse().unwrap();
    let builder = Builder::new(suite).psk(0, key.as_ref()).unwrap().prologue(greeting).unwrap();
    let mut noise = builder.build_initiator().unwrap();
    let mut hello = vec![0; HELLO];
    hello[..8].copy_from_slice(b"EPL-RDV2");
    let mut claim = [0; 15];
    // Numbers below 128 are a byte each.
    claim[..3].copy_from_slice(&[worker, workers, restart]);
    noise.write_message(&claim, &mut hello[8..]).unwrap();
    (noise, hello)
}

/// Joins as such a worker, and is welcome.
pub fn meet(address: SocketAddr, numbers: [u32; 3], secret: &[u8]) -> ByHand {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut greeting = [0; 40];
    stream.read_exact(&mut greeting).unwrap();
    let (mut noise, hello) = hello(&greeting, numbers.map(|number| number as u8), secret);
    stream.write_all(&hello).unwrap();
    let mut answer = [0; 1 + 32 + 6 + 16];
    stream.read_exact(&mut answer).unwrap();
    let mut verdict = [0; 6];
    noise.read_message(&answer[1..], &mut verdict).unwrap();
    assert_eq!((answer[0], verdict[0]), (1, 0), "welcome");
    ByHand { stream, keys: noise.into_transport_mode().unwrap() }
}

impl ByHand {
    /// Sends a frame with these contents.
    pub fn send(&mut self, contents: &[u8]) {
        self.seal(&[&(contents.len() as u32).to_le_bytes(), contents].concat());
    }

    /// Sends a message of Noise with this text.
    pub fn seal(&mut self, text: &[u8]) {
        let message = self.sealed(text);
        self.stream.write_all(&message).unwrap();
    }

    /// A message of Noise with this text, and its length.
    pub fn sealed(&mut self, text: &[u8]) -> Vec<u8> {
        let mut message = vec![0; text.len() + 16];
        self.keys.write_message(text, &mut message).unwrap();
        [&(message.len() as u16).to_be_bytes(), &message[..]].concat()
    }
}
