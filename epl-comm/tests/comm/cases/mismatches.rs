//! Calls that do not fit together, and arguments that fit nothing.

use burn::tensor::{DType, Device, Int, Tensor};
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result};

use crate::cases::table::Need;
use crate::cases::world::World;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F32))
}

/// A call of one member; its result does not matter.
type Call = fn(&ProcessGroup) -> Result<()>;

fn sum_of_4(group: &ProcessGroup) -> Result<()> {
    group.all_reduce(zeros([4]), ReduceOp::Sum).map(drop)
}

/// All ranks call `usual`, but `odd` calls the other, after `before` calls that fit. Checks what each is told.
fn mismatch(world: &World, (ranks, odd, before): (usize, usize, u64), usual: Call, unusual: Call, texts: [&str; 2]) {
    // Of two, nobody can say who is wrong; of more, the odd one comes second.
    let is_known = world.kind.knows_the_odd_one(ranks);
    let is_in_stages = !world.has(Need::OneStage);
    let life = |world: ProcessGroup| {
        let begin = || {
            let group = world.split("g", 0, 0)?;
            (0..before).try_for_each(|_| sum_of_4(&group))?;
            Ok(group)
        };
        let group: Result<ProcessGroup> = begin();
        // Members of one host may have found that they differ while those of another still are in the call before.
        assert!(group.is_ok() || is_in_stages, "{group:?}");
        let call = |group: ProcessGroup| if group.rank() == odd { unusual(&group) } else { usual(&group) };
        let error = group.and_then(call).unwrap_err();
        match (world.barrier(), is_known) {
            // Nobody's fault in particular: the same error again.
            (Err(again), false) => assert_eq!(again, error),
            (Err(Error::Peer { rank, .. }), _) => assert_eq!(rank, Rank(odd)),
            (other, _) => panic!("the world is over, not {other:?}"),
        }
        error
    };
    for limit in world.kind.eager_limits() {
        world.ranks(ranks).eager_limit(*limit).fail(life, |errors, (culprit, _)| {
            assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
            let Error::Mismatch { group, sequence, first, first_call, second, second_call, second_is_odd } = &errors[0]
            else {
                panic!("{:?}", errors[0])
            };
            assert_eq!((group.as_str(), *sequence), ("g", before + 1));
            let expected = match is_known {
                false => (Rank(0), Rank(odd.max(1)), false),
                true => (Rank(usize::from(odd == 0)), Rank(odd), true),
            };
            assert_eq!((*first, *second, *second_is_odd), expected);
            assert_eq!(culprit, Rank(if is_known { odd } else { 0 }));
            assert_eq!(errors[0].to_string().contains(", against most others"), is_known);
            let calls = if *first == Rank(odd) { [second_call, first_call] } else { [first_call, second_call] };
            assert_eq!(calls, texts);
        });
    }
}

/// The one leaves early, the others would wait for it.
pub fn a_small_buffer_against_large_ones(world: &World) {
    let large: Call = |group| group.all_reduce(zeros([100_000]), ReduceOp::Sum).map(drop);
    let texts = ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of f32 [100000]"];
    for ranks in [2, 3] {
        mismatch(world, (ranks, 1, 1), sum_of_4, large, texts);
        mismatch(world, (ranks, 1, 1), large, sum_of_4, [texts[1], texts[0]]);
    }
}

pub fn different_operations(world: &World) {
    let max: Call = |group| group.all_reduce(zeros([4]), ReduceOp::Max).map(drop);
    mismatch(world, (2, 1, 0), sum_of_4, max, ["all_reduce(sum) of f32 [4]", "all_reduce(max) of f32 [4]"]);
    mismatch(world, (3, 2, 3), sum_of_4, ProcessGroup::barrier, ["all_reduce(sum) of f32 [4]", "barrier"]);
    let gather: Call = |group| group.all_gather(zeros([4]), 0).map(drop);
    mismatch(
        world,
        (4, 0, 1),
        gather,
        sum_of_4,
        ["all_gather of f32 [4] along dim 0, receiving [4, 4, 4, 4]", "all_reduce(sum) of f32 [4]"],
    );
    let root: Call = |group| group.broadcast(zeros([4]), 1).map(drop);
    let other_root: Call = |group| group.broadcast(zeros([4]), 0).map(drop);
    mismatch(world, (2, 1, 0), root, other_root, ["broadcast(root 1) of f32 [4]", "broadcast(root 0) of f32 [4]"]);
}

