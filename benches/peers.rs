//! The collectives between ranks that are threads, beside a copy of the bytes that they must move, and beside the
//! same collectives of PyTorch's Gloo and of Open MPI.
//!
//! ```text
//! cargo bench --bench peers                                        # beside the copy
//! cargo bench --bench peers -- --gloo python3                      # beside Gloo: a Python that has PyTorch
//! mpicc -O3 tools/peers/collectives_mpi.c -o collectives_mpi
//! cargo bench --bench peers -- --mpi "$PWD/collectives_mpi"             # beside Open MPI
//!     [--pairs 30] [--ranks 2,4] [--only all_reduce,all_gather] [--sizes 1024,67108864]
//! ```
//!
//! A size is what one rank gives. Two programs are measured in turn, so that whatever else the machine does falls on
//! both; what counts is the median of the ratios of the pairs. The time of a call is rank 0's, after a barrier.

use std::process::Command;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use epl_benches::quartiles::{quartiles, show};
use epl_comm::testing::run_ranks;
use epl_comm::{ProcessGroup, ReduceOp};

const GLOO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/peers/collectives_gloo.py");
/// Measurements of one size before the two programs change places.
const TURN: usize = 15;
/// Measurements before those that count: the first ones touch the memory for the first time.
const WARM_UP: usize = 3;

#[derive(Clone, Copy)]
struct Collective {
    name: &'static str,
    run: fn(&ProcessGroup, Tensor<1>) -> epl_comm::Result<Tensor<1>>,
    /// Whether the result lies where the tensor was, and is the next call's tensor. Otherwise that stays as it is, as
    /// the peers' do.
    in_place: bool,
    /// The bytes that a rank reads and those that it writes, as multiples of what it gives.
    moves: fn(f64) -> (f64, f64),
}

const COLLECTIVES: [Collective; 4] = [
    // A rank's slice of all buffers, from and to.
    Collective {
        name: "all_reduce",
        run: |group, x| group.all_reduce(x, ReduceOp::Sum),
        in_place: true,
        moves: |_| (1.0, 1.0),
    },
    Collective {
        name: "all_gather",
        run: |group, x| group.all_gather(x, 0),
        in_place: false,
        moves: |ranks| (ranks, ranks),
    },
    Collective {
        name: "reduce_scatter",
        run: |group, x| group.reduce_scatter(x, 0, ReduceOp::Sum),
        in_place: false,
        moves: |ranks| (1.0, 1.0 / ranks),
    },
    Collective {
        name: "all_to_all",
        run: |group, x| group.all_to_all(x, 0, 0),
        in_place: false,
        moves: |_| (1.0, 1.0),
    },
];

struct Options {
    pairs: usize,
    ranks: Vec<usize>,
    sizes: Vec<usize>,
    collectives: Vec<Collective>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).cloned()
    };
    let numbers = |name: &str, default: &str| -> Vec<usize> {
        let text = value(name).unwrap_or(default.to_string());
        text.split(',').map(|number| number.parse().unwrap_or_else(|_| panic!("{name} takes numbers"))).collect()
    };
    let only = value("--only").unwrap_or(COLLECTIVES.map(|collective| collective.name).join(","));
    let options = Options {
        pairs: numbers("--pairs", "30")[0],
        ranks: numbers("--ranks", "2,4"),
        sizes: numbers("--sizes", "1024,16384,262144,4194304,67108864"),
        collectives: COLLECTIVES.into_iter().filter(|c| only.split(',').any(|name| name == c.name)).collect(),
    };
    for ranks in &options.ranks {
        match (value("--gloo"), value("--mpi")) {
            (None, None) => beside_copy(&options, *ranks),
            (Some(python), _) => beside(&options, *ranks, "gloo", || gloo(&options, &python, *ranks)),
            (_, Some(program)) => beside(&options, *ranks, "Open MPI", || mpi(&options, &program, *ranks)),
        }
    }
}

fn beside_copy(options: &Options, ranks: usize) {
    head(ranks, "copy");
    for collective in &options.collectives {
        for bytes in &options.sizes {
            let times = run_ranks(ranks, |group| {
                let (reads, writes) = (collective.moves)(ranks as f64);
                let copied = ((reads + writes) / 2.0 * *bytes as f64) as usize;
                let (from, mut to) = (vec![1_u8; copied], vec![2_u8; copied]);
                let mut x = Some(buffer(*bytes));
                let times = (0..options.pairs + WARM_UP).map(|_| {
                    let times = repeats(*bytes);
                    let ours = repeat(&group, &mut x, times, collective);
                    group.barrier().expect("all ranks are here");
                    let begin = Instant::now();
                    (0..times).for_each(|_| to.copy_from_slice(core::hint::black_box(&from)));
                    (ours, begin.elapsed().as_secs_f64() / times as f64)
                });
                times.collect::<Vec<_>>().split_off(WARM_UP)
            });
            let slowest = |pick: fn(&(f64, f64)) -> f64| -> Vec<f64> {
                (0..options.pairs)
                    .map(|pair| times.iter().map(|times| pick(&times[pair])).fold(0.0, f64::max))
                    .collect()
            };
            row(collective.name, *bytes, slowest(|times| times.0), slowest(|times| times.1));
        }
    }
}

