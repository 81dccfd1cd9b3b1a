//! Who is in a group, and which calls each member has taken a number for: what others than the members look at too.

use core::fmt;
use std::sync::Arc;

use super::sync::atomic::{AtomicU64, Ordering};
use crate::operation::Operation;
use crate::rank::Rank;

/// The members of one group.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) name: String,
    pub(super) members: Vec<Rank>,
    reserved: Box<[Reserved]>,
}

/// The last call a member has taken a number for; on a cache line that only the member writes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Reserved(AtomicU64);

impl Membership {
    pub(super) fn new(name: &str, members: Vec<Rank>) -> Self {
        let reserved = members.iter().map(|_| Reserved::default()).collect();
        Self { name: name.to_string(), members, reserved }
    }

    /// Takes the next number of a call for a member.
    pub(super) fn reserve(&self, member: usize) -> u64 {
        self.reserved[member].0.fetch_add(1, Ordering::Release) + 1
    }

    /// Whether a member has taken the number of call `sequence`.
    pub(super) fn has_reserved(&self, member: usize, sequence: u64) -> bool {
        self.reserved[member].0.load(Ordering::Acquire) >= sequence
    }

    /// The ranks that have not taken the number of call `sequence`.
    pub(super) fn missing(&self, sequence: u64) -> impl Iterator<Item = Rank> {
        let members = self.members.iter().enumerate();
        members.filter(move |(member, _)| !self.has_reserved(*member, sequence)).map(|(_, rank)| *rank)
    }
}

/// One call of a group, whoever makes it.
#[derive(Clone, Debug)]
pub(super) struct CallId {
    pub(super) membership: Arc<Membership>,
    pub(super) operation: Operation,
    pub(super) sequence: u64,
}

impl CallId {
    /// The ranks that have not taken its number.
    pub(super) fn missing(&self) -> impl Iterator<Item = Rank> {
        self.membership.missing(self.sequence)
    }

    /// Whether it is the same call of the same group.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.membership, &other.membership) && self.sequence == other.sequence
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, call {} of group `{}`", self.operation, self.sequence, self.membership.name)
    }
}
