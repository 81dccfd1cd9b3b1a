//! How many bytes the arrays hold, now and at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// At this moment.
    pub now: u64,
    /// At most so far.
    pub most: u64,
}

/// What the arrays of one or more storages hold; a clone counts the same arrays.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Accounts>);

#[derive(Debug, Default)]
struct Accounts {
    host: Account,
    files: Account,
    mapped: Account,
}

#[derive(Debug, Default)]
struct Account {
    now: AtomicU64,
    most: AtomicU64,
}

/// What bytes are counted as.
#[derive(Clone, Copy, Debug)]
pub(super) enum HoldingKind {
    Host,
    Files,
    Mapped,
}

impl Ledger {
    /// A ledger without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of arrays in host memory, as they were allocated: an array fills words of eight bytes.
    pub fn host(&self) -> Holding {
        self.0.host.holding()
    }

    /// Bytes of arrays in files.
    pub fn files(&self) -> Holding {
        self.0.files.holding()
    }

    /// Bytes of windows of files that are mapped.
    pub fn mapped(&self) -> Holding {
        self.0.mapped.holding()
    }

    /// Counts bytes for as long as the result lives.
    pub(super) fn enter(&self, kind: HoldingKind, bytes: u64) -> Counted {
        let account = self.account(kind);
        let now = account.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        account.most.fetch_max(now, Ordering::Relaxed);
        Counted { ledger: self.clone(), kind, bytes }
    }

    fn account(&self, kind: HoldingKind) -> &Account {
        match kind {
            HoldingKind::Host => &self.0.host,
            HoldingKind::Files => &self.0.files,
            HoldingKind::Mapped => &self.0.mapped,
        }
    }
}

impl Account {
    fn holding(&self) -> Holding {
        Holding { now: self.now.load(Ordering::Relaxed), most: self.most.load(Ordering::Relaxed) }
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    ledger: Ledger,
    kind: HoldingKind,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ledger.account(self.kind).now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_now_and_at_most() {
        let ledger = Ledger::new();
        let first = ledger.enter(HoldingKind::Host, 100);
        let second = ledger.clone().enter(HoldingKind::Host, 20);
        drop(first);
        assert_eq!(ledger.host(), Holding { now: 20, most: 120 });
        drop(second);
        assert_eq!(ledger.host(), Holding { now: 0, most: 120 });
        assert_eq!((ledger.files(), ledger.mapped()), (Holding::default(), Holding::default()));
    }
}
