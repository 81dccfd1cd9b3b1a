//! All-reduce between two ranks that are threads, beside a copy of the bytes that it must move, and beside Gloo.
//!
//! ```text
//! cargo bench --bench all_reduce                                  # beside the copy
//! cargo bench --bench all_reduce -- --gloo python3 [--pairs 30]   # beside PyTorch's Gloo, too
//! ```
//!
//! An all-reduce of n bytes on two ranks reads both buffers and writes both: each thread moves as much as in a copy
//! of n bytes. Both are measured in turn, so that whatever else the machine does falls on both; what counts is the
//! median of the ratios of the pairs.

use std::process::Command;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{ProcessGroup, ReduceOp};

const RANKS: usize = 2;
const SIZES: [usize; 6] = [1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26];
const GLOO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/peers/allreduce_gloo.py");
/// Measurements of one size before the two programs change places; Gloo's script takes as many.
const TURN: usize = 15;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).cloned()
    };
    let pairs = value("--pairs").map_or(30, |pairs| pairs.parse().expect("--pairs takes a number"));
    beside_copy(pairs);
    if let Some(python) = value("--gloo") {
        beside_gloo(&python, pairs);
    }
}

fn beside_copy(pairs: usize) {
    println!(
        "{:>10} {:>13} {:>10} {:>10} {:>26}",
        "bytes", "all_reduce us", "GB/s", "copy us", "copy us / all_reduce us"
    );
    for bytes in SIZES {
        let ranks = run_ranks(RANKS, |group| {
            let mut x = buffer(bytes);
            let (from, mut to) = (vec![1_u8; bytes], vec![2_u8; bytes]);
            let mut times = Vec::new();
            for _ in 0..pairs + 2 {
                let reduce = repeat(&group, bytes, || {
                    let taken = core::mem::replace(&mut x, buffer(0));
                    x = group.all_reduce(taken, ReduceOp::Sum).expect("both ranks are here");
                });
                let copy = repeat(&group, bytes, || to.copy_from_slice(core::hint::black_box(&from)));
                times.push((reduce, copy));
            }
            // The first ones touch the memory for the first time.
            times.split_off(2)
        });
        let slowest = |pick: fn(&(f64, f64)) -> f64| -> Vec<f64> {
            (0..pairs).map(|pair| ranks.iter().map(|times| pick(&times[pair])).fold(0.0, f64::max)).collect()
        };
        let (reduce, copy) = (slowest(|times| times.0), slowest(|times| times.1));
        let ratios = copy.iter().zip(&reduce).map(|(copy, reduce)| copy / reduce).collect();
        let (reduce, copy) = (quartiles(reduce)[1], quartiles(copy)[1]);
        let speed = bytes as f64 / reduce / 1e9;
        println!(
            "{bytes:>10} {:>13.2} {speed:>10.2} {:>10.2} {:>26}",
            reduce * 1e6,
            copy * 1e6,
            show(quartiles(ratios))
        );
    }
}

fn beside_gloo(python: &str, pairs: usize) {
    let mut ratios = vec![Vec::new(); SIZES.len()];
    let mut speeds = vec![(Vec::new(), Vec::new()); SIZES.len()];
    for _ in 0..pairs {
        let gloo = gloo(python);
        for (index, bytes) in SIZES.into_iter().enumerate() {
            let ours = ours(bytes);
            let theirs = gloo[index];
            ratios[index].push(theirs / ours);
            speeds[index].0.push(ours);
            speeds[index].1.push(theirs);
        }
    }
    println!("{:>10} {:>13} {:>10} {:>26}", "bytes", "all_reduce us", "gloo us", "gloo us / all_reduce us");
    for ((bytes, ratios), (ours, theirs)) in SIZES.into_iter().zip(ratios).zip(speeds) {
        let (ours, theirs) = (quartiles(ours)[1] * 1e6, quartiles(theirs)[1] * 1e6);
        println!("{bytes:>10} {ours:>13.2} {theirs:>10.2} {:>26}", show(quartiles(ratios)));
    }
}

/// The median seconds of an all-reduce, taken as Gloo's script takes them: on rank 0, each after a barrier.
fn ours(bytes: usize) -> f64 {
    let times = run_ranks(RANKS, |group| {
        let mut x = buffer(bytes);
        let mut times = Vec::new();
        for _ in 0..TURN + 3 {
            group.barrier().expect("both ranks are here");
            let begin = Instant::now();
            x = group.all_reduce(x, ReduceOp::Sum).expect("both ranks are here");
            times.push(begin.elapsed().as_secs_f64());
        }
        times.split_off(3)
    });
    quartiles(times[0].clone())[1]
}

/// The median seconds of Gloo for every size.
fn gloo(python: &str) -> Vec<f64> {
    let output =
        Command::new(python).args([GLOO, "--ranks", &RANKS.to_string()]).output().expect("the interpreter starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let micros = |line: &str| -> Option<f64> { line.split(" us=").nth(1)?.split(' ').next()?.parse().ok() };
    let times: Vec<f64> = text.lines().filter_map(micros).map(|us| us / 1e6).collect();
    assert_eq!(times.len(), SIZES.len(), "one line a size:\n{text}");
    times
}

/// The seconds that `f` takes, the mean of a few after a barrier; of many when it is short.
fn repeat(group: &ProcessGroup, bytes: usize, mut f: impl FnMut()) -> f64 {
    let times = ((1 << 22) / bytes).clamp(1, 200);
    group.barrier().expect("both ranks are here");
    let begin = Instant::now();
    (0..times).for_each(|_| f());
    begin.elapsed().as_secs_f64() / times as f64
}

fn buffer(bytes: usize) -> Tensor<1> {
    Tensor::ones([bytes / 4], (&Device::flex(), burn::tensor::DType::F32))
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

fn show([low, median, high]: [f64; 3]) -> String {
    format!("{median:.2} ({low:.2} to {high:.2})")
}
