//! Random sequences of collectives, some started, against the model.

use burn::tensor::{DType, Device, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{Pending, ProcessGroup, ReduceOp};
use proptest::prelude::*;

use crate::model::Array;

#[derive(Clone, Debug)]
enum Step {
    AllReduce { len: usize },
    AllGather { rows: usize, sizes: Vec<usize> },
    ReduceScatter { rows: usize, sizes: Vec<usize> },
    AllToAll { counts: Vec<usize> },
    Broadcast { len: usize, root: usize },
}

#[derive(Clone, Debug)]
struct Program {
    ranks: usize,
    /// A step, whether it is started, and whether it is run by pairs of ranks instead of all.
    steps: Vec<(Step, bool, bool)>,
}

const MOST: usize = 4;

fn program() -> impl Strategy<Value = Program> {
    let sizes = || prop::collection::vec(0..6usize, MOST);
    let step = prop_oneof![
        (0..3000usize).prop_map(|len| Step::AllReduce { len }),
        (1..4usize, sizes()).prop_map(|(rows, sizes)| Step::AllGather { rows, sizes }),
        (1..4usize, sizes()).prop_map(|(rows, sizes)| Step::ReduceScatter { rows, sizes }),
        prop::collection::vec(0..5usize, MOST * MOST).prop_map(|counts| Step::AllToAll { counts }),
        (0..200usize, 0..MOST).prop_map(|(len, root)| Step::Broadcast { len, root }),
    ];
    let steps = prop::collection::vec((step, any::<bool>(), any::<bool>()), 1..12);
    (2..=MOST, steps).prop_map(|(ranks, steps)| Program { ranks, steps })
}

/// A result, now or later.
enum Outcome {
    Now(Tensor<2>),
    Later(Pending<Tensor<2>>),
}

/// Runs a step; gives the result and what it must be.
fn run(group: &ProcessGroup, index: usize, step: &Step, started: bool) -> (Outcome, Array) {
    let (p, me) = (group.size(), group.rank());
    let all = |shape: &dyn Fn(usize) -> [usize; 2]| -> Vec<Array> {
        (0..p).map(|member| Array::sample(10 * index + group.global(member).0, &shape(member))).collect()
    };
    let tensor = |array: &Array| array.tensor::<2, _>(DType::F64, &Device::flex());
    let either = |now: &dyn Fn() -> epl_comm::Result<Tensor<2>>,
                  later: &dyn Fn() -> epl_comm::Result<Pending<Tensor<2>>>| {
        if started { Outcome::Later(later().unwrap()) } else { Outcome::Now(now().unwrap()) }
    };
    match step {
        Step::AllReduce { len } => {
            let inputs = all(&|_| [1, *len]);
            let x = || tensor(&inputs[me]);
            let result =
                either(&|| group.all_reduce(x(), ReduceOp::Sum), &|| group.start_all_reduce(x(), ReduceOp::Sum));
            (result, Array::reduce(&inputs, ReduceOp::Sum))
        }
        Step::AllGather { rows, sizes } => {
            let inputs = all(&|member| [*rows, sizes[member]]);
            let x = || tensor(&inputs[me]);
            let result = either(&|| group.all_gather_uneven(x(), 1, &sizes[..p]), &|| {
                group.start_all_gather_uneven(x(), 1, &sizes[..p])
            });
            (result, Array::concat(&inputs, 1))
        }
        Step::ReduceScatter { rows, sizes } => {
            let sizes = &sizes[..p];
            let inputs = all(&|_| [*rows, sizes.iter().sum()]);
            let x = || tensor(&inputs[me]);
            let op = ReduceOp::Max;
            let result = either(&|| group.reduce_scatter_uneven(x(), 1, sizes, op), &|| {
                group.start_reduce_scatter_uneven(x(), 1, sizes, op)
            });
            (result, Array::reduce(&inputs, op).part(1, sizes[..me].iter().sum(), sizes[me]))
        }
        Step::AllToAll { counts } => {
            let send = |from: usize| -> Vec<usize> { (0..p).map(|to| counts[from * MOST + to]).collect() };
            let receive: Vec<usize> = (0..p).map(|from| counts[from * MOST + me]).collect();
            let inputs = all(&|member| [send(member).iter().sum(), 3]);
            let x = || tensor(&inputs[me]);
            let result = either(&|| group.all_to_all_uneven(x(), &send(me), &receive), &|| {
                group.start_all_to_all_uneven(x(), &send(me), &receive)
            });
            let piece = |from: usize| inputs[from].part(0, send(from)[..me].iter().sum(), receive[from]);
            (result, Array::concat(&(0..p).map(piece).collect::<Vec<_>>(), 0))
        }
        Step::Broadcast { len, root } => {
            let inputs = all(&|_| [1, *len]);
            let root = root % p;
            let x = || tensor(&inputs[me]);
            let result = either(&|| group.broadcast(x(), root), &|| group.start_broadcast(x(), root));
            (result, inputs[root].clone())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn give_what_the_model_gives(program in program()) {
        run_ranks(program.ranks, |world| {
            let pairs = world.split("pairs", world.rank() / 2, world.rank()).unwrap();
            let mut results = Vec::new();
            for (index, (step, started, paired)) in program.steps.iter().enumerate() {
                let group = if *paired { &pairs } else { &world };
                results.push(run(group, index, step, *started));
            }
            for (index, (result, expected)) in results.into_iter().enumerate() {
                let result = match result {
                    Outcome::Now(tensor) => tensor,
                    Outcome::Later(pending) => pending.wait().unwrap(),
                };
                assert_eq!(Array::of(result), expected, "step {index}: {:?}", program.steps[index]);
            }
        });
    }
}
