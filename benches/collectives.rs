//! Every collective between ranks that are threads, by size and number of ranks.
//!
//! ```text
//! cargo bench --bench collectives [-- FILTER]
//! ```
//!
//! A buffer is what one rank gives; throughput is counted in bytes of that buffer.

use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput};
use epl_comm::testing::run_ranks;
use epl_comm::{ProcessGroup, ReduceOp, Result};

const RANKS: [usize; 2] = [2, 4];
const SIZES: [usize; 3] = [1 << 10, 1 << 20, 1 << 24];

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    every_collective(&mut criterion);
    criterion.final_summary();
}

fn every_collective(criterion: &mut Criterion) {
    type Collective = fn(&ProcessGroup, Tensor<1>) -> Result<Tensor<1>>;
    let collectives: [(&str, Collective); 5] = [
        ("all_reduce", |group, x| group.all_reduce(x, ReduceOp::Sum)),
        ("all_gather", |group, x| group.all_gather(x, 0)),
        ("reduce_scatter", |group, x| group.reduce_scatter(x, 0, ReduceOp::Sum)),
        ("all_to_all", |group, x| group.all_to_all(x, 0, 0)),
        ("broadcast", |group, x| group.broadcast(x, 0)),
    ];
    for (name, collective) in collectives {
        let mut benches = criterion.benchmark_group(name);
        for ranks in RANKS {
            for bytes in SIZES {
                benches.throughput(Throughput::Bytes(bytes as u64));
                benches.bench_function(BenchmarkId::new(format!("{ranks} ranks"), bytes), |bencher| {
                    bencher.iter_custom(|times| time(ranks, bytes, times, collective));
                });
            }
        }
    }
}

/// The time of `times` calls in a row, as rank 0 sees it.
fn time(
    ranks: usize,
    bytes: usize,
    times: u64,
    call: impl Fn(&ProcessGroup, Tensor<1>) -> Result<Tensor<1>> + Sync,
) -> Duration {
    run_ranks(ranks, |group| {
        let x = Tensor::<1>::ones([bytes / 4], (&Device::flex(), DType::F32));
        group.barrier().expect("all ranks are here");
        let begin = Instant::now();
        for _ in 0..times {
            call(&group, x.clone()).expect("all ranks are here");
        }
        begin.elapsed()
    })[0]
}
