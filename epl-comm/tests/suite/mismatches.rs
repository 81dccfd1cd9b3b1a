//! Calls that do not fit together, and arguments that fit nothing.

use burn::tensor::{DType, Device, Int, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result};

use crate::watchdog::within_seconds;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F32))
}

/// A call of one member; its result does not matter.
type Call = fn(&ProcessGroup) -> Result<()>;

fn sum_of_4(group: &ProcessGroup) -> Result<()> {
    group.all_reduce(zeros([4]), ReduceOp::Sum).map(drop)
}

/// All ranks call `usual`, but `odd` calls the other, after `before` calls that fit. Checks what each is told.
fn mismatch(ranks: usize, odd: usize, before: usize, usual: Call, unusual: Call, texts: [&str; 2]) {
    let texts = texts.map(str::to_string);
    within_seconds(20, move || {
        let errors = run_ranks(ranks, |world| {
            let group = world.split("g", 0, 0).unwrap();
            (0..before).for_each(|_| sum_of_4(&group).unwrap());
            let call = if group.rank() == odd { unusual } else { usual };
            let error = call(&group).unwrap_err();
            assert!(matches!(world.barrier(), Err(Error::Peer { .. })), "the world is over");
            error
        });
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        let Error::Mismatch { group, sequence, first, first_call, second, second_call } = &errors[0] else {
            panic!("{:?}", errors[0])
        };
        assert_eq!((group.as_str(), *sequence), ("g", before as u64 + 1));
        // Everybody is compared with member 0.
        assert_eq!((*first, *second), (Rank(0), Rank(odd.max(1))));
        let calls = if odd == 0 { [second_call, first_call] } else { [first_call, second_call] };
        assert_eq!(calls, [&texts[0], &texts[1]]);
    });
}

#[test]
fn different_operations() {
    let max: Call = |group| group.all_reduce(zeros([4]), ReduceOp::Max).map(drop);
    mismatch(2, 1, 0, sum_of_4, max, ["all_reduce(sum) of f32 [4]", "all_reduce(max) of f32 [4]"]);
    mismatch(3, 2, 3, sum_of_4, ProcessGroup::barrier, ["all_reduce(sum) of f32 [4]", "barrier"]);
    let gather: Call = |group| group.all_gather(zeros([4]), 0).map(drop);
    mismatch(
        4,
        0,
        1,
        gather,
        sum_of_4,
        ["all_gather of f32 [4] along dim 0, receiving [4, 4, 4, 4]", "all_reduce(sum) of f32 [4]"],
    );
    let root: Call = |group| group.broadcast(zeros([4]), 1).map(drop);
    let other_root: Call = |group| group.broadcast(zeros([4]), 0).map(drop);
    mismatch(2, 1, 0, root, other_root, ["broadcast(root 1) of f32 [4]", "broadcast(root 0) of f32 [4]"]);
}

