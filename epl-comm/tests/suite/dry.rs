//! Shapes and bytes of worlds that do not exist.

use burn::tensor::{DType, Device, Int, Tensor};
use epl_comm::{Rank, ReduceOp, Result, dry, shard_range};

fn floats<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, (&Device::flex(), DType::F32))
}

#[test]
fn shapes_are_those_of_a_real_world() -> Result<()> {
    for ranks in [1, 2, 3, 8, 64, 4096] {
        for me in [0, ranks / 2, ranks - 1] {
            let (group, _) = dry::world(ranks, me)?;
            assert_eq!((group.size(), group.rank(), group.global(me)), (ranks, me, Rank(me)));
            assert_eq!(group.all_reduce(floats([2, 3]), ReduceOp::Mean)?.dims(), [2, 3]);
            assert_eq!(group.all_gather(floats([2, 3]), 1)?.dims(), [2, 3 * ranks]);
            assert_eq!(group.reduce_scatter(floats([2, 3 * ranks]), 1, ReduceOp::Sum)?.dims(), [2, 3]);
            assert_eq!(group.all_to_all(floats([ranks, 3]), 0, 1)?.dims(), [1, 3 * ranks]);
            assert_eq!(group.broadcast(floats([2, 3]), ranks - 1)?.dims(), [2, 3]);
            let sizes: Vec<usize> = (0..ranks).map(|member| shard_range(10, ranks, member).len()).collect();
            assert_eq!(group.all_gather_uneven(floats([sizes[me], 2]), 0, &sizes)?.dims(), [10, 2]);
            assert_eq!(group.reduce_scatter_uneven(floats([10, 2]), 0, &sizes, ReduceOp::Sum)?.dims(), [sizes[me], 2]);
            let receive: Vec<usize> = if ranks == 1 { vec![10] } else { vec![1; ranks] };
            let rows = receive.iter().sum();
            assert_eq!(group.all_to_all_uneven(floats([10, 2]), &sizes, &receive)?.dims(), [rows, 2]);
            assert_eq!(group.start_all_gather(floats([2]), 0)?.wait()?.dims(), [2 * ranks]);
        }
    }
    Ok(())
}

#[test]
fn peers_bring_what_this_rank_brings() -> Result<()> {
    let (group, _) = dry::world(3, 1)?;
    let x = Tensor::<1, Int>::from_data([1, 2, 3], (&Device::flex(), DType::I64));
    let values = |tensor: Tensor<1, Int>| tensor.into_data().iter::<i64>().collect::<Vec<_>>();
    assert_eq!(values(group.all_reduce(x.clone(), ReduceOp::Sum)?), [3, 6, 9]);
    assert_eq!(values(group.all_gather(x.clone(), 0)?), [1, 2, 3, 1, 2, 3, 1, 2, 3]);
    assert_eq!(values(group.reduce_scatter(x, 0, ReduceOp::Product)?), [8]);
    assert_eq!(group.all_gather_counts(&[4, 5])?, [[4, 5], [4, 5], [4, 5]]);
    Ok(())
}

#[test]
fn bytes_are_those_of_a_ring() -> Result<()> {
    let ranks = 5;
    for me in 0..ranks {
        let (group, traffic) = dry::world(ranks, me)?;
        let next = |traffic: &dry::Traffic| traffic.link(Rank(me), Rank((me + 1) % ranks));
        group.all_reduce(floats([10]), ReduceOp::Sum)?;
        assert_eq!(next(&traffic), 2 * 40 * 4 / 5);
        group.barrier()?;
        assert_eq!(traffic.sent(), 64);
        // To every other member, one row of 4 bytes.
        group.all_to_all(floats([ranks]), 0, 0)?;
        assert_eq!(traffic.sent(), 64 + 4 * 4);
        assert_eq!(traffic.link(Rank(me), Rank((me + 2) % ranks)), 4);
        let entries = traffic.entries();
        let names: Vec<&str> = entries.iter().map(|entry| entry.operation.as_str()).collect();
        assert_eq!(names, ["all_reduce(sum)", "all_to_all", "barrier"]);
        assert!(traffic.to_string().contains("80 bytes sent on 4 links"), "{traffic}");
    }
    Ok(())
}

/// What one member passes on around a ring, all members' together: each part goes n − 1 steps.
#[test]
fn uneven_parts_go_around_once() -> Result<()> {
    let sizes = [3, 0, 5, 1];
    let all: u64 = sizes.iter().sum::<usize>() as u64 * 4 * 3;
    let sent = |run: &dyn Fn(&epl_comm::ProcessGroup) -> Result<()>| -> Result<u64> {
        let mut sum = 0;
        for me in 0..sizes.len() {
            let (group, traffic) = dry::world(sizes.len(), me)?;
            run(&group)?;
            sum += traffic.sent();
        }
        Ok(sum)
    };
    assert_eq!(sent(&|group| group.all_gather_uneven(floats([sizes[group.rank()]]), 0, &sizes).map(drop))?, all);
    assert_eq!(sent(&|group| group.reduce_scatter_uneven(floats([9]), 0, &sizes, ReduceOp::Sum).map(drop))?, all);
    // From the root along the ring to the last, each passes the whole on once.
    assert_eq!(sent(&|group| group.broadcast(floats([9]), 2).map(drop))?, 9 * 4 * 3);
    Ok(())
}

#[test]
fn groups_are_split_by_a_rule() -> Result<()> {
    let (world, traffic) = dry::world(12, 7)?;
    // Columns of a mesh of 3 × 4, in reversed order.
    let column = world.split_by("column", |rank| (rank % 4, 100 - rank))?;
    assert_eq!((column.size(), column.rank(), column.global(0)), (3, 1, Rank(11)));
    column.all_gather(floats([2]), 0)?;
    assert_eq!(traffic.link(Rank(7), Rank(3)), 2 * 8);
    assert_eq!(traffic.entries()[0].group, "column");
    let error = world.split("any", 0, 0).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("the 11 other members") && error.contains("split_by"), "{error}");
    assert!(dry::world(3, 3).is_err());
    Ok(())
}
