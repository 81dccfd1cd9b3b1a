//! The all-to-all over several hosts.
//!
//! What one host has for another goes as one message, from leader to leader. Only the two ends of a pair of members know
//! how much one has for the other, so the leaders learn that first.
//!
//! ```text
//! leader of host 0, from its members 0 and 1:    0→0 0→1 0→2 0→3 | 1→0 1→1 1→2 1→3
//! put in order for the hosts:                    0→0 0→1 1→0 1→1 | 0→2 0→3 1→2 1→3
//! got from the hosts:                            0→0 0→1 1→0 1→1 | 2→0 2→1 3→0 3→1
//! put in order for its members:                  0→0 1→0 2→0 3→0 | 0→1 1→1 2→1 3→1
//! ```

use std::ops::Range;

use super::Hierarchy;
use super::arranged::arranged;
use super::numbers::Whole;
use super::stage::LEADER;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::per_member::PerMember;
use crate::transport::Transport;

/// How many elements each member has for each.
struct Counts {
    /// By the member that sends, then by the one that receives.
    sent: Vec<i64>,
    members: usize,
}

impl Counts {
    fn sent(&self, from: usize, to: usize) -> usize {
        self.sent[from * self.members + to] as usize
    }
}

impl Hierarchy {
    pub(super) fn all_to_all(&self, call: &Whole, buffer: Buffer) -> Result<Buffer> {
        let counts = self.counts(call)?;
        let own = self.hosts.own();
        let sent: PerMember = own.iter().map(|from| counts.as_ref().map_or(0, |counts| counts.total(*from))).collect();
        let mut mine = self.bring_all(call, buffer, &sent)?;
        let mut widths = PerMember::same(0, own.len());
        if let Some(counts) = &counts {
            let (send, receive) = self.between_hosts(counts);
            let by_host = arranged(mine, &self.to_hosts(counts));
            let got = self.between(call).all_to_all(by_host, send, receive)?;
            mine = arranged(got, &self.to_own(counts));
            widths = own.iter().map(|to| counts.received(*to)).collect();
        }
        // Each knows its own width, the leader all.
        let total = call.received().total();
        let known: PerMember = match counts {
            Some(_) => widths,
            None => own.iter().map(|member| if *member == self.hosts.member() { total } else { 0 }).collect(),
        };
        self.inside(call).hand_out(mine, &known)
    }

    /// What members send and expect, compared; at the leaders.
    fn counts(&self, call: &Whole) -> Result<Option<Counts>> {
        let members = self.hosts.len();
        let received = call.received();
        let said = call.send.iter().chain(received.iter());
        let said = Buffer::from_values(said.map(|count| count as i64).collect::<Vec<_>>());
        let near = self.inside(call).gather(said, LEADER, PerMember::same(2 * members, self.hosts.own().len()))?;
        if !self.hosts.leads() {
            return Ok(None);
        }
        let widths = self.hosts.iter().map(|host| 2 * members * host.len()).collect();
        let all = self.between(call).all_gather(near, widths)?.into_values::<i64>();
        let (mut sent, mut expected) = (vec![0; members * members], vec![0; members * members]);
        for (member, said) in self.hosts.by_host().zip(all.chunks(2 * members)) {
            sent[member * members..][..members].copy_from_slice(&said[..members]);
            expected[member * members..][..members].copy_from_slice(&said[members..]);
        }
        let mut pairs = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
        let unequal = pairs.find(|(from, to)| sent[from * members + to] != expected[to * members + from]);
        if let Some((from, to)) = unequal {
            let error = Error::Mismatch {
                group: self.name().to_string(),
                sequence: call.sequence,
                first: self.members()[from],
                first_call: format!(
                    "{}, sending {} elements to {}",
                    call.operation,
                    sent[from * members + to],
                    self.members()[to]
                ),
                second: self.members()[to],
                second_call: format!("{}, expecting {} from it", call.operation, expected[to * members + from]),
                second_is_odd: false,
            };
            self.abort(&error);
            return Err(error);
        }
        Ok(Some(Counts { sent, members }))
    }

    /// What the members of the host have for all, at the leader. The others say no more than their own count.
    fn bring_all(&self, call: &Whole, buffer: Buffer, sent: &PerMember) -> Result<Buffer> {
        let len = buffer.num_elements();
        let own = self.hosts.own();
        let receive = match self.hosts.leads() {
            true => sent.clone(),
            false => PerMember::same(0, own.len()),
        };
        let send = (0..own.len()).map(|member| if member == LEADER { len } else { 0 }).collect();
        self.inside(call).all_to_all(buffer, send, receive)
    }

    /// How much this host has for each, and gets from each.
    fn between_hosts(&self, counts: &Counts) -> (PerMember, PerMember) {
        let own = self.hosts.own();
        let sum = |from: &[usize], to: &[usize]| {
            from.iter().flat_map(|from| to.iter().map(|to| counts.sent(*from, *to))).sum::<usize>()
        };
        let send = self.hosts.iter().map(|host| sum(own, host)).collect();
        let receive = self.hosts.iter().map(|host| sum(host, own)).collect();
        (send, receive)
    }

    /// What this host's members have brought, for one host after the other.
    fn to_hosts(&self, counts: &Counts) -> Vec<Range<usize>> {
        let own = self.hosts.own();
        let order = own.iter().flat_map(|from| (0..self.hosts.len()).map(move |to| (*from, to)));
        let wanted =
            self.hosts.iter().flat_map(|host| own.iter().flat_map(move |from| host.iter().map(move |to| (*from, *to))));
        counts.arranged(order, wanted)
    }

    /// What has come from the hosts, for one of this host's members after the other.
    fn to_own(&self, counts: &Counts) -> Vec<Range<usize>> {
        let own = self.hosts.own();
        let order = self.hosts.by_host().flat_map(|from| own.iter().map(move |to| (from, *to)));
        let wanted = own.iter().flat_map(|to| (0..self.hosts.len()).map(move |from| (from, *to)));
        counts.arranged(order, wanted)
    }
}

impl Counts {
    /// All that a member sends.
    fn total(&self, from: usize) -> usize {
        (0..self.members).map(|to| self.sent(from, to)).sum()
    }

    /// All that a member gets.
    fn received(&self, to: usize) -> usize {
        (0..self.members).map(|from| self.sent(from, to)).sum()
    }

    /// Where pairs lie that are put together in `order`, in the order in which they are `wanted`.
    fn arranged(
        &self,
        order: impl Iterator<Item = (usize, usize)>,
        wanted: impl Iterator<Item = (usize, usize)>,
    ) -> Vec<Range<usize>> {
        let (mut start, mut place) = (0, vec![0..0; self.members * self.members]);
        for (from, to) in order {
            let len = self.sent(from, to);
            place[from * self.members + to] = start..start + len;
            start += len;
        }
        wanted.map(|(from, to)| place[from * self.members + to].clone()).collect()
    }
}
