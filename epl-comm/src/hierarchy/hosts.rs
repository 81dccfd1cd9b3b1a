//! Which member of a group lies where.

use core::ops::Range;

use crate::per_member::PerMember;
use crate::rank::Rank;

/// The members of a group by their hosts, seen by one of them.
#[derive(Debug)]
pub(super) struct Hosts {
    /// The members of each host, in their order; hosts in the order of their first members, which lead them.
    members: Vec<Vec<usize>>,
    /// The host of each member, by its number here.
    of: Vec<usize>,
    member: usize,
}

impl Hosts {
    pub(super) fn new(members: &[Rank], rank: Rank, host: impl Fn(Rank) -> usize) -> Self {
        let (mut names, mut hosts, mut of) = (Vec::new(), Vec::<Vec<usize>>::new(), Vec::new());
        for (member, rank) in members.iter().enumerate() {
            let name = host(*rank);
            let index = names.iter().position(|other| *other == name).unwrap_or_else(|| {
                names.push(name);
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            hosts[index].push(member);
            of.push(index);
        }
        let member = members.iter().position(|other| *other == rank).expect("a rank asks for groups of its own");
        Self { members: hosts, of, member }
    }

    /// Whether all members lie in one host.
    pub(super) fn is_one(&self) -> bool {
        self.members.len() == 1
    }

    /// Whether every member lies in a host of its own.
    pub(super) fn are_all_of_one(&self) -> bool {
        self.members.len() == self.of.len()
    }

    /// This member's position in the group.
    pub(super) fn member(&self) -> usize {
        self.member
    }

    /// The number of members.
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// This member's host.
    pub(super) fn host(&self) -> usize {
        self.of[self.member]
    }

    /// The host of a member.
    pub(super) fn host_of(&self, member: usize) -> usize {
        self.of[member]
    }

    /// The members of this member's host.
    pub(super) fn own(&self) -> &[usize] {
        &self.members[self.host()]
    }

    /// A member's position in its host.
    pub(super) fn position(&self, member: usize) -> usize {
        let host = &self.members[self.of[member]];
        host.iter().position(|other| *other == member).expect("a member lies in its host")
    }

    /// The first member of each host.
    pub(super) fn leaders(&self) -> Vec<usize> {
        self.members.iter().map(|host| host[0]).collect()
    }

    /// Whether this member is the first of its host.
    pub(super) fn leads(&self) -> bool {
        self.own()[0] == self.member
    }

    /// All members, host by host.
    pub(super) fn by_host(&self) -> impl Iterator<Item = usize> {
        self.members.iter().flatten().copied()
    }

    /// The hosts, by the members of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[usize]> {
        self.members.iter().map(Vec::as_slice)
    }

    /// The numbers of this host's members.
    pub(super) fn inner(&self, numbers: &PerMember) -> PerMember {
        self.own().iter().map(|member| numbers[*member]).collect()
    }

    /// The sums of the numbers of each host's members.
    pub(super) fn outer(&self, numbers: &PerMember) -> PerMember {
        self.iter().map(|host| host.iter().map(|member| numbers[*member]).sum()).collect()
    }

    /// The parts of a buffer, which is in the order of the members, host by host.
    pub(super) fn to_hosts(&self, widths: &PerMember) -> Vec<Range<usize>> {
        self.by_host().map(|member| widths.before(member)..widths.before(member) + widths[member]).collect()
    }

    /// The parts of a buffer that is put together host by host, in the order of the members.
    pub(super) fn to_members(&self, widths: &PerMember) -> Vec<Range<usize>> {
        let (mut start, mut columns) = (0, vec![0..0; self.len()]);
        for member in self.by_host() {
            columns[member] = start..start + widths[member];
            start += widths[member];
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_host_by_host_and_back() {
        // Ranks 5, 0, 4, 1 over hosts of two ranks: 2, 0, 2, 0.
        let hosts = Hosts::new(&[Rank(5), Rank(0), Rank(4), Rank(1)], Rank(1), |rank| rank.0 / 2);
        assert_eq!((hosts.host(), hosts.own(), hosts.position(3), hosts.leads()), (1, &[1, 3][..], 1, false));
        assert_eq!((hosts.leaders(), hosts.by_host().collect::<Vec<_>>()), (vec![0, 1], vec![0, 2, 1, 3]));
        let widths = PerMember::from(&[1, 2, 3, 4][..]);
        assert_eq!(hosts.to_hosts(&widths), [0..1, 3..6, 1..3, 6..10]);
        assert_eq!(hosts.to_members(&widths), [0..1, 4..6, 1..4, 6..10]);
        assert_eq!(
            (hosts.inner(&widths), hosts.outer(&widths)),
            (PerMember::from(&[2, 4][..]), PerMember::from(&[4, 6][..]))
        );
    }

    #[test]
    fn one_host_and_hosts_of_one_are_told() {
        let of = |per_host: usize| Hosts::new(&[Rank(0), Rank(1), Rank(2)], Rank(0), |rank| rank.0 / per_host);
        assert_eq!([of(3).is_one(), of(3).are_all_of_one()], [true, false]);
        assert_eq!([of(1).is_one(), of(1).are_all_of_one()], [false, true]);
        assert_eq!([of(2).is_one(), of(2).are_all_of_one()], [false, false]);
    }
}
