//! The ranks of one process of several, which are threads: where those groups meet that lie inside.

use core::time::Duration;
use std::sync::Arc;

use super::board::Board;
use super::registry::Registry;
use super::run::EAGER_LIMIT;
use super::transport::LocalTransport;
use super::world::{LocalWorld, Watch};
use crate::error::Error;
use crate::host::failure::Failure;
use crate::host::watchdog::{ControlPlane, Options};
use crate::process_group::RankState;
use crate::rank::Rank;
use crate::transport::Transport;

/// The part of a world of several processes that is inside this one. What fails inside is told to the rest, and the
/// other way round.
#[derive(Debug)]
pub(crate) struct Inside {
    world: Arc<LocalWorld>,
    boards: Registry<String, Board>,
}

impl Inside {
    /// `rank_states` are those of all ranks, of whatever process; `tell` hears of the first failure.
    ///
    /// A rank may wait inside for one that waits for another process: who finds that out is to be faster than
    /// `time_limit`.
    pub(crate) fn new(
        rank_states: Box<[RankState]>,
        is_crowded: bool,
        lanes: usize,
        time_limit: Option<Duration>,
        tell: impl Fn(Rank, &Error) + Send + Sync + 'static,
    ) -> Self {
        let cores = if is_crowded { 0 } else { rank_states.len() };
        let options = Options { time_limit, lanes: Some(lanes), on_failure: Some(Arc::new(tell)) };
        let watch = Watch { options, check_order: false, eager_limit: EAGER_LIMIT };
        Self { world: Arc::new(LocalWorld::new(rank_states, cores, watch)), boards: Registry::default() }
    }

    /// A group of ranks that are all in this process. Each asks for it once, with the same key.
    pub(crate) fn group(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Arc<dyn Transport> {
        let member = members.iter().position(|other| *other == rank).expect("a rank asks for groups of its own");
        let board = || Board::new(name, members.to_vec(), &self.world);
        let board = self.boards.take(key.to_string(), members.len(), board);
        Arc::new(LocalTransport::new(self.world.clone(), board, member))
    }

    /// What a rank's own thread waits in, and those who have not come to it.
    pub(crate) fn wait_of(&self, rank: Rank) -> Option<(String, Vec<Rank>)> {
        self.world.wait_of(rank)
    }

    /// Releases everybody here, as another part of the world has failed.
    pub(crate) fn fail(&self, rank: Rank, error: &Error) {
        self.world.record(Failure::heard(error, rank));
    }

    /// Records that a rank begins no further call.
    pub(crate) fn end(&self, rank: Rank) {
        self.world.tell_end(rank);
    }
}
