//! What one rank sends, by group, collective and link.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::operation::{Call, Operation};
use crate::rank::Rank;

/// A record of what a rank sends; a clone is the same record.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Arc<Mutex<TrafficRecord>>);

/// One group's calls of one collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The name of the group.
    pub group: String,
    /// How many ranks it has.
    pub ranks: usize,
    /// The collective.
    pub operation: String,
    /// How often it was called.
    pub calls: u64,
    /// The bytes of the tensors that this rank gave.
    pub given: u64,
    /// The bytes that this rank sends to others.
    pub sent: u64,
}

#[derive(Debug, Default)]
struct TrafficRecord {
    entries: BTreeMap<(String, String), Entry>,
    links: BTreeMap<(Rank, Rank), u64>,
}

impl Traffic {
    /// One entry for each group and collective, in the order of their names.
    pub fn entries(&self) -> Vec<Entry> {
        self.record().entries.values().cloned().collect()
    }

    /// The bytes that `from` sends to `to`; of ranks other than the recorded one, 0.
    pub fn link(&self, from: Rank, to: Rank) -> u64 {
        self.record().links.get(&(from, to)).copied().unwrap_or(0)
    }

    /// The bytes on every link that is used.
    pub fn links(&self) -> Vec<(Rank, Rank, u64)> {
        self.record().links.iter().map(|(&(from, to), &bytes)| (from, to, bytes)).collect()
    }

    /// All bytes that the rank sends.
    pub fn sent(&self) -> u64 {
        self.record().entries.values().map(|entry| entry.sent).sum()
    }

    /// Adds one call of member `me` of a group.
    pub(super) fn add(&self, group: &str, members: &[Rank], me: usize, call: &Call) {
        let links = links(call, members.len(), me);
        let mut record = self.record();
        let key = (group.to_string(), call.operation.to_string());
        let new = Entry { group: key.0.clone(), ranks: members.len(), operation: key.1.clone(), ..Entry::default() };
        let entry = record.entries.entry(key).or_insert(new);
        entry.calls += 1;
        entry.given += bytes(call);
        entry.sent += links.iter().map(|(_, bytes)| bytes).sum::<u64>();
        for (to, bytes) in links {
            *record.links.entry((members[me], members[to])).or_insert(0) += bytes;
        }
    }

    fn record(&self) -> MutexGuard<'_, TrafficRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of the tensor that a member gives.
fn bytes(call: &Call) -> u64 {
    (call.shape.num_elements() * call.dtype.size()) as u64
}

/// To which members, and how many bytes, member `me` of `size` sends in a call.
///
/// Reductions and all-gathers go around a ring, as NCCL's do for large tensors: of n parts, a member passes n − 1 to
/// the next one; a reduction that all need goes around twice. A broadcast goes along the ring from its root, a reduction
/// for one along the ring to it. All else goes straight.
fn links(call: &Call, size: usize, me: usize) -> Vec<(usize, u64)> {
    let (next, n) = ((me + 1) % size, size as u64);
    let element = call.dtype.size() as u64;
    let to = |member: usize, bytes: u64| if bytes == 0 { Vec::new() } else { vec![(member, bytes)] };
    let to_next = |bytes: u64| to(next, bytes);
    let others = |parts: &mut dyn Iterator<Item = u64>| {
        parts.enumerate().filter(|(to, bytes)| *to != me && *bytes > 0).collect::<Vec<_>>()
    };
    let of = |width: usize| (call.rows * width) as u64 * element;
    match call.operation {
        Operation::AllReduce(_) => to_next(2 * bytes(call) * (n - 1) / n),
        // All parts but the next member's own, which it has.
        Operation::AllGather => to_next(of(call.receive.total() - call.receive[next])),
        // All partial sums but the one that ends here.
        Operation::ReduceScatter(_) => to_next(of(call.send.total() - call.send[me])),
        Operation::AllToAll => others(&mut call.send.iter().map(|elements| elements as u64 * element)),
        Operation::Reduce { root, .. } if me == root => Vec::new(),
        Operation::Reduce { .. } => to_next(bytes(call)),
        Operation::Gather { root } if me == root => Vec::new(),
        Operation::Gather { root } => to(root, bytes(call)),
        Operation::Scatter { root } if me != root => Vec::new(),
        Operation::Scatter { .. } => others(&mut call.send.iter().map(of)),
        // Of a link, member 0 sends.
        Operation::Send => to_next(bytes(call)),
        // The last one of the ring has nobody left to pass it to.
        Operation::Broadcast { root } if next == root => Vec::new(),
        Operation::Broadcast { .. } => to_next(bytes(call)),
        Operation::Receive | Operation::Barrier | Operation::Split => Vec::new(),
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:24} {:>6}  {:24} {:>8} {:>16} {:>16}",
            "group", "ranks", "collective", "calls", "given", "sent"
        )?;
        for Entry { group, ranks, operation, calls, given, sent } in self.entries() {
            writeln!(f, "{group:24} {ranks:>6}  {operation:24} {calls:>8} {given:>16} {sent:>16}")?;
        }
        write!(f, "{} bytes sent on {} links", self.sent(), self.record().links.len())
    }
}
