//! One rank's end of the ways to the other members of a group of processes.

use core::ffi::c_int;
use std::sync::Arc;

use super::wait_query::Answers;
use super::waits::Channel;
use super::world::MpiWorld;
use crate::operation::Operation;
use crate::rank::Rank;

/// A member of a group whose messages travel over MPI: what its messages need to know.
pub(super) struct Endpoint {
    pub(super) world: Arc<MpiWorld>,
    pub(super) answers: Arc<Answers>,
    /// The same number on all members, and that of no other group of theirs; its links share two.
    pub(super) channel: u64,
    pub(super) name: String,
    pub(super) members: Vec<Rank>,
    pub(super) member: usize,
}

impl Endpoint {
    /// One of another group of the same rank.
    pub(super) fn beside(&self, name: String, channel: u64, members: Vec<Rank>, member: usize) -> Self {
        Self { world: self.world.clone(), answers: self.answers.clone(), channel, name, members, member }
    }

    /// Where its calls are counted.
    pub(super) fn counted_in(&self) -> Channel {
        Channel::of(self.channel, &self.members)
    }

    /// The rank of this member.
    pub(super) fn rank(&self) -> Rank {
        self.members[self.member]
    }

    /// A call of this group in a few words.
    pub(super) fn brief(&self, operation: Operation, sequence: u64) -> String {
        format!("{operation}, call {sequence} of group `{}`", self.name)
    }

    /// All other members, each beginning with the one after it: so not all send to the same one at first.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + Clone {
        let (members, me) = (self.members.len(), self.member);
        (1..members).map(move |distance| (me + distance) % members)
    }

    /// The tag of messages to a member, and its process.
    pub(super) fn way_to(&self, peer: usize) -> (c_int, usize) {
        let peer = self.members[peer];
        (self.world.tag(self.channel, self.rank(), peer), self.world.process(peer))
    }

    /// The tag of messages from a member, and its process.
    pub(super) fn way_from(&self, peer: usize) -> (c_int, usize) {
        let peer = self.members[peer];
        (self.world.tag(self.channel, peer, self.rank()), self.world.process(peer))
    }
}
