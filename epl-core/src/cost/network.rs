//! What collectives take, by who is in the group and what each member gives.
//!
//! | | over links: latency α, bytes a second B, of g members with n bytes each |
//! |---|---|
//! | all_reduce | 2(g−1)α + 2(g−1)/g · n/B in a ring, or 2⌈log₂ g⌉α + 2n/B in a tree, whichever is less |
//! | all_gather, gather | (g−1)(α + n/B) |
//! | broadcast, reduce | (g−1)α + n/B |
//! | reduce_scatter, scatter, all_to_all | (g−1)α + (g−1)/g · n/B |
//! | send | α + n/B |
//!
//! These are the algorithms of NCCL's collectives. Between hosts the cards of a host are shared by all groups that leave it at once: with eight
//! ranks on a host and groups of one rank of each, eight groups do. In an all_to_all each rank's own bytes leave its host; what stays on
//! it is counted as if it left.

use epl_comm::{Operation, ReduceOp};
use serde::{Deserialize, Serialize};

use super::line::Line;
use crate::simulate::{Called, Members};
use crate::topology::cluster::{Axis, Mesh};

/// Collectives that take alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CallKind {
    /// Sums that all get; barriers.
    AllReduce,
    /// Parts that all, or one, get of all.
    AllGather,
    /// What all get of one, or a sum that one gets of all.
    Broadcast,
    /// Sums of which each gets a part, or parts of what one has.
    ReduceScatter,
    /// Parts for each other.
    AllToAll,
    /// Between two.
    Send,
}

impl CallKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::AllReduce, Self::AllGather, Self::Broadcast, Self::ReduceScatter, Self::AllToAll, Self::Send];

    fn of(operation: Operation) -> Self {
        match operation {
            Operation::AllReduce(_) | Operation::Barrier | Operation::Split => Self::AllReduce,
            Operation::ReduceScatter(_) | Operation::Scatter { .. } => Self::ReduceScatter,
            Operation::Broadcast { .. } | Operation::Reduce { .. } => Self::Broadcast,
            Operation::AllToAll => Self::AllToAll,
            Operation::Send | Operation::Receive => Self::Send,
            Operation::AllGather | Operation::Gather { .. } => Self::AllGather,
        }
    }
}

/// How a group lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct GroupShape {
    /// Its members.
    pub ranks: usize,
    /// The hosts on which they are.
    pub hosts: usize,
}

/// A link of one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NetworkLink {
    /// Seconds until something comes.
    pub latency: f64,
    /// Bytes a second.
    pub bandwidth: f64,
}

/// What collectives of one kind took in groups of one shape: seconds over the bytes that each member gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredCalls {
    /// Which.
    pub kind: CallKind,
    /// In which groups, all of which called at once.
    pub shape: GroupShape,
    /// How long.
    pub seconds: Line,
}

/// What ranks have in common whose calls take as long.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NetworkPlace {
    /// By axis the ranks of the group, and of each of its hosts the links, and how many ranks share its cards.
    groups: [(usize, Vec<[usize; 2]>); Axis::ALL.len()],
    /// Whether neighbouring stages are on one host.
    hops: Vec<bool>,
}

/// What connects ranks: measured, or links that are described.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    host_of: Vec<usize>,
    /// How many ranks each host has.
    on_host: Vec<usize>,
    costs: NetworkCosts,
}

#[derive(Clone, Debug, PartialEq)]
enum NetworkCosts {
    Measured(Vec<MeasuredCalls>),
    /// By host: inside it, and to others.
    Links(Vec<[NetworkLink; 2]>),
}

impl Network {
    /// That of ranks on these hosts, as measured. A group of a shape that was not measured takes as long as one of the nearest
    /// shape, of those on as many hosts first.
    pub(crate) fn measured(host_of: Vec<usize>, calls: Vec<MeasuredCalls>) -> Self {
        Self::new(host_of, NetworkCosts::Measured(calls))
    }

