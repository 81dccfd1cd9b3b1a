//! The members of one communicator, and what they have put on their streams.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{self, Group};
use crate::reduce::reduce;
use crate::switches::{count, is_on};

pub const IN_PROGRESS: i32 = 7;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    AllReduce,
    ReduceScatter,
    Reduce(usize),
    AllGather,
    Broadcast(usize),
    Send(usize),
    Receive(usize),
}

/// One call of one member.
#[derive(Clone, Debug)]
pub struct Op {
    pub function: &'static str,
    pub kind: Kind,
    pub from: usize,
    pub to: usize,
    /// Bytes.
    pub len: usize,
    pub element: i32,
    pub op: i32,
    pub stream: usize,
    /// How many calls of its group are not over.
    pub left: Arc<AtomicUsize>,
}

impl Op {
    fn done(&self) {
        self.left.fetch_sub(1, Ordering::Release);
    }

    fn read(&self, start: usize, len: usize) -> Vec<u8> {
        // SAFETY: the caller of NCCL has that many bytes there until the stream is idle.
        unsafe { std::slice::from_raw_parts((self.from + start) as *const u8, len) }.to_vec()
    }

    fn write(&self, start: usize, bytes: &[u8]) {
        // SAFETY: as above, to be written.
        unsafe { std::ptr::copy(bytes.as_ptr(), (self.to + start) as *mut u8, bytes.len()) };
    }
}

#[derive(Default)]
pub struct Clique {
    pub size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    joined: usize,
    /// What has not met its counterparts: every rank's collectives, in their order, and its sends and receives by peer.
    collectives: HashMap<usize, VecDeque<Op>>,
    between: HashMap<(usize, usize), (VecDeque<Op>, VecDeque<Op>)>,
    splits: HashMap<usize, Split>,
    /// Calls that never end, by member.
    hung: Vec<(usize, Op)>,
    /// Who has aborted.
    left: HashSet<usize>,
    /// Where the members are.
    devices: HashMap<usize, usize>,
    /// A fault that all members find.
    fault: i32,
}

struct Split {
    color: i32,
    key: i32,
    slot: usize,
}

/// One member's end.
pub struct Comm {
    pub clique: Arc<Clique>,
    pub rank: usize,
    /// Groups of calls that have come back, but not gone out.
    pub begun: Mutex<Vec<Vec<Op>>>,
    /// What comes to light later.
    pub fault: AtomicI32,
    pub is_finalized: AtomicI32,
}

impl Comm {
    pub fn make(clique: Arc<Clique>, rank: usize) -> *mut Self {
        count("made");
        clique.lock().devices.entry(rank).or_insert(device::current());
        let (begun, fault, is_finalized) = Default::default();
        Box::into_raw(Box::new(Self { clique, rank, begun, fault, is_finalized }))
    }

    /// How it is; calls that have begun go out, and are in progress for one answer more.
    pub fn status(&self) -> i32 {
        if device::has_deadlock() {
            return 3;
        }
        let fault = self.fault.load(Ordering::Acquire).max(self.clique.lock().fault);
        if fault != 0 {
            return fault;
        }
        let begun = std::mem::take(&mut *self.begun.lock().unwrap());
        if !begun.is_empty() {
            for ops in begun {
                let (stream, left) = (ops[0].stream - 1, ops[0].left.clone());
                let all = |op: Op| {
                    let fails = is_on("async", op.function, self.rank);
                    if fails {
                        self.fault.store(6, Ordering::Release);
                    }
                    let hangs = fails || is_on("hang", op.function, self.rank);
                    (self.clique.clone(), self.rank, op, hangs)
                };
                let ops = ops.into_iter().map(all).collect();
                device::put_group(stream, Group { ops, left, is_resident: false });
            }
            return IN_PROGRESS;
        }
        let state = self.clique.lock();
        let is_ready = state.joined == self.clique.size && !state.splits.contains_key(&self.rank);
        if is_ready { 0 } else { IN_PROGRESS }
    }

    /// Whether a new call may begin.
    pub fn is_ready(&self) -> bool {
        let state = self.clique.lock();
        state.joined == self.clique.size && !state.splits.contains_key(&self.rank) && self.begun.lock().unwrap().is_empty()
    }
}

