//! Shapes and bytes of worlds that do not exist.

use std::collections::BTreeMap;

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{Bool, BoolStore, DType, Device, Float, Int, Tensor};
use epl_comm::dry::{self, Traffic};
use epl_comm::{Pending, ProcessGroup, Rank, ReduceOp, Result, Trace, shard_range};

fn floats<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, (&Device::flex(), DType::F32))
}

const RANKS: [usize; 6] = [1, 2, 3, 8, 64, 4096];
const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::U8, DType::Bool(BoolStore::Native)];

/// Calls every collective that moves only, both ways, and checks the shapes.
fn moves<K: Autodiff + 'static>(group: &ProcessGroup, dtype: DType) -> Result<()> {
    let (ranks, me) = (group.size(), group.rank());
    let x = |shape: [usize; 2]| Tensor::<2, K>::zeros(shape, (&Device::flex(), dtype));
    let same = |now: Tensor<2, K>, later: Pending<Tensor<2, K>>, shape: [usize; 2]| -> Result<()> {
        let later = later.wait()?;
        assert_eq!((now.dims(), later.dims()), (shape, shape));
        assert_eq!((now.dtype(), later.dtype()), (dtype, dtype));
        Ok(())
    };
    let only = |now: Option<Tensor<2, K>>, later: Pending<Option<Tensor<2, K>>>, shape, root| -> Result<()> {
        match (now, later.wait()?) {
            (Some(now), Some(later)) if root == me => same(now, later.into(), shape),
            (None, None) if root != me => Ok(()),
            other => panic!("{other:?} on member {me} with root {root}"),
        }
    };
    let sizes: Vec<usize> = (0..ranks).map(|member| shard_range(10, ranks, member).len()).collect();
    for root in [0, ranks - 1] {
        let (a, b) = (|| x([2, 3]), || x([sizes[me], 2]));
        only(group.gather(a(), 1, root)?, group.start_gather(a(), 1, root)?, [2, 3 * ranks], root)?;
        let later = group.start_gather_uneven(b(), 0, &sizes, root)?;
        only(group.gather_uneven(b(), 0, &sizes, root)?, later, [10, 2], root)?;
        let (a, b) = (|| x([2, 3 * ranks]), || x([10, 2]));
        same(group.scatter(a(), 1, root)?, group.start_scatter(a(), 1, root)?, [2, 3])?;
        let later = group.start_scatter_uneven(b(), 0, &sizes, root)?;
        same(group.scatter_uneven(b(), 0, &sizes, root)?, later, [sizes[me], 2])?;
        same(group.broadcast(x([2, 3]), root)?, group.start_broadcast(x([2, 3]), root)?, [2, 3])?;
    }
    let (a, b) = (|| x([2, 3]), || x([sizes[me], 2]));
    same(group.all_gather(a(), 1)?, group.start_all_gather(a(), 1)?, [2, 3 * ranks])?;
    same(group.all_gather_uneven(b(), 0, &sizes)?, group.start_all_gather_uneven(b(), 0, &sizes)?, [10, 2])?;
    let a = || x([ranks, 3]);
    same(group.all_to_all(a(), 0, 1)?, group.start_all_to_all(a(), 0, 1)?, [1, 3 * ranks])?;
    let receive: Vec<usize> = if ranks == 1 { vec![10] } else { vec![1; ranks] };
    let (a, rows) = (|| x([10, 2]), receive.iter().sum());
    let later = group.start_all_to_all_uneven(a(), &sizes, &receive)?;
    same(group.all_to_all_uneven(a(), &sizes, &receive)?, later, [rows, 2])?;
    if ranks > 1 {
        let next = (me + 1) % ranks;
        group.send(x([2, 3]), next)?;
        group.start_send(x([2, 3]), next)?.wait()?;
        same(group.receive(x([2, 3]), next)?, group.start_receive(x([2, 3]), next)?, [2, 3])?;
    }
    group.barrier()?;
    group.start_barrier()?.wait()
}