    fn new(host_of: Vec<usize>, costs: NetworkCosts) -> Self {
        let mut on_host = vec![0; host_of.iter().max().map_or(1, |last| last + 1)];
        host_of.iter().for_each(|host| on_host[*host] += 1);
        Self { host_of, on_host, costs }
    }

    /// That of ranks on these hosts, which are alike, over links between ranks of a host, and from one host to another: `outside` is
    /// what all cards of a host have together.
    #[cfg(test)]
    pub(crate) fn of_links(host_of: Vec<usize>, inside: NetworkLink, outside: NetworkLink) -> Self {
        let hosts = host_of.iter().max().map_or(1, |last| last + 1);
        Self::of_hosts(host_of, vec![[inside, outside]; hosts])
    }

    /// That of ranks on these hosts, by whose number the links inside each and from each to others are.
    pub(crate) fn of_hosts(host_of: Vec<usize>, links: Vec<[NetworkLink; 2]>) -> Self {
        Self::new(host_of, NetworkCosts::Links(links))
    }

    /// Whether what a group of a mesh calls takes as long as what any other one over the same axis does: hosts have the same links, and
    /// groups lie alike on them.
    pub(crate) fn is_uniform(&self, mesh: &Mesh) -> bool {
        let has_equal_links = match &self.costs {
            NetworkCosts::Measured(_) => true,
            NetworkCosts::Links(links) => links.iter().all(|host| *host == links[0]),
        };
        has_equal_links && mesh.lies_evenly(&self.host_of)
    }

    /// How a rank's groups lie: of ranks that have this in common, calls take as long.
    pub(crate) fn place_of(&self, mesh: &Mesh, rank: usize) -> NetworkPlace {
        let of = |axis: Axis| {
            let members = mesh.group(axis, rank);
            let mut hosts: Vec<[usize; 2]> =
                self.hosts(&members).into_iter().map(|host| [self.links_of(host), self.on_host[host]]).collect();
            hosts.sort_unstable();
            (members.len(), hosts)
        };
        let stages = mesh.group(Axis::Pipeline, rank);
        let hops = stages.windows(2).map(|two| self.host_of[two[0]] == self.host_of[two[1]]).collect();
        NetworkPlace { groups: Axis::ALL.map(of), hops }
    }

    /// Whether it is known what calls take: not where ranks are only thought of, and their links not described.
    pub(crate) fn is_known(&self) -> bool {
        self.host_of.len() < 2 || self.costs != NetworkCosts::Measured(Vec::new())
    }

    /// A number that hosts have in common with the same links.
    fn links_of(&self, host: usize) -> usize {
        match &self.costs {
            NetworkCosts::Measured(_) => 0,
            NetworkCosts::Links(links) => links.iter().position(|other| *other == links[host]).unwrap_or(0),
        }
    }

    /// That of these ranks alone, numbered anew.
    pub(crate) fn among(&self, ranks: &[usize]) -> Self {
        let host_of = ranks.iter().map(|rank| self.host_of[*rank]).collect();
        Self::new(host_of, self.costs.clone())
    }

    /// The host of a rank.
    pub(crate) fn host(&self, rank: usize) -> usize {
        self.host_of.get(rank).copied().unwrap_or(0)
    }

    /// How a group of these ranks lies.
    pub(crate) fn shape(&self, members: &[usize]) -> GroupShape {
        GroupShape { ranks: members.len(), hosts: self.hosts(members).len() }
    }

