//! Boards of groups that are being made: the first member that asks makes it, the last takes it away.

use core::hash::Hash;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// Boards by what their members call them, each with how many have not yet taken theirs.
#[derive(Debug)]
pub(super) struct Registry<K, B>(Mutex<HashMap<K, (Arc<B>, usize)>>);

impl<K, B> Default for Registry<K, B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, B> Registry<K, B> {
    /// The board of this name, which `takers` members ask for once each; made by whoever comes first.
    pub(super) fn take(&self, key: K, takers: usize, make: impl FnOnce() -> B) -> Arc<B> {
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
