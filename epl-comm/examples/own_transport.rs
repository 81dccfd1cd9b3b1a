//! A transport of one's own: ranks that meet at a table behind a lock.
//!
//! Slow and simple: numbers travel as f64, and results are made on the host. But calls are compared, nobody waits for a
//! rank that has failed, and everything above a transport works on it, from started collectives to gradients.
//!
//! ```text
//! cargo run -p epl-comm --example own_transport
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use burn::tensor::{Device, Tensor};
use epl_comm::{
    Buffer, Call, Error, Operation, ProcessGroup, Rank, ReduceOp, Result, Transport, catch, differentiable,
};

/// What all ranks share.
#[derive(Debug, Default)]
struct Table {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By the group and the number of the call: who has brought what, and how many have taken it all away.
    calls: BTreeMap<(String, u64), (BTreeMap<usize, Post>, usize)>,
    failure: Option<Error>,
}

type Post = (Call, Vec<f64>);

/// One rank's place in one group.
#[derive(Debug)]
struct Seat {
    table: Arc<Table>,
    name: String,
    members: Vec<Rank>,
    member: usize,
    calls: AtomicU64,
}

impl Seat {
    fn new(table: Arc<Table>, name: String, members: Vec<Rank>, member: usize) -> Self {
        Self { table, name, members, member, calls: AtomicU64::new(0) }
    }

    /// Brings a post, waits until all have come, and gives all posts; ends the world when they do not fit together.
    fn meet(&self, call: &Call, values: Vec<f64>) -> Result<Vec<Post>> {
        let posts = self.gather(call, values)?;
        let fits = |a: usize, b: usize| a == b || posts[a].0.agrees(a, &posts[b].0, b);
        let mut pairs = (0..posts.len()).flat_map(|a| (0..posts.len()).map(move |b| (a, b)));
        let Some((first, second)) = pairs.find(|(a, b)| !fits(*a, *b)) else { return Ok(posts) };
        let error = Error::Mismatch {
            group: self.name.clone(),
            sequence: call.sequence,
            first: self.members[first],
            first_call: posts[first].0.to_string(),
            second: self.members[second],
            second_call: posts[second].0.to_string(),
            second_is_odd: false,
        };
        self.abort(&error);
        Err(error)
    }

    fn gather(&self, call: &Call, values: Vec<f64>) -> Result<Vec<Post>> {
        // Groups of the same name that are split off in the same call differ in their members.
        let key = (format!("{} {:?}", self.name, self.members), call.sequence);
        let mut state = self.table.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.calls.entry(key.clone()).or_default().0.insert(self.member, (call.clone(), values));
        self.table.changed.notify_all();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let (posts, taken) = state.calls.entry(key.clone()).or_default();
            if posts.len() == self.members.len() {
                let all = posts.values().cloned().collect();
                *taken += 1;
                if *taken == self.members.len() {
                    state.calls.remove(&key);
                }
                return Ok(all);
            }
            state = self.table.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Another group of the same ranks or fewer.
    fn other(&self, name: String, members: Vec<usize>) -> Arc<dyn Transport> {
        let me = members.iter().position(|member| *member == self.member).unwrap_or_default();
        let members = members.into_iter().map(|member| self.members[member]).collect();
        Arc::new(Self::new(self.table.clone(), name, members, me))
    }
}

impl Transport for Seat {
    fn name(&self) -> &str {
        &self.name
    }

    fn member(&self) -> usize {
        self.member
    }

    fn members(&self) -> &[Rank] {
        &self.members
    }

    fn reserve(&self, _operation: Operation) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn reserve_stage(&self, whole: Operation, _stage: Operation) -> u64 {
        self.reserve(whole)
    }

    fn moves_rows(&self) -> bool {
        false
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        let dtype = buffer.dtype();
        let posts = self.meet(&call, buffer.into_values::<f64>())?;
        let data = burn::tensor::TensorData::from(result(&call, &posts, self.member).as_slice());
        let flex = burn::backend::flex::FlexTensor::from_data(data.convert_dtype(dtype));
        Ok(Buffer::from_flex(flex))
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let wish = vec![color as f64, key as f64];
        let shape = burn::tensor::Shape::new([wish.len()]);
        let new = Call::new(Operation::Split, burn::tensor::DType::F64, shape);
        let call = Call { sequence, name: name.to_string(), ..new };
        let wishes: Vec<Vec<f64>> = self.meet(&call, wish)?.into_iter().map(|(_, wish)| wish).collect();
        let mut chosen: Vec<usize> = (0..wishes.len()).filter(|member| wishes[*member][0] == color as f64).collect();
        chosen.sort_by_key(|member| (wishes[*member][1] as usize, *member));
        Ok(self.other(format!("{} / {name} {sequence}", self.name), chosen))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        Ok(self.other(format!("{}, {from} to {to}", self.name), vec![from, to]))
    }

