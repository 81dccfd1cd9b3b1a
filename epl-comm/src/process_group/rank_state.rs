//! What all groups of one rank share.

use super::owner_thread::OwnerThread;
use super::recall::Recall;
use crate::log::Log;
use crate::pending::Helpers;

/// One rank's, whatever the group. A clone is the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankState {
    pub(crate) owner: OwnerThread,
    pub(crate) helpers: Helpers,
    pub(crate) log: Log,
    pub(crate) recall: Recall,
}

impl RankState {
    /// One whose helper threads are joined through `helpers`.
    pub(crate) fn new(helpers: Helpers) -> Self {
        Self { helpers, ..Self::default() }
    }
}
