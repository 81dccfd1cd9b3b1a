//! Which tag a message bears.
//!
//! It tells the group or the link, by the number of the group and a kind, and those of the processes' ranks that do not
//! follow from that: a group over MPI has one rank in each process, and a rank is in one group of a number and kind, so who
//! sends tells who receives; of a link, both ends count.
//!
//! ```text
//! number 0                                                    number 1
//! group | leaders | leaders in hosts | links up | links down  group | ...
//!   T        T             T               T²         T²                      tags for T ranks in a process
//! ```

use core::ffi::c_int;

use super::waits::{DOWNWARD, HOST_LEADERS, KINDS, LEADERS, UPWARD};
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug)]
pub(super) struct Tags {
    /// Ranks in each process.
    threads: u64,
    /// The largest tag.
    limit: u64,
}

impl Tags {
    /// # Errors
    ///
    /// [`Error::Invalid`] when there are not enough for one group.
    pub(super) fn new(threads: usize, limit: u64) -> Result<Self> {
        let tags = Self { threads: threads as u64, limit };
        tags.check(0).map(|()| tags)
    }

    /// Whether there are tags for a group of this number.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they have been used up.
    pub(super) fn check(self, number: u64) -> Result<()> {
        if number < self.numbers() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "group {} of a rank, where MPI has tags up to {}, which are enough for {} groups of a rank where processes \
             have {} ranks each; make groups once, not in every step, or run fewer ranks in a process",
            number.saturating_add(1),
            self.limit,
            self.numbers(),
            self.threads
        )))
    }

    /// How many groups a rank may be in, one after the other.
    fn numbers(self) -> u64 {
        self.limit.saturating_add(1) / self.of_a_number()
    }

    fn of_a_number(self) -> u64 {
        3 * self.threads + 2 * self.threads * self.threads
    }

    /// The tag of messages in a group or link of a number that was checked, from one rank to another, each by its place in
    /// its process.
    pub(super) fn tag(self, channel: u64, from: usize, to: usize) -> c_int {
        let (number, kind) = (channel / KINDS, channel % KINDS);
        let (threads, from, to) = (self.threads, from as u64, to as u64);
        let link = |start: u64| 3 * threads + start + from * threads + to;
        let place = match kind {
            UPWARD => link(0),
            DOWNWARD => link(threads * threads),
            LEADERS => threads + from,
            HOST_LEADERS => 2 * threads + from,
            _ => from,
        };
        (number * self.of_a_number() + place) as c_int
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const THREADS: usize = 8;
    /// As Open MPI has over UCX.
    const LIMIT: u64 = (1 << 23) - 1;

    #[test]
    fn a_rank_of_1024_processes_of_8_may_be_in_thousands_of_groups() -> Result<()> {
        let tags = Tags::new(THREADS, LIMIT)?;
        assert_eq!(tags.numbers(), 55_188);
        tags.check(55_187)?;
        let last = tags.tag(55_187 * KINDS + DOWNWARD, 7, 7);
        assert!(last as u64 <= LIMIT, "{last}");
        let error = tags.check(55_188).map_err(|error| error.to_string());
        let told =
            "group 55189 of a rank, where MPI has tags up to 8388607, which are enough for 55188 groups of a rank";
        assert!(matches!(&error, Err(error) if error.contains(told) && error.contains("fewer ranks in a process")));
        Ok(())
    }

    /// What the standard promises.
    #[test]
    fn the_fewest_tags_of_all_are_enough_for_some_groups() -> Result<()> {
        assert_eq!(Tags::new(THREADS, 32_767)?.numbers(), 215);
        assert_eq!(Tags::new(1, 32_767)?.numbers(), 6553);
        assert!(matches!(Tags::new(200, 32_767), Err(Error::Invalid { .. })));
        Ok(())
    }

    /// Between two processes: a group's messages by who sends them, a link's by both ends.
    #[test]
    fn no_two_ways_have_one_tag() -> Result<()> {
        let tags = Tags::new(3, LIMIT)?;
        let mut seen = HashSet::new();
        for channel in 0..4 * KINDS {
            let is_link = matches!(channel % KINDS, UPWARD | DOWNWARD);
            for from in 0..3 {
                for to in 0..if is_link { 3 } else { 1 } {
                    assert!(seen.insert(tags.tag(channel, from, to)), "{channel} from {from} to {to}");
                }
                assert!(is_link || tags.tag(channel, from, 0) == tags.tag(channel, from, 2));
            }
        }
        assert_eq!(seen.len(), 4 * (3 * 3 + 2 * 9));
        assert!((0..seen.len() as c_int).all(|tag| seen.contains(&tag)), "dense");
        Ok(())
    }
}
