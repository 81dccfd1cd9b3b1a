//! Ranks of several hosts that are only thought of.

use std::sync::Arc;

use super::traffic::Traffic;
use super::transport::DryTransport;
use crate::error::Result;
use crate::hierarchy::Medium;
use crate::rank::Rank;
use crate::transport::Transport;

/// Hosts of so many ranks.
#[derive(Debug)]
pub(super) struct DryHosts {
    pub(super) per_host: usize,
    pub(super) traffic: Traffic,
}

impl Medium for DryHosts {
    fn host(&self, rank: Rank) -> usize {
        rank.0 / self.per_host
    }

    fn is_dry(&self) -> bool {
        true
    }

    fn group(&self, _key: &str, name: &str, members: &[Rank], rank: Rank) -> Result<Arc<dyn Transport>> {
        let member = members.iter().position(|other| *other == rank).expect("a rank asks for groups of its own");
        Ok(Arc::new(DryTransport::new(name, members.to_vec(), member, self.traffic.clone())))
    }

    /// Nobody waits.
    fn wholes(&self, _key: &str, _name: &str, _members: &[Rank], _rank: Rank) -> Option<Arc<dyn Transport>> {
        None
    }
}
