//! Threads taken for ranks of several hosts: the way of a cluster, on one machine.

use std::sync::Arc;

use super::board::Board;
use super::registry::Registry;
use super::transport::LocalTransport;
use super::world::LocalWorld;
use crate::error::Result;
use crate::hierarchy::Medium;
use crate::rank::Rank;
use crate::transport::Transport;

/// A world of threads, so many of which are taken for one host.
#[derive(Debug)]
pub(super) struct PretendHosts {
    world: Arc<LocalWorld>,
    per_host: usize,
    boards: Registry<String, Board>,
}

impl PretendHosts {
    pub(super) fn new(world: Arc<LocalWorld>, per_host: usize) -> Self {
        Self { world, per_host, boards: Registry::default() }
    }
}

impl Medium for PretendHosts {
    fn host(&self, rank: Rank) -> usize {
        rank.0 / self.per_host
    }

    fn group(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Result<Arc<dyn Transport>> {
        let member = members.iter().position(|other| *other == rank).expect("a rank asks for groups of its own");
        let board = || Board::new(name, members.to_vec(), &self.world);
        let board = self.boards.take(key.to_string(), members.len(), board);
        Ok(Arc::new(LocalTransport::new(self.world.clone(), board, member)))
    }

    fn wholes(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Option<Arc<dyn Transport>> {
        self.group(key, name, members, rank).ok()
    }
}