#[test]
fn different_element_types() {
    let f64s: Call = |group| group.all_reduce(zeros([4]).cast(DType::F64), ReduceOp::Sum).map(drop);
    mismatch(3, 1, 2, sum_of_4, f64s, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of f64 [4]"]);
    let ints: Call =
        |group| group.all_reduce(Tensor::<1, Int>::zeros([4], (&Device::flex(), DType::I64)), ReduceOp::Sum).map(drop);
    mismatch(2, 0, 0, sum_of_4, ints, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of i64 [4]"]);
}

#[test]
fn different_shapes() {
    let more: Call = |group| group.all_reduce(zeros([5]), ReduceOp::Sum).map(drop);
    mismatch(2, 1, 0, sum_of_4, more, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of f32 [5]"]);
    let square: Call = |group| group.all_reduce(zeros([2, 2]), ReduceOp::Sum).map(drop);
    mismatch(3, 2, 0, sum_of_4, square, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of f32 [2, 2]"]);
    let gather: Call = |group| group.all_gather(zeros([2, 3]), 0).map(drop);
    let longer: Call = |group| group.all_gather(zeros([3, 3]), 0).map(drop);
    let texts = [
        "all_gather of f32 [2, 3] along dim 0, receiving [6, 6]",
        "all_gather of f32 [3, 3] along dim 0, receiving [9, 9]",
    ];
    mismatch(2, 1, 0, gather, longer, texts);
    let transposed: Call = |group| group.all_gather(zeros([3, 2]), 0).map(drop);
    let texts = [
        "all_gather of f32 [2, 3] along dim 0, receiving [6, 6]",
        "all_gather of f32 [3, 2] along dim 0, receiving [6, 6]",
    ];
    mismatch(2, 1, 0, gather, transposed, texts);
    let other_dim: Call = |group| group.reduce_scatter(zeros([4, 4]), 1, ReduceOp::Sum).map(drop);
    let scatter: Call = |group| group.reduce_scatter(zeros([4, 4]), 0, ReduceOp::Sum).map(drop);
    let texts = [
        "reduce_scatter(sum) of f32 [4, 4] along dim 0, sending [8, 8]",
        "reduce_scatter(sum) of f32 [4, 4] along dim 1, sending [2, 2] in 4 rows",
    ];
    mismatch(2, 1, 0, scatter, other_dim, texts);
}

#[test]
fn rows_that_a_peer_does_not_expect() {
    within_seconds(20, || {
        let errors = run_ranks(3, |group| {
            // Rank 1 sends 2 rows to rank 2, which expects 1.
            let send = if group.rank() == 1 { [1, 1, 2] } else { [1, 1, 1] };
            group.all_to_all_uneven(zeros([send.iter().sum(), 5]), &send, &[1, 1, 1]).unwrap_err()
        });
        let Error::Mismatch { first, second, first_call, second_call, .. } = &errors[0] else { panic!("{errors:?}") };
        assert_eq!((*first, *second), (Rank(1), Rank(2)));
        assert_eq!(first_call, "all_to_all of f32 [4, 5], sending [5, 5, 10], receiving [5, 5, 5]");
        assert_eq!(second_call, "all_to_all of f32 [3, 5], sending [5, 5, 5], receiving [5, 5, 5]");
        assert!(errors.iter().all(|error| *error == errors[0]));
    });
}

#[test]
fn names_of_a_group_to_be() {
    within_seconds(20, || {
        let errors = run_ranks(2, |group| {
            let name = if group.rank() == 0 { "data" } else { "tensor" };
            group.split(name, 0, 0).unwrap_err()
        });
        for error in errors {
            assert!(matches!(error, Error::Mismatch { first: Rank(0), second: Rank(1), .. }), "{error}");
        }
    });
}

#[test]
fn a_mismatch_among_started_calls_comes_out_at_wait_and_ends_the_world() {
    within_seconds(20, || {
        run_ranks(2, |group| {
            let shape = [4 + group.rank()];
            let pending = group.start_all_reduce(zeros(shape), ReduceOp::Sum).unwrap();
            let after = group.start_all_reduce(zeros([4]), ReduceOp::Sum).unwrap();
            assert!(matches!(pending.wait(), Err(Error::Mismatch { .. })));
            assert!(matches!(after.wait(), Err(Error::Peer { .. })));
        });
    });
}

/// Refused on one rank alone; nothing is sent, and the world goes on.
#[test]
fn arguments_that_fit_nothing() {
    run_ranks(2, |group| {
        if group.rank() == 1 {
            let invalid = |result: Result<Tensor<2>>, part: &str| match result {
                Err(Error::Invalid { message }) => assert!(message.contains(part), "{message}"),
                other => panic!("{other:?}"),
            };
            let x = || zeros([3, 4]);
            invalid(group.all_gather(x(), 2), "along dim 2 of a tensor of 2 dims");
            invalid(group.all_gather_uneven(x(), 0, &[3]), "1 sizes in a group of 2");
            invalid(group.all_gather_uneven(x(), 0, &[3, 4]), "member 1 holds 3 instead of 4");
            invalid(
                group.reduce_scatter(x(), 0, ReduceOp::Sum),
                "an extent of 3 does not divide evenly over 2 members",
            );
            invalid(
                group.reduce_scatter_uneven(x(), 0, &[1, 1], ReduceOp::Sum),
                "make 2, but the tensor's extent is 3",
            );
            invalid(group.all_to_all(x(), 0, 1), "give the sizes (all_to_all_uneven)");
            invalid(group.all_to_all(x(), 1, 3), "along dim 3");
            invalid(group.all_to_all_uneven(x(), &[2, 2], &[1, 1]), "make 4, but the tensor's extent is 3");
            invalid(group.broadcast(x(), 2), "member 2, but the group has 2");
            let tracked = Tensor::<2>::ones([3, 4], &Device::flex().autodiff()).require_grad();
            invalid(group.all_reduce(tracked.clone(), ReduceOp::Sum), "tracked");
            assert!(matches!(group.start_all_reduce(tracked * 2.0, ReduceOp::Sum), Err(Error::Invalid { .. })));
            assert!(matches!(group.all_to_all_counts(&[1, 2, 3]), Err(Error::Invalid { .. })));
        }
        sum_of_4(&group).unwrap();
    });
}