    fn lanes(&self) -> usize {
        usize::MAX
    }

    fn warmed_up(&self) {}

    /// Nothing is kept.
    fn trim(&self) {}

    /// Circles of waits are not looked for.
    fn sleep(&self, _operation: Operation, _sequence: u64, sleep: &mut dyn FnMut()) {
        sleep();
    }

    fn abort(&self, cause: &Error) {
        self.table.state.lock().unwrap_or_else(PoisonError::into_inner).failure.get_or_insert(cause.clone());
        self.table.changed.notify_all();
    }
}

/// What member `me` gets.
fn result(call: &Call, posts: &[Post], me: usize) -> Vec<f64> {
    let own = &posts[me].1;
    let piece = |values: &[f64], call: &Call| values[call.piece_for(me)].to_vec();
    match call.operation {
        Operation::AllReduce(op) => reduced(posts, op),
        Operation::Reduce { op, root } if root == me => reduced(posts, op),
        Operation::ReduceScatter(op) => piece(&reduced(posts, op), call),
        Operation::Scatter { root } => piece(&posts[root].1, call),
        Operation::Gather { root } if root != me => own.clone(),
        Operation::AllGather | Operation::Gather { .. } => {
            posts.iter().flat_map(|(_, values)| values.clone()).collect()
        }
        Operation::AllToAll => posts.iter().flat_map(|(theirs, values)| piece(values, theirs)).collect(),
        Operation::Broadcast { root } => posts[root].1.clone(),
        Operation::Receive => posts[0].1.clone(),
        _ => own.clone(),
    }
}

/// In the order of the members, so that all get the same bits.
fn reduced(posts: &[Post], op: ReduceOp) -> Vec<f64> {
    let combine = |a: f64, b: f64| match op {
        ReduceOp::Sum | ReduceOp::Mean => a + b,
        ReduceOp::Product => a * b,
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
    };
    let column = |index: usize| posts.iter().map(move |(_, values)| values[index]).reduce(combine).unwrap_or_default();
    let divide = if op == ReduceOp::Mean { posts.len() as f64 } else { 1.0 };
    (0..posts[0].1.len()).map(|index| column(index) / divide).collect()
}

/// Runs `f` on every rank. One that fails or panics releases the others.
fn launch(ranks: usize, f: impl Fn(ProcessGroup) -> Result<()> + Sync) -> Vec<Result<()>> {
    let table = Arc::new(Table::default());
    let rank = |rank: usize| {
        let seat = Seat::new(table.clone(), "world".to_string(), (0..ranks).map(Rank).collect(), rank);
        let group = ProcessGroup::new(Arc::new(seat));
        let ended = catch(|| f(group.clone())).and_then(|result| result);
        ended.inspect_err(|error| group.abort(error))
    };
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..ranks).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("what a rank unwinds with is caught")).collect()
    })
}

/// Some of everything.
fn exercise(group: ProcessGroup) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let x = Tensor::<1>::full([ranks], rank as f32 + 1.0, &Device::flex().autodiff());
    assert_eq!(values(group.all_reduce(x.clone(), ReduceOp::Sum)?), [6.0; 3]);
    assert_eq!(values(group.start_all_gather(x.clone(), 0)?.wait()?), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]);
    assert_eq!(values(group.all_to_all(x.clone(), 0, 0)?), [1.0, 2.0, 3.0]);
    let last = (rank + ranks - 1) % ranks;
    let sent = group.start_send(x.clone(), (rank + 1) % ranks)?;
    assert_eq!(values(group.receive(x.clone(), last)?), [last as f64 + 1.0; 3]);
    sent.wait()?;
    let pair = group.split("odd and even", rank % 2, rank)?;
    assert_eq!(pair.size(), [2, 1, 2][rank]);
    pair.barrier()?;
    let x = x.require_grad();
    let gradients = differentiable::all_reduce(x.clone(), &group).powi_scalar(2).sum().backward();
    // Of (a + b + c)² on every rank, summed over all ranks.
    assert_eq!(x.grad(&gradients).map(values), Some(vec![36.0; 3]));
    println!("rank {rank}: all is well");
    Ok(())
}

fn main() {
    assert!(launch(3, exercise).iter().all(Result::is_ok));
    let failed = launch(3, |group| if group.rank() == 1 { panic!("no more") } else { group.barrier() });
    assert!(failed.iter().all(|ended| matches!(ended, Err(Error::Panic { .. }))), "{failed:?}");
    let mismatched = launch(2, |group| {
        let x = Tensor::<1>::ones([2 + group.rank()], &Device::flex());
        group.all_reduce(x, ReduceOp::Sum).map(drop)
    });
    assert!(mismatched.iter().all(|ended| matches!(ended, Err(Error::Mismatch { .. }))), "{mismatched:?}");
}

fn values(x: Tensor<1>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

#[test]
fn all_is_well() {
    main();
}