/// The same of those that reduce.
fn reductions<K: Numeric + Autodiff + 'static>(group: &ProcessGroup, dtype: DType) -> Result<()> {
    let (ranks, me) = (group.size(), group.rank());
    let x = |shape: [usize; 2]| Tensor::<2, K>::zeros(shape, (&Device::flex(), dtype));
    let sizes: Vec<usize> = (0..ranks).map(|member| shard_range(10, ranks, member).len()).collect();
    for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
        if op == ReduceOp::Mean && !dtype.is_float() {
            continue;
        }
        let all = [group.all_reduce(x([2, 3]), op)?, group.start_all_reduce(x([2, 3]), op)?.wait()?];
        assert!(all.iter().all(|x| x.dims() == [2, 3] && x.dtype() == dtype));
        for root in [0, ranks - 1] {
            let one = [group.reduce(x([2, 3]), op, root)?, group.start_reduce(x([2, 3]), op, root)?.wait()?];
            assert!(one.iter().all(|x| x.as_ref().map(Tensor::dims) == (root == me).then_some([2, 3])));
        }
        let whole = || x([2, 3 * ranks]);
        let even = [group.reduce_scatter(whole(), 1, op)?, group.start_reduce_scatter(whole(), 1, op)?.wait()?];
        assert!(even.iter().all(|x| x.dims() == [2, 3] && x.dtype() == dtype));
        let later = group.start_reduce_scatter_uneven(x([10, 2]), 0, &sizes, op)?;
        let uneven = [group.reduce_scatter_uneven(x([10, 2]), 0, &sizes, op)?, later.wait()?];
        assert!(uneven.iter().all(|x| x.dims() == [sizes[me], 2] && x.dtype() == dtype));
    }
    Ok(())
}

