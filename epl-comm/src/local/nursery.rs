//! Boards of groups that are being made: the first member that asks makes it, the last takes it away.

use core::hash::Hash;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use super::board::Board;

/// Boards by what their members call them, each with how many have not yet taken theirs.
#[derive(Debug)]
pub(super) struct Nursery<K>(Mutex<HashMap<K, (Arc<Board>, usize)>>);

impl<K> Default for Nursery<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Nursery<K> {
    /// The board of this name, which `takers` members ask for once each; made by whoever comes first.
    pub(super) fn take(&self, key: K, takers: usize, make: impl FnOnce() -> Board) -> Arc<Board> {
        let mut boards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = match boards.entry(key) {
            Entry::Occupied(place) => place,
            Entry::Vacant(place) => place.insert_entry((Arc::new(make()), takers)),
        };
        let (board, left) = place.get_mut();
        let board = board.clone();
        *left -= 1;
        if *left == 0 {
            place.remove();
        }
        board
    }
}