impl Clique {
    pub fn of(size: usize) -> Arc<Self> {
        Arc::new(Self { size, ..Self::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn join(&self) {
        self.lock().joined += 1;
    }

    /// A call of a member that runs on its device now.
    pub fn post(&self, rank: usize, op: Op, hangs: bool) {
        let mut state = self.lock();
        if state.left.contains(&rank) {
            op.done();
            return;
        }
        if hangs {
            state.hung.push((rank, op));
            return;
        }
        match op.kind {
            Kind::Send(to) => state.between.entry((rank, to)).or_default().0.push_back(op),
            Kind::Receive(from) => state.between.entry((from, rank)).or_default().1.push_back(op),
            _ => state.collectives.entry(rank).or_default().push_back(op),
        }
        for (sent, received) in state.between.values_mut() {
            while let (Some(from), Some(to)) = (sent.front(), received.front()) {
                if from.len != to.len {
                    count("misused");
                    return;
                }
                to.write(0, &from.read(0, from.len));
                from.done();
                to.done();
                sent.pop_front();
                received.pop_front();
            }
        }
        while state.collectives.len() == self.size && state.collectives.values().all(|ops| !ops.is_empty()) {
            let take = |rank| state.collectives.get_mut(&rank).and_then(VecDeque::pop_front).unwrap();
            let ops: Vec<Op> = (0..self.size).map(take).collect();
            if !run(&ops) {
                count("misused");
                state.fault = 5;
            }
            ops.iter().for_each(Op::done);
        }
    }

    /// Ends what a member has under way.
    pub fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.left.insert(rank);
        // Its slot is written no more.
        state.splits.remove(&rank);
        let left = state.collectives.remove(&rank).into_iter().flatten();
        left.for_each(|op| op.done());
        state.hung.iter().filter(|(member, _)| *member == rank).for_each(|(_, op)| op.done());
        state.hung.retain(|(member, _)| *member != rank);
        for ((from, to), (sent, received)) in &mut state.between {
            let (mut sent, mut received) = (Some(sent).filter(|_| *from == rank), Some(received).filter(|_| *to == rank));
            for ops in [&mut sent, &mut received].into_iter().flatten() {
                ops.drain(..).for_each(|op| op.done());
            }
        }
    }

    /// The devices of the members whose counterpart to a member's call does not run.
    pub fn missing(&self, rank: usize, op: &Op) -> Vec<usize> {
        let members = self.missing_members(rank, op);
        let state = self.lock();
        members.into_iter().filter_map(|member| state.devices.get(&member).copied()).collect()
    }

    /// The members whose counterpart to a member's call does not run.
    pub fn missing_members(&self, rank: usize, op: &Op) -> Vec<usize> {
        let state = self.lock();
        let runs_not = |member: &usize| state.collectives.get(member).is_none_or(VecDeque::is_empty);
        let is_between = |key: &(usize, usize)| state.between.get(key).is_some_and(|(a, b)| !a.is_empty() || !b.is_empty());
        match op.kind {
            Kind::Send(to) => is_between(&(rank, to)).then_some(to).into_iter().collect(),
            Kind::Receive(from) => is_between(&(from, rank)).then_some(from).into_iter().collect(),
            _ => (0..self.size).filter(runs_not).collect(),
        }
    }

    /// A member asks to be divided; the last one makes the new communicators.
    pub fn split(&self, rank: usize, color: i32, key: i32, slot: usize) {
        let mut state = self.lock();
        state.splits.insert(rank, Split { color, key, slot });
        if state.splits.len() < self.size {
            return;
        }
        let mut wishes: Vec<(i32, i32, usize, usize)> =
            state.splits.drain().map(|(rank, split)| (split.color, split.key, rank, split.slot)).collect();
        wishes.sort_unstable();
        for group in wishes.chunk_by(|a, b| a.0 == b.0).filter(|group| group[0].0 >= 0) {
            let clique = Self::of(group.len());
            for (rank, (_, _, old, slot)) in group.iter().enumerate() {
                clique.join();
                if let Some(device) = state.devices.get(old) {
                    clique.lock().devices.insert(rank, *device);
                }
                // SAFETY: the caller of NCCL keeps the slot until its communicator says that the call is over.
                unsafe { *(*slot as *mut *mut Comm) = Comm::make(clique.clone(), rank) };
            }
        }
    }
}

/// Runs one collective of all members; false when their calls do not fit together.
fn run(ops: &[Op]) -> bool {
    let first = &ops[0];
    let fits = |op: &Op| (op.kind, op.len, op.element, op.op) == (first.kind, first.len, first.element, first.op);
    if !ops.iter().all(fits) {
        return false;
    }
    let len = first.len;
    match first.kind {
        Kind::AllGather | Kind::Broadcast(_) => {
            let whole: Vec<u8> = match first.kind {
                Kind::Broadcast(root) => ops[root].read(0, len),
                _ => ops.iter().flat_map(|op| op.read(0, len)).collect(),
            };
            ops.iter().for_each(|op| op.write(0, &whole));
        }
        _ => {
            let scattered = first.kind == Kind::ReduceScatter;
            let total = if scattered { len * ops.len() } else { len };
            let parts: Vec<Vec<u8>> = ops.iter().map(|op| op.read(0, total)).collect();
            let Some(reduced) = reduce(&parts, first.element, first.op) else { return false };
            for (rank, op) in ops.iter().enumerate() {
                match first.kind {
                    Kind::Reduce(root) if root != rank => {}
                    Kind::ReduceScatter => op.write(0, &reduced[rank * len..][..len]),
                    _ => op.write(0, &reduced),
                }
            }
        }
    }
    true
}
