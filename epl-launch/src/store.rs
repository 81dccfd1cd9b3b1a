//! Small values under names, by which ranks tell each other what they need to know before they can communicate.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::error::{Error, Result};

/// Small values that all workers of a run can set and read: how a transport exchanges what it needs to begin.
///
/// A name gets one value, once: whoever reads it, early or late, reads the same.
///
/// ```
/// use core::time::Duration;
/// use epl_launch::{MemoryStore, Store};
///
/// let store = MemoryStore::new();
/// std::thread::scope(|scope| {
///     let reader = scope.spawn(|| store.get("id", Duration::from_secs(60))); // it may be early
///     store.set("id", b"one")?;
///     assert_eq!(reader.join().unwrap()?, b"one");
///     assert!(store.set("id", b"another").is_err());
///     Ok::<_, epl_launch::Error>(())
/// })?;
/// # Ok::<_, epl_launch::Error>(())
/// ```
pub trait Store: Send + Sync {
    /// Gives `key` its value.
    ///
    /// # Errors
    ///
    /// When `key` has another value already, when the store does not take a key or a value of that size, or when the
    /// run has failed.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value of `key`, for which it waits as long as `wait`.
    ///
    /// # Errors
    ///
    /// [`Error::Unset`] when nobody has set it in time. Every other error says that the store is of no use any more, as
    /// the run has failed or the way to the store is lost.
    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>>;

    /// Forgets a value that everybody has read who ever will. A store may keep it.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    fn forget(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// [`set`](Self::set), given up after `limit`: for a last word, which must not hold up the end of who says it. It is set
    /// without a limit where a store does not say otherwise.
    ///
    /// # Errors
    ///
    /// As of [`set`](Self::set), and when the store does not answer in time: it may take the value later.
    fn set_within(&self, key: &str, value: &[u8], _limit: Duration) -> Result<()> {
        self.set(key, value)
    }
}

/// The store of the threads of one process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl MemoryStore {
    /// A store without values.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        match values.get(key) {
            Some(old) if old == value => return Ok(()),
            Some(_) => return Err(taken(key)),
            None => values.insert(key.to_string(), value.to_vec()),
        };
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>> {
        let begin = Instant::now();
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = values.get(key) {
                return Ok(value.clone());
            }
            let Some(left) = wait.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                return Err(unset(key, wait));
            };
            values = self.changed.wait_timeout(values, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn forget(&self, key: &str) -> Result<()> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Ok(())
    }
}

/// The error of a second value for a key.
pub(crate) fn taken(key: &str) -> Error {
    Error::Joining { message: format!("`{key}` has another value already; a key of a store is set once") }
}

/// The error of a key that nobody has set in time.
pub(crate) fn unset(key: &str, wait: Duration) -> Error {
    Error::Unset { key: key.to_string(), waited: wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_set_once_and_waited_for() {
        let store = MemoryStore::new();
        let error = store.get("id", Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "nobody has set `id` within 0.0 s");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| store.get("id", Duration::from_secs(60)));
            store.set("id", b"one").unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), b"one");
        });
        store.set("id", b"one").unwrap();
        assert_eq!(store.set("id", b"two"), Err(taken("id")));
        assert_eq!(store.get("id", Duration::ZERO).unwrap(), b"one");
        store.forget("id").unwrap();
        assert!(matches!(store.get("id", Duration::ZERO), Err(Error::Unset { .. })));
    }
}
