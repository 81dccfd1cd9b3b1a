//! Those who have connected and not yet shown who they are: never more than a bound.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, PoisonError};

/// The connections before the gate.
#[derive(Debug)]
pub(super) struct Gate {
    bound: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// Oldest first.
    streams: VecDeque<(u64, TcpStream)>,
    /// Threads that have not ended, also those whose connection was closed.
    threads: usize,
}

/// A place before the gate, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    gate: &'a Gate,
    number: u64,
}

impl Gate {
    /// A gate before which so many may wait.
    pub(super) fn new(bound: usize) -> Self {
        Self { bound, waiting: Mutex::default() }
    }

    /// Takes a connection in. Where there are as many as may be, the oldest one is closed: a member needs a moment to
    /// show who it is, so who has been here longest is least likely to be one. The second value is whether that was
    /// done; none where those that were closed have not gone yet either.
    pub(super) fn enter(&self, stream: &TcpStream) -> Option<(Place<'_>, bool)> {
        let copy = stream.try_clone().ok()?;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.threads >= 2 * self.bound {
            return None;
        }
        let crowded = waiting.streams.len() >= self.bound;
        if let Some((_, oldest)) = crowded.then(|| waiting.streams.pop_front()).flatten() {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.threads += 1;
        waiting.streams.push_back((number, copy));
        Some((Place { gate: self, number }, crowded))
    }

    /// Closes all.
    pub(super) fn close(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.streams.iter().for_each(|(_, stream)| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.gate.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.threads -= 1;
        waiting.streams.retain(|(number, _)| *number != self.number);
    }
}
