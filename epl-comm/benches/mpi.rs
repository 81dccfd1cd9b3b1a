//! An all-reduce of a group over MPI, beside `MPI_Allreduce` of as many numbers by the same processes.
//!
//! ```text
//! cargo bench --workspace --features mpi --bench mpi [-- --pairs 40 --processes 2]
//! ```
//!
//! The program starts itself under `mpirun`. The two are measured in turn, each after a barrier, until the last process
//! has its result; what counts is the median of the ratios of the pairs. The group compares the calls, looks for
//! failures while it waits, and adds in the order of the members; `MPI_Allreduce` does neither.

#[path = "../../benches/quartiles.rs"]
mod quartiles;

use std::process::Command;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use epl_comm::{Error, ProcessGroup, ReduceOp};
use mpi::ffi;
use quartiles::{quartiles, show};

const WARM_UP: usize = 5;
const BYTES: [usize; 7] = [64, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20, 128 << 20];

fn main() {
    if epl_comm::mpi::is_launched() {
        if let Err((rank, error)) = epl_comm::mpi::run(measure) {
            println!("{rank}: {error}");
        }
        return;
    }
    let program = std::env::current_exe().expect("a program has a path");
    let status = Command::new("mpirun")
        .args(["--oversubscribe", "-n", &argument("--processes", 2).to_string()])
        .arg(program)
        .args(std::env::args().skip(1))
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .status();
    assert!(status.expect("`mpirun` is needed").success());
}

fn argument(name: &str, default: usize) -> usize {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == name);
    place.map_or(default, |place| arguments[place + 1].parse().expect("a number"))
}

fn measure(group: ProcessGroup) -> Result<(), Error> {
    let is_first = group.rank() == 0;
    if is_first {
        println!("{} processes, all_reduce(sum) of f32", group.size());
        println!("{:>10} {:>17} {:>12} {:>26}", "bytes", "MPI_Allreduce us", "group us", "MPI ÷ group, time");
    }
    for bytes in BYTES {
        let (mut theirs, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (from, mut to) = (vec![1.0_f32; bytes / 4], vec![0.0_f32; bytes / 4]);
        let mut kept = Some(Tensor::<1>::ones([bytes / 4], (&Device::flex(), DType::F32)));
        for number in 0..WARM_UP + argument("--pairs", 40) {
            let mut pair = [0.0; 2];
            // Each does in turn what comes first.
            for way in [number % 2, 1 - number % 2] {
                pair[way] = timed(&group, || match way {
                    0 => all_reduce(&from, &mut to),
                    _ => {
                        let x = kept.take().expect("it was put back");
                        kept = Some(group.all_reduce(x, ReduceOp::Sum)?);
                        Ok(())
                    }
                })?;
            }
            if number >= WARM_UP {
                theirs.push(pair[0] * 1e6);
                ours.push(pair[1] * 1e6);
                ratios.push(pair[0] / pair[1]);
            }
        }
        assert!(to.iter().all(|sum| *sum == group.size() as f32));
        if is_first {
            let [theirs, ours] = [theirs, ours].map(|times| quartiles(times)[1]);
            println!("{bytes:>10} {theirs:>17.1} {ours:>12.1} {:>26}", show(quartiles(ratios)));
        }
    }
    Ok(())
}

/// Seconds until the last one is done.
fn timed(group: &ProcessGroup, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    group.barrier()?;
    let begun = Instant::now();
    work()?;
    Ok(group.all_reduce_values(&[begun.elapsed().as_secs_f64()], ReduceOp::Max)?[0])
}

fn all_reduce(from: &[f32], to: &mut [f32]) -> Result<(), Error> {
    let (count, sum) = (from.len() as i32, to.as_mut_ptr().cast());
    // SAFETY: two buffers of so many numbers, which live until the call is over; the library is on, as a group of it is
    // in use.
    let code = unsafe {
        let (kind, op, world) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, ffi::RSMPI_COMM_WORLD);
        ffi::MPI_Allreduce(from.as_ptr().cast(), sum, count, kind, op, world)
    };
    assert_eq!(code, 0, "MPI_Allreduce");
    Ok(())
}
