//! What all groups of one rank share.

use super::driver::Driver;
use super::recall::Recall;
use crate::log::Log;
use crate::pending::Helpers;

/// One rank's place in the world, whatever the group. A clone is the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seat {
    pub(crate) driver: Driver,
    pub(crate) helpers: Helpers,
    pub(crate) log: Log,
    pub(crate) recall: Recall,
}

impl Seat {
    /// A place whose helper threads are joined through `helpers`.
    pub(crate) fn new(helpers: Helpers) -> Self {
        Self { helpers, ..Self::default() }
    }
}