    /// The hosts of ranks.
    fn hosts(&self, members: &[usize]) -> Vec<usize> {
        let mut hosts: Vec<usize> = members.iter().map(|rank| self.host(*rank)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Seconds of a collective of these ranks, each of which gives so many bytes.
    pub fn seconds(&self, operation: Operation, bytes: u64, members: &[usize]) -> f64 {
        if members.len() < 2 {
            return 0.0;
        }
        let (kind, hosts) = (CallKind::of(operation), self.hosts(members));
        let shape = GroupShape { ranks: members.len(), hosts: hosts.len() };
        match &self.costs {
            NetworkCosts::Measured(calls) => {
                nearest(calls, kind, shape).map_or(0.0, |call| call.seconds.at(bytes as f64))
            }
            NetworkCosts::Links(links) => {
                let link = |host: &usize| match (kind, shape.hosts) {
                    (_, 1) => links[*host][0],
                    // In a ring what leaves a host leaves it once; what each has for each other, as often as members are there.
                    (CallKind::AllToAll, _) => {
                        self.between(shape, *host, shape.ranks.div_ceil(shape.hosts), links[*host])
                    }
                    _ => self.between(shape, *host, 1, links[*host]),
                };
                // All go at the pace of the slowest host.
                let slowest = hosts.iter().map(link).reduce(|one, other| NetworkLink {
                    latency: one.latency.max(other.latency),
                    bandwidth: one.bandwidth.min(other.bandwidth),
                });
                slowest.map_or(0.0, |link| over_link(kind, bytes as f64, shape.ranks, link))
            }
        }
    }

    /// The link over which a sum of these ranks takes what it takes here: its latency by a sum of nothing, its bandwidth by what one of many
    /// bytes takes longer than one of few; where it does not, by that of many alone.
    pub(crate) fn link(&self, members: &[usize], [few, many]: [u64; 2]) -> NetworkLink {
        let seconds = |bytes: u64| self.seconds(Operation::AllReduce(ReduceOp::Sum), bytes, members);
        let ranks = members.len() as f64;
        let (bytes, longer) = match seconds(many) - seconds(few) {
            longer if longer > 0.0 => (many - few, longer),
            // Something came between.
            _ => (many, seconds(many)),
        };
        // As `over_link` has it: of little a tree or a ring, of much a ring.
        let calls = 2.0 * (ranks - 1.0).min(ranks.log2().ceil());
        NetworkLink { latency: seconds(0) / calls, bandwidth: 2.0 * (ranks - 1.0) / ranks * bytes as f64 / longer }
    }

    /// Seconds of a call of a rank. A group that a layer made is taken to be the world: who is in it only the layer knows.
    pub(crate) fn seconds_of(&self, call: &Called, mesh: &Mesh, rank: usize) -> f64 {
        let over = if let Members::Other(_) = call.over { &Members::World } else { &call.over };
        self.seconds(call.operation, call.bytes(), &over.of(mesh, rank))
    }

    /// The link of one of the groups that leave a host at once, each with so many streams.
    fn between(
        &self,
        shape: GroupShape,
        host: usize,
        streams: usize,
        [inside, outside]: [NetworkLink; 2],
    ) -> NetworkLink {
        let groups = (self.on_host[host].max(1) as f64 / shape.ranks.div_ceil(shape.hosts) as f64).max(1.0);
        let bandwidth = inside.bandwidth.min(outside.bandwidth / (groups * streams as f64));
        NetworkLink { latency: outside.latency, bandwidth }
    }
}

fn nearest(calls: &[MeasuredCalls], kind: CallKind, shape: GroupShape) -> Option<&MeasuredCalls> {
    let far = |call: &&MeasuredCalls| {
        (call.shape.hosts.abs_diff(shape.hosts), call.shape.ranks.abs_diff(shape.ranks), call.shape.ranks)
    };
    calls.iter().filter(|call| call.kind == kind).min_by_key(far)
}

fn over_link(kind: CallKind, bytes: f64, ranks: usize, NetworkLink { latency, bandwidth }: NetworkLink) -> f64 {
    let (others, ranks) = ((ranks - 1) as f64, ranks as f64);
    let (part, whole) = (others / ranks * bytes / bandwidth, bytes / bandwidth);
    match kind {
        CallKind::AllReduce => {
            let (ring, tree) = (2.0 * (others * latency + part), 2.0 * (ranks.log2().ceil() * latency + whole));
            ring.min(tree)
        }
        CallKind::AllGather => others * (latency + whole),
        CallKind::Broadcast => others * latency + whole,
        CallKind::ReduceScatter | CallKind::AllToAll => others * latency + part,
        CallKind::Send => latency + whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);
    const INSIDE: NetworkLink = NetworkLink { latency: 1e-5, bandwidth: 1e11 };
    const OUTSIDE: NetworkLink = NetworkLink { latency: 1e-4, bandwidth: 1e10 };

    #[test]
    fn a_link_is_found_again_by_what_sums_take_over_it() {
        for ranks in [2, 3, 8] {
            let network = Network::of_links(vec![0; ranks], INSIDE, INSIDE);
            let found = network.link(&(0..ranks).collect::<Vec<_>>(), [1 << 28, 1 << 30]);
            assert!((found.latency / INSIDE.latency - 1.0).abs() < 1e-9, "{ranks}: {found:?}");
            assert!((found.bandwidth / INSIDE.bandwidth - 1.0).abs() < 1e-6, "{ranks}: {found:?}");
        }
    }

    /// Two hosts of four.
    fn links() -> Network {
        Network::of_links((0..8).map(|rank| rank / 4).collect(), INSIDE, OUTSIDE)
    }

    #[test]
    fn groups_that_leave_a_host_at_once_share_its_cards() {
        let network = links();
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(network.shape(&[0, 4]), GroupShape { ranks: 2, hosts: 2 });
        // One group of all has the cards for itself, four groups of two a quarter each.
        let bytes = 1 << 30;
        let of_all = network.seconds(SUM, bytes, &all);
        let of_two = network.seconds(SUM, bytes, &[0, 4]);
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.02, "{found} {expected}");
        near(of_all, 2.0 * 7.0 / 8.0 * bytes as f64 / 1e10);
        near(of_two, bytes as f64 / 2.5e9);
        near(network.seconds(SUM, bytes, &[0, 1]), bytes as f64 / 1e11);
        assert_eq!(network.seconds(SUM, bytes, &[3]), 0.0);
        // Four ranks of a host have three eighths and an eighth of theirs for each other, and a half for the other host.
        let exchanged = network.seconds(Operation::AllToAll, bytes, &all);
        near(exchanged, 4.0 * 7.0 / 8.0 * bytes as f64 / 1e10);
    }

    #[test]
    fn a_small_sum_goes_through_a_tree_and_a_part_costs_less_than_the_whole() {
        let network = Network::of_links(vec![0; 16], INSIDE, OUTSIDE);
        let all: Vec<usize> = (0..16).collect();
        assert!((network.seconds(SUM, 4, &all) - 8e-5).abs() < 1e-9);
        let scattered = network.seconds(Operation::ReduceScatter(ReduceOp::Sum), 1 << 30, &all);
        let summed = network.seconds(SUM, 1 << 30, &all);
        assert!((summed / scattered - 2.0).abs() < 1e-9, "{summed} {scattered}");
        // Each gives a sixteenth of what is gathered.
        let gathered = network.seconds(Operation::AllGather, 1 << 26, &all);
        assert!((gathered / scattered - 1.0).abs() < 1e-9, "{gathered} {scattered}");
    }

    #[test]
    fn the_nearest_shape_that_was_measured_counts() {
        let call = |ranks, hosts, seconds| MeasuredCalls {
            kind: CallKind::AllReduce,
            shape: GroupShape { ranks, hosts },
            seconds: Line::through([(0.0, seconds)]),
        };
        let hosts = (0..8).map(|rank| rank / 4).collect();
        let network = Network::measured(hosts, vec![call(2, 1, 1.0), call(4, 1, 2.0), call(8, 2, 3.0)]);
        let seconds = |members: &[usize]| network.seconds(SUM, 64, members);
        assert_eq!([seconds(&[0, 1]), seconds(&[0, 1, 2]), seconds(&[0, 4])], [1.0, 1.0, 3.0]);
        // Nothing of the kind was measured.
        assert_eq!(network.seconds(Operation::AllToAll, 64, &[0, 1]), 0.0);
    }
}