pub fn different_element_types(world: &World) {
    let f64s: Call = |group| group.all_reduce(zeros([4]).cast(DType::F64), ReduceOp::Sum).map(drop);
    mismatch(world, (3, 1, 2), sum_of_4, f64s, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of f64 [4]"]);
    let ints: Call =
        |group| group.all_reduce(Tensor::<1, Int>::zeros([4], (&Device::flex(), DType::I64)), ReduceOp::Sum).map(drop);
    mismatch(world, (2, 0, 0), sum_of_4, ints, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of i64 [4]"]);
}

pub fn different_shapes(world: &World) {
    let more: Call = |group| group.all_reduce(zeros([5]), ReduceOp::Sum).map(drop);
    mismatch(world, (2, 1, 0), sum_of_4, more, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of f32 [5]"]);
    let square: Call = |group| group.all_reduce(zeros([2, 2]), ReduceOp::Sum).map(drop);
    mismatch(world, (3, 2, 0), sum_of_4, square, ["all_reduce(sum) of f32 [4]", "all_reduce(sum) of f32 [2, 2]"]);
    let gather: Call = |group| group.all_gather(zeros([2, 3]), 0).map(drop);
    let longer: Call = |group| group.all_gather(zeros([3, 3]), 0).map(drop);
    let texts = [
        "all_gather of f32 [2, 3] along dim 0, receiving [6, 6]",
        "all_gather of f32 [3, 3] along dim 0, receiving [9, 9]",
    ];
    mismatch(world, (2, 1, 0), gather, longer, texts);
    let transposed: Call = |group| group.all_gather(zeros([3, 2]), 0).map(drop);
    let texts = [
        "all_gather of f32 [2, 3] along dim 0, receiving [6, 6]",
        "all_gather of f32 [3, 2] along dim 0, receiving [6, 6]",
    ];
    mismatch(world, (2, 1, 0), gather, transposed, texts);
    let other_dim: Call = |group| group.reduce_scatter(zeros([4, 4]), 1, ReduceOp::Sum).map(drop);
    let scatter: Call = |group| group.reduce_scatter(zeros([4, 4]), 0, ReduceOp::Sum).map(drop);
    let texts = [
        "reduce_scatter(sum) of f32 [4, 4] along dim 0, sending [8, 8]",
        "reduce_scatter(sum) of f32 [4, 4] along dim 1, sending [2, 2] in 4 rows",
    ];
    mismatch(world, (2, 1, 0), scatter, other_dim, texts);
}

pub fn rows_that_a_peer_does_not_expect(world: &World) {
    let told = |sent: [usize; 3], check: fn(&Error)| {
        let life = |group: ProcessGroup| {
            let send = if group.rank() == 1 { sent } else { [1, 1, 1] };
            group.all_to_all_uneven(zeros([send.iter().sum(), 5]), &send, &[1, 1, 1]).unwrap_err()
        };
        world.fail(3, life, |errors, _| {
            assert!(errors.iter().all(|error| *error == errors[0]));
            check(&errors[0]);
        });
    };
    // Rank 1 sends 2 rows to rank 2, which expects 1: one of them is wrong.
    told([1, 1, 2], |error| {
        let Error::Mismatch { first, second, first_call, second_call, second_is_odd, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!((*first, *second, *second_is_odd), (Rank(1), Rank(2), false));
        assert_eq!(first_call, "all_to_all of f32 [4, 5] from dim 0 to dim 0, sending [5, 5, 10], receiving [5, 5, 5]");
        assert_eq!(second_call, "all_to_all of f32 [3, 5] from dim 0 to dim 0, sending [5, 5, 5], receiving [5, 5, 5]");
    });
    // It sends both others what they do not expect.
    told([2, 1, 2], |error| {
        let Error::Mismatch { first, second, second_is_odd, .. } = error else { panic!("{error:?}") };
        assert_eq!((*first, *second, *second_is_odd), (Rank(0), Rank(1), true));
    });
}

/// As many elements from and for everybody, but not the same thing.
pub fn exchanges_of_the_same_counts(world: &World) {
    let usual: Call = |group| group.all_to_all(zeros([2, 2]), 0, 1).map(drop);
    let other_dims: Call = |group| group.all_to_all(zeros([2, 2]), 1, 0).map(drop);
    let texts = [
        "all_to_all of f32 [2, 2] from dim 0 to dim 1, sending [2, 2], receiving [2, 2]",
        "all_to_all of f32 [2, 2] from dim 1 to dim 0, sending [2, 2], receiving [2, 2]",
    ];
    mismatch(world, (2, 1, 0), usual, other_dims, texts);
    let rows: Call = |group| group.all_to_all_uneven(zeros([3, 6]), &[1; 3], &[1; 3]).map(drop);
    let shorter: Call = |group| group.all_to_all_uneven(zeros([6, 3]), &[2; 3], &[2; 3]).map(drop);
    let texts = [
        "all_to_all of f32 [3, 6] from dim 0 to dim 0, sending [6, 6, 6], receiving [6, 6, 6]",
        "all_to_all of f32 [6, 3] from dim 0 to dim 0, sending [6, 6, 6], receiving [6, 6, 6]",
    ];
    mismatch(world, (3, 0, 1), rows, shorter, texts);
    let cube: Call = |group| group.all_to_all_uneven(zeros([3, 2, 3]), &[1; 3], &[1; 3]).map(drop);
    let texts = [texts[0], "all_to_all of f32 [3, 2, 3] from dim 0 to dim 0, sending [6, 6, 6], receiving [6, 6, 6]"];
    mismatch(world, (3, 2, 0), rows, cube, texts);
    let doubles: Call = |group| group.all_to_all_uneven(zeros([3, 6]).cast(DType::F64), &[1; 3], &[1; 3]).map(drop);
    let texts = [texts[0], "all_to_all of f64 [3, 6] from dim 0 to dim 0, sending [6, 6, 6], receiving [6, 6, 6]"];
    mismatch(world, (3, 1, 0), rows, doubles, texts);
}

pub fn a_split_and_a_gather_of_counts(world: &World) {
    for counts in [2, 3] {
        let gather: Call = if counts == 2 {
            |group| group.all_gather_counts(&[0; 2]).map(drop)
        } else {
            |group| group.all_gather_counts(&[0; 3]).map(drop)
        };
        let text = format!("all_gather of i64 [{counts}] along dim 0, receiving {:?}", [counts; 3]);
        mismatch(world, (3, 1, 0), |group| group.split("new", 0, 0).map(drop), gather, ["split into `new`", &text]);
    }
}

pub fn names_of_a_group_to_be(world: &World) {
    let life = |group: ProcessGroup| {
        let name = if group.rank() == 0 { "data" } else { "tensor" };
        group.split(name, 0, 0).unwrap_err()
    };
    world.fail(2, life, |errors, _| {
        let Error::Mismatch { first_call, second_call, second_is_odd, .. } = &errors[0] else { panic!("{errors:?}") };
        assert_eq!([first_call, second_call], ["split into `data`", "split into `tensor`"]);
        assert!(!second_is_odd && errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    });
}

/// Names longer than what messages have room for, of which one ends otherwise than the others.
pub fn long_names_of_a_group_to_be(world: &World) {
    for (ranks, odd) in [(2, 1), (3, 1), (3, 2)] {
        let is_known = world.kind.knows_the_odd_one(ranks);
        let life = |group: ProcessGroup| {
            let name = format!("{}{}", "n".repeat(5000), usize::from(group.rank() == odd));
            group.split(&name, 0, 0).unwrap_err()
        };
        world.fail(ranks, life, |errors, (culprit, _)| {
            for error in &errors {
                let Error::Mismatch { first, second, first_call, second_is_odd, .. } = error else {
                    panic!("{error:?}")
                };
                assert_eq!((*first, *second, *second_is_odd), (Rank(0), Rank(odd), is_known));
                assert!(first_call.starts_with("split into `nnn"), "{first_call}");
            }
            assert_eq!(culprit, Rank(if is_known { odd } else { 0 }));
        });
    }
}

pub fn a_mismatch_among_started_calls_comes_out_at_wait_and_ends_the_world(world: &World) {
    let life = |group: ProcessGroup| {
        let shape = [4 + group.rank()];
        let pending = group.start_all_reduce(zeros(shape), ReduceOp::Sum).unwrap();
        let after = group.start_all_reduce(zeros([4]), ReduceOp::Sum);
        let mismatch = pending.wait().unwrap_err();
        assert!(matches!(mismatch, Error::Mismatch { sequence: 1, .. }));
        match after {
            Ok(after) => assert_eq!(after.wait().unwrap_err(), mismatch),
            // The run had ended by then, by the same mismatch.
            Err(error) => assert!(error == mismatch || matches!(error, Error::Peer { .. }), "{error:?}"),
        }
        mismatch
    };
    world.fail(2, life, |errors, (_, error)| assert!(errors.iter().all(|other| *other == error), "{errors:?}"));
}

/// Refused on one rank alone; nothing is sent, and the world goes on.
pub fn arguments_that_fit_nothing(world: &World) {
    world.run(2, |group| {
        if group.rank() == 1 {
            let invalid = |result: Result<Tensor<2>>, part: &str| match result {
                Err(Error::Invalid { message }) => assert!(message.contains(part), "{message}"),
                other => panic!("{other:?}"),
            };
            let x = || zeros([3, 4]);
            let below_2 = "dim 2 of a tensor of 2 dims; dims count from 0, so give one below 2";
            invalid(group.all_gather(x(), 2), below_2);
            invalid(group.reduce_scatter(x(), 2, ReduceOp::Sum), below_2);
            invalid(group.all_to_all(x(), 2, 0), below_2);
            invalid(group.all_to_all(x(), 1, 2), below_2);
            invalid(group.all_gather_uneven(x(), 0, &[3]), "1 sizes in a group of 2 members; give one size for each");
            invalid(
                group.all_gather_uneven(x(), 0, &[3, 4]),
                "member 1 holds 3 instead of 4; give every member the same sizes, with 3 for member 1",
            );
            invalid(
                group.reduce_scatter(x(), 0, ReduceOp::Sum),
                "an extent of 3 along dim 0 does not divide evenly over 2 members; pad it to 4, or give the sizes \
                 (reduce_scatter_uneven)",
            );
            invalid(
                group.reduce_scatter_uneven(x(), 0, &[1, 1], ReduceOp::Sum),
                "make 2, but the tensor's extent is 3; give sizes that make 3",
            );
            invalid(group.all_to_all(x(), 0, 0), "pad it to 4, or give the rows for each member (all_to_all_uneven)");
            invalid(group.all_to_all_uneven(x(), &[2, 2], &[1, 1]), "make 4, but the tensor's extent is 3");
            invalid(
                group.broadcast(x(), 2),
                "member 2, but the group has 2; members count from 0, so give one below 2",
            );
            // Rows of dim 0 cannot stand in for parts of another dim.
            let Err(Error::Invalid { message }) = group.all_to_all(x(), 0, 1) else { panic!("3 rows for 2 members") };
            assert!(message.ends_with("over 2 members; pad it to 4"), "{message}");
            let tracked = Tensor::<2>::ones([3, 4], &Device::flex().autodiff()).require_grad();
            invalid(group.all_reduce(tracked.clone(), ReduceOp::Sum), "tracked");
            assert!(matches!(group.start_all_reduce(tracked * 2.0, ReduceOp::Sum), Err(Error::Invalid { .. })));
            let Err(Error::Invalid { message }) = group.all_to_all_counts(&[1, 2, 3]) else { panic!("3 for 2") };
            assert!(message.ends_with("3 counts do not divide evenly over 2 members; pad them to 4"), "{message}");
        }
        sum_of_4(&group).unwrap();
    });
}