/// The seconds of a call in a row of several, when it is short.
fn repeat(group: &ProcessGroup, x: &mut Option<Tensor<1>>, times: usize, collective: &Collective) -> f64 {
    group.barrier().expect("all ranks are here");
    let begin = Instant::now();
    (0..times).for_each(|_| drop(collective.call(group, x)));
    begin.elapsed().as_secs_f64() / times as f64
}

impl Collective {
    /// Calls it with `x`; the result, if that is not in `x` then.
    fn call(&self, group: &ProcessGroup, x: &mut Option<Tensor<1>>) -> Option<Tensor<1>> {
        let given = if self.in_place { x.take() } else { x.clone() };
        let result = given.map(|x| (self.run)(group, x).expect("all ranks are here"));
        if self.in_place { core::mem::replace(x, result) } else { result }
    }
}

fn repeats(bytes: usize) -> usize {
    ((1 << 20) / bytes).clamp(1, 200)
}

/// Beside a peer, whose seconds of every size, of all collectives, `theirs` gives: none where it has no such one.
fn beside(options: &Options, ranks: usize, peer: &str, theirs: impl Fn() -> Vec<Option<f64>>) {
    let cells: Vec<_> =
        options.collectives.iter().flat_map(|c| options.sizes.iter().map(move |bytes| (c, *bytes))).collect();
    let mut times = vec![(Vec::new(), Vec::new()); cells.len()];
    for _ in 0..options.pairs {
        let theirs = theirs();
        assert_eq!(theirs.len(), cells.len(), "one time a size and collective");
        for (((collective, bytes), theirs), times) in cells.iter().zip(theirs).zip(&mut times) {
            if let Some(theirs) = theirs {
                times.0.push(ours(ranks, *bytes, collective));
                times.1.push(theirs);
            }
        }
    }
    head(ranks, peer);
    for ((collective, bytes), (ours, theirs)) in cells.into_iter().zip(times) {
        match ours.is_empty() {
            true => println!("{:16} {bytes:>10} unsupported by {peer}", collective.name),
            false => row(collective.name, bytes, ours, theirs),
        }
    }
}

/// The median seconds of a call, taken as the peers take them: on rank 0, each after a barrier.
fn ours(ranks: usize, bytes: usize, collective: &Collective) -> f64 {
    let times = run_ranks(ranks, |group| {
        let mut times = Vec::new();
        let mut x = Some(buffer(bytes));
        for _ in 0..TURN + WARM_UP {
            group.barrier().expect("all ranks are here");
            let begin = Instant::now();
            let result = collective.call(&group, &mut x);
            times.push(begin.elapsed().as_secs_f64());
            drop(result);
        }
        times.split_off(WARM_UP)
    });
    quartiles(times[0].clone())[1]
}

fn gloo(options: &Options, python: &str, ranks: usize) -> Vec<Option<f64>> {
    peer(options, Command::new(python).args(["-B", GLOO, "--ranks", &ranks.to_string()]))
}

fn mpi(options: &Options, program: &str, ranks: usize) -> Vec<Option<f64>> {
    let place = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"];
    peer(options, Command::new("mpirun").args(place).args([&ranks.to_string(), program]))
}

/// What a peer prints: one line a collective and size, `name bytes seconds`, or `name unsupported`.
fn peer(options: &Options, command: &mut Command) -> Vec<Option<f64>> {
    let sizes = options.sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let names = options.collectives.iter().map(|collective| collective.name).collect::<Vec<_>>().join(",");
    command.args(["--sizes", &sizes, "--only", &names, "--times", &TURN.to_string()]);
    command.args(["--warmup", &WARM_UP.to_string()]);
    let output = command.output().expect("the peer starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let time = |name: &str, bytes: usize| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} {bytes} ")));
        assert!(line.is_some() || text.contains(&format!("{name} unsupported")), "no {name} of {bytes} in\n{text}");
        line.map(|seconds| seconds.trim().parse().expect("a peer prints seconds"))
    };
    let cells = options.collectives.iter().flat_map(|collective| {
        let time = &time;
        options.sizes.iter().map(move |bytes| time(collective.name, *bytes))
    });
    cells.collect()
}

fn buffer(bytes: usize) -> Tensor<1> {
    Tensor::ones([bytes / 4], (&Device::flex(), DType::F32))
}

fn head(ranks: usize, peer: &str) {
    println!("\n{ranks} ranks");
    let ratio = format!("{peer} ÷ ours, time");
    println!("{:16} {:>10} {:>12} {:>14} {:>26}", "collective", "bytes", "ours us", format!("{peer} us"), ratio);
}

fn row(name: &str, bytes: usize, ours: Vec<f64>, theirs: Vec<f64>) {
    let ratios = theirs.iter().zip(&ours).map(|(theirs, ours)| theirs / ours).collect();
    let (ours, theirs) = (quartiles(ours)[1] * 1e6, quartiles(theirs)[1] * 1e6);
    println!("{name:16} {bytes:>10} {ours:>12.2} {theirs:>14.2} {:>26}", show(quartiles(ratios)));
}
