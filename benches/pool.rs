//! Buckets reduced by several communicators, beside the same buckets one after the other.
//!
//! ```text
//! cargo bench --bench pool [-- --pairs 30]
//! ```
//!
//! All buckets are started, as backward would start them, and then waited for. The two ways are measured in turn; what
//! counts is the median of the ratios of the pairs.

mod quartiles;

use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{Pool, ReduceOp};
use quartiles::{quartiles, show};

const BUCKETS: usize = 8;
const WARM_UP: usize = 3;
const COMMUNICATORS: [usize; 2] = [2, 4];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == "--pairs");
    let pairs: usize = place.map_or(30, |place| arguments[place + 1].parse().expect("--pairs takes a number"));
    println!(
        "{:>6} {:>14} {:>14} {:>14} {:>26}",
        "ranks", "communicators", "bucket bytes", "in a row us", "in a row ÷ together, time"
    );
    for ranks in [2, 4] {
        for communicators in COMMUNICATORS {
            for bytes in [64 << 10, 1 << 20, 16 << 20] {
                let times = run_ranks(ranks, |group| {
                    let one = Pool::new(&group, 1).expect("all ranks are here");
                    let several = Pool::new(&group, communicators).expect("all ranks are here");
                    let mut buckets: Vec<_> =
                        (0..BUCKETS).map(|_| Some(Tensor::ones([bytes / 4], (&Device::flex(), DType::F32)))).collect();
                    let mut reduce = |pool: &Pool| {
                        group.barrier().expect("all ranks are here");
                        let begin = Instant::now();
                        let started: Vec<_> = buckets
                            .iter_mut()
                            .enumerate()
                            .map(|(number, bucket)| {
                                let bucket: Tensor<1> = bucket.take().expect("it was put back");
                                pool.communicator(number).start_all_reduce(bucket, ReduceOp::Sum)
                            })
                            .collect();
                        for (bucket, started) in buckets.iter_mut().zip(started) {
                            *bucket = Some(started.and_then(|started| started.wait()).expect("all ranks are here"));
                        }
                        begin.elapsed().as_secs_f64()
                    };
                    (0..pairs + WARM_UP).map(|_| (reduce(&one), reduce(&several))).collect::<Vec<_>>()
                });
                let times = times[0][WARM_UP..].to_vec();
                let ratios = quartiles(times.iter().map(|(row, together)| row / together).collect());
                let row = quartiles(times.iter().map(|(row, _)| *row).collect())[1] * 1e6;
                println!("{ranks:>6} {communicators:>14} {bytes:>14} {row:>14.1} {:>26}", show(ratios));
            }
        }
    }
}
