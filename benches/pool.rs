//! Buckets reduced by several communicators, beside the same buckets one after the other.
//!
//! ```text
//! cargo bench --bench pool [-- --pairs 100]
//! ```
//!
//! All buckets are started, as backward would start them, and then waited for. The two ways are measured in turn; what
//! counts is the median of the ratios of the pairs. Where the system puts the threads of a launch decides much, so the
//! pairs are spread over several launches.

use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use epl_benches::quartiles::{quartiles, show};
use epl_comm::testing::run_ranks;
use epl_comm::{Pool, ProcessGroup, ReduceOp};

const BUCKETS: usize = 8;
const WARM_UP: usize = 4;
const LAUNCHES: usize = 10;
const COMMUNICATORS: [usize; 2] = [2, 4];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == "--pairs");
    let pairs: usize = place.map_or(100, |place| arguments[place + 1].parse().expect("--pairs takes a number"));
    println!(
        "{:>6} {:>14} {:>14} {:>14} {:>26}",
        "ranks", "communicators", "bucket bytes", "in a row us", "in a row ÷ together, time"
    );
    for ranks in [2, 4] {
        for communicators in COMMUNICATORS {
            for bytes in [64 << 10, 1 << 20, 16 << 20] {
                let launches =
                    (0..LAUNCHES).flat_map(|_| launch(ranks, communicators, bytes, pairs.div_ceil(LAUNCHES)));
                let (row, together): (Vec<f64>, Vec<f64>) = launches.unzip();
                let ratios = quartiles(row.iter().zip(&together).map(|(row, together)| row / together).collect());
                let row = quartiles(row)[1] * 1e6;
                println!("{ranks:>6} {communicators:>14} {bytes:>14} {row:>14.1} {:>26}", show(ratios));
            }
        }
    }
}

/// Pairs of seconds that the buckets take: in a row, and together.
fn launch(ranks: usize, communicators: usize, bytes: usize, pairs: usize) -> Vec<(f64, f64)> {
    let times = run_ranks(ranks, |group| {
        let one = Pool::new(&group, 1).expect("all ranks are here");
        let several = Pool::new(&group, communicators).expect("all ranks are here");
        let bucket = || Some(Tensor::ones([bytes / 4], (&Device::flex(), DType::F32)));
        let mut buckets: Vec<_> = (0..BUCKETS).map(|_| bucket()).collect();
        let mut time = |pool| reduce(&group, pool, &mut buckets);
        // Whoever comes second finds the helper threads awake: each does in turn.
        let pair = |number: usize| match number % 2 {
            0 => (time(&one), time(&several)),
            _ => {
                let together = time(&several);
                (time(&one), together)
            }
        };
        (0..pairs + WARM_UP).map(pair).collect::<Vec<_>>()
    });
    times[0][WARM_UP..].to_vec()
}

fn reduce(group: &ProcessGroup, pool: &Pool, buckets: &mut [Option<Tensor<1>>]) -> f64 {
    group.barrier().expect("all ranks are here");
    let begin = Instant::now();
    let start = |(number, bucket): (usize, &mut Option<Tensor<1>>)| {
        let bucket = bucket.take().expect("it was put back");
        pool.communicator(number).start_all_reduce(bucket, ReduceOp::Sum)
    };
    let started: Vec<_> = buckets.iter_mut().enumerate().map(start).collect();
    for (bucket, started) in buckets.iter_mut().zip(started) {
        *bucket = Some(started.and_then(|started| started.wait()).expect("all ranks are here"));
    }
    begin.elapsed().as_secs_f64()
}
