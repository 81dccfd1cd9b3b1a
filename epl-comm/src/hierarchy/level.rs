//! Hosts of hosts: machines whose processes have several ranks each.

use std::sync::Arc;

use super::{Medium, group};
use crate::error::Result;
use crate::rank::Rank;
use crate::transport::Transport;

/// Hosts over a medium that has hosts of its own, each of which lies in one of these.
#[derive(Debug)]
pub(crate) struct Level {
    over: Arc<dyn Medium>,
    /// The host of each rank.
    hosts: Box<[usize]>,
}

impl Level {
    pub(crate) fn new(over: Arc<dyn Medium>, hosts: Box<[usize]>) -> Self {
        Self { over, hosts }
    }
}

impl Medium for Level {
    fn host(&self, rank: Rank) -> usize {
        self.hosts[rank.0]
    }

    fn is_dry(&self) -> bool {
        self.over.is_dry()
    }

    fn group(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Result<Arc<dyn Transport>> {
        group(&self.over, key, name, members.to_vec(), rank)
    }

    fn wholes(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Option<Arc<dyn Transport>> {
        self.over.wholes(key, name, members, rank)
    }

    fn link(&self, key: &str, name: &str, from: Rank, to: Rank, rank: Rank) -> Result<Arc<dyn Transport>> {
        self.over.link(key, name, from, to, rank)
    }
}