#[test]
fn shapes_are_those_of_a_real_world() -> Result<()> {
    for ranks in RANKS {
        for me in [0, ranks / 2, ranks - 1] {
            let (group, _) = dry::world(ranks, me)?;
            assert_eq!((group.size(), group.rank(), group.global(me)), (ranks, me, Rank(me)));
            // The large worlds once.
            for dtype in DTYPES.into_iter().filter(|dtype| ranks <= 64 || *dtype == DType::F32) {
                match dtype {
                    DType::Bool(_) => moves::<Bool>(&group, dtype)?,
                    _ if dtype.is_float() => {
                        moves::<Float>(&group, dtype)?;
                        reductions::<Float>(&group, dtype)?;
                    }
                    _ => {
                        moves::<Int>(&group, dtype)?;
                        reductions::<Int>(&group, dtype)?;
                    }
                }
            }
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

/// What all members send together, for worlds of every size: each part goes around a ring once, or straight.
#[test]
fn bytes_of_all_members_together() -> Result<()> {
    for ranks in RANKS.into_iter().filter(|ranks| *ranks > 1) {
        let others = ranks as u64 - 1;
        let sizes: Vec<usize> = (0..ranks).map(|member| (member * 2 + 3) % 5).collect();
        let (whole, root) = (sizes.iter().sum::<usize>(), ranks / 2);
        let bytes = 4 * whole as u64;
        let sent = |run: &dyn Fn(&ProcessGroup) -> Result<()>| -> Result<u64> {
            let mut sum = 0;
            for me in 0..ranks {
                let (group, traffic) = dry::world(ranks, me)?;
                run(&group)?;
                sum += traffic.sent();
            }
            Ok(sum)
        };
        let own = |group: &ProcessGroup| floats([sizes[group.rank()]]);
        let all = || floats([whole]);
        let op = ReduceOp::Sum;
        assert_eq!(sent(&|group| group.all_gather_uneven(own(group), 0, &sizes).map(drop))?, others * bytes);
        assert_eq!(sent(&|group| group.reduce_scatter_uneven(all(), 0, &sizes, op).map(drop))?, others * bytes);
        // Along the ring from the root to the last, or from the first to the root, each passes the whole on once.
        assert_eq!(sent(&|group| group.broadcast(all(), root).map(drop))?, others * bytes);
        assert_eq!(sent(&|group| group.reduce(all(), op, root).map(drop))?, others * bytes);
        // Straight to the root, or from it: all parts but its own.
        let straight = bytes - 4 * sizes[root] as u64;
        assert_eq!(sent(&|group| group.gather_uneven(own(group), 0, &sizes, root).map(drop))?, straight);
        assert_eq!(sent(&|group| group.scatter_uneven(all(), 0, &sizes, root).map(drop))?, straight);
        assert_eq!(sent(&|group| group.send(all(), (group.rank() + 1) % ranks))?, ranks as u64 * bytes);
        assert_eq!(sent(&|group| group.receive(all(), (group.rank() + 1) % ranks).map(drop))?, 0);
        assert_eq!(sent(&ProcessGroup::barrier)?, 0);
    }
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

#[test]
fn it_is_told_that_nobody_else_is_there() -> Result<()> {
    for (world, _) in [dry::world(8, 1)?, dry::world_of_hosts(8, 4, 1)?] {
        let part = world.split_by("pairs", |rank| (rank / 2, rank))?;
        assert!(
            [&world, &part, &world.traced(&Trace::new()), &part.traced(&Trace::new())]
                .iter()
                .all(|group| group.is_dry())
        );
    }
    Ok(())
}

/// Makes a world of so many ranks and so many a host, as one of them sees it.
type World = fn(usize, usize, usize) -> Result<(ProcessGroup, Traffic)>;

/// The most bytes that any host sends to another in a collective: flat, and through one rank of each host.
fn between_hosts(ranks: usize, per_host: usize, call: fn(&ProcessGroup) -> Result<()>) -> [u64; 2] {
    let worlds: [World; 2] = [|ranks, _, rank| dry::world(ranks, rank), dry::world_of_hosts];
    worlds.map(|world| {
        let mut sent = BTreeMap::<(usize, usize), u64>::new();
        for rank in 0..ranks {
            let (group, traffic) = world(ranks, per_host, rank).unwrap();
            call(&group).unwrap();
            for (from, to, bytes) in traffic.links() {
                let hosts = (from.0 / per_host, to.0 / per_host);
                if hosts.0 != hosts.1 {
                    *sent.entry(hosts).or_default() += bytes;
                }
            }
        }
        sent.values().copied().max().unwrap_or(0)
    })
}

#[test]
fn through_one_rank_of_each_host_less_goes_between_them() {
    fn x() -> Tensor<1> {
        Tensor::ones([4096], (&Device::flex(), DType::F32))
    }
    let bytes = 4096 * 4;
    // A ring passes all parts but one over each of its links, twice: of 8 ranks, or of 2 hosts.
    let sum = between_hosts(8, 4, |group| group.all_reduce(x(), ReduceOp::Sum).map(drop));
    assert_eq!(sum, [2 * bytes * 7 / 8, 2 * bytes / 2]);
    let scattered = between_hosts(8, 4, |group| group.reduce_scatter(x(), 0, ReduceOp::Sum).map(drop));
    assert_eq!(scattered, [bytes * 7 / 8, bytes / 2]);
    // What the ranks of one host have.
    let gathered = between_hosts(8, 4, |group| group.all_gather(x(), 0).map(drop));
    assert_eq!(gathered, [7 * bytes, 4 * bytes]);
    // What every rank of a host has for every rank of the other, and how much each of them expects.
    let exchanged = between_hosts(8, 4, |group| group.all_to_all(x(), 0, 0).map(drop));
    let counts = 4 * 2 * 8 * 8;
    assert_eq!(exchanged, [4 * 4 * bytes / 8, 4 * 4 * bytes / 8 + counts]);
}
