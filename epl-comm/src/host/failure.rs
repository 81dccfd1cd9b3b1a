//! The first failure of a run: who caused it, and what others are told.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::rank::Rank;

/// The first failure. It stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Who caused it; of several who share it, the lowest.
    pub(crate) rank: Rank,
    pub(crate) cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Cause {
    /// The rank's own; others learn that a peer failed.
    Own(String),
    /// The rank's own: it alone made another call than its peers.
    Odd(Error),
    /// Nobody's in particular; all get the same error.
    Shared(Error),
}

impl Failure {
    /// A rank's own.
    pub(crate) fn own(rank: Rank, cause: String) -> Self {
        Self { rank, cause: Cause::Own(cause) }
    }

    /// What `rank` has found in a call. All members blame the same rank for a mismatch, or none.
    pub(crate) fn found(error: &Error, rank: Rank) -> Self {
        match error {
            Error::Mismatch { second_is_odd: true, second, .. } => {
                Self { rank: *second, cause: Cause::Odd(error.clone()) }
            }
            Error::Mismatch { first, .. } => Self { rank: *first, cause: Cause::Shared(error.clone()) },
            _ => Self::own(rank, error.to_string()),
        }
    }

    /// An error that is nobody's in particular: it is told with the lowest of the ranks that it names, or this one.
    pub(crate) fn shared(error: Error, otherwise: Rank) -> Self {
        let rank = match &error {
            Error::Deadlock { circle: named } | Error::Timeout { missing: named, .. } => {
                named.first().map(|(rank, _)| *rank)
            }
            Error::Order { first, second, .. } => Some(*first.min(second)),
            _ => None,
        };
        Self { rank: rank.unwrap_or(otherwise), cause: Cause::Shared(error) }
    }

    /// The failure of which another part of the world tells by an error.
    pub(crate) fn heard(error: &Error, rank: Rank) -> Self {
        match error {
            Error::Peer { cause, .. } => Self::own(rank, cause.clone()),
            error => Self { rank, cause: Cause::Shared(error.clone()) },
        }
    }

    /// What a rank gets that was released from `operation`.
    pub(crate) fn to_error(&self, operation: String) -> Error {
        match &self.cause {
            Cause::Shared(error) => error.clone(),
            Cause::Own(_) | Cause::Odd(_) => Error::Peer { rank: self.rank, operation, cause: self.text() },
        }
    }

    /// The cause in words.
    pub(crate) fn text(&self) -> String {
        match &self.cause {
            Cause::Own(cause) => cause.clone(),
            Cause::Odd(error) | Cause::Shared(error) => error.to_string(),
        }
    }
}
