//! Where the workers of a run find each other, tell each other small things, and learn who is lost.
//!
//! A worker is a process. One [`Server`] runs in what starts them, usually `epl-launch`; each worker holds a
//! [`Client`]. It is for control, not for tensors: names and small values ([`Store`](crate::Store)), barriers,
//! heartbeats, and the news that a worker failed.
//!
//! ```text
//!  client                                   server
//!    │ ◀──────────── magic, nonce ───────────── │   at most `pending` connections that have not shown who they are;
//!    │ ── magic, who it is, encrypted ────────▶ │   each has `handshake` to do it, in messages of fixed length
//!    │ ◀──── verdict, encrypted ─────────────── │   both know the secret, or nothing is said (`handshake`)
//!    │                                          │
//!    │ ── beat, set, get, barrier, fail, leave ▶│   encrypted frames of at most [`MAX_FRAME`] bytes (`session`);
//!    │ ◀── beat, answers, who failed ────────── │   one that is not what the other end sent next ends the connection
//! ```
//!
//! The first worker that fails, whose connection ends without a word, that is silent for longer than `silence`, or that
//! does not come within `join_within` is the culprit: all others are told which it was and why.
//!
//! The secret keeps strangers and workers of other runs out, and what is said afterwards from whoever may listen or write
//! between the hosts: sessions are those of the Noise protocol, with keys that are made anew for each connection, so that
//! a secret that becomes known later opens none that was recorded. A secret that a user makes up can be guessed from a
//! recorded handshake: take a random one. A server listens on loopback unless it is told otherwise.
//!
//! ```
//! use core::time::Duration;
//! use epl_launch::Store;
//! use epl_launch::rendezvous::{Client, Secret, Server, Settings};
//!
//! let secret = Secret::random()?;
//! let server = Server::start(Settings::new(2, secret.clone()))?;
//! let address = server.address().to_string();
//! let limit = Duration::from_secs(30);
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(|| Client::join(&address, 1, 2, &secret, limit)?.get("id", limit));
//!     Client::join(&address, 0, 2, &secret, limit)?.set("id", b"something")?;
//!     assert_eq!(other.join().unwrap()?, b"something");
//!     Ok(())
//! })
//! # .and_then(|()| Ok::<(), epl_launch::Error>(()))?;
//! # Ok::<(), epl_launch::Error>(())
//! ```

mod secret;
mod message;
mod session;
mod handshake;
mod failure;
mod gate;
mod members;
mod connection;
mod settings;
mod server;
mod mailbox;
mod client;

pub use client::Client;
pub use failure::{Failure, Fault};
pub use message::{MAX_FRAME, MAX_KEY, MAX_VALUE};
pub use secret::Secret;
pub use server::Server;
pub use settings::{Event, Refusal, Settings};
