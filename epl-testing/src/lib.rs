//! Tests that need a process of their own, or several, and numbers that are not drawn.
//!
//! Some state is a whole process's: the element type of a device, the counts of an allocator, Burn's random generator,
//! what the system says is resident. A test of such state is an ordinary test whose body is given to [`alone`] or
//! `in_f64` (feature `burn`): the test program starts itself again for that one test. So a crate needs one test program.
#![allow(clippy::panic, clippy::expect_used, reason = "tests fail by panics")]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::process::Command;
use std::time::Duration;

#[cfg(feature = "burn")]
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

/// Runs the body of a test in a process of its own.
///
/// To be called by the test function itself with a closure written there: the closure's type tells the test's name.
///
/// # Panics
/// If that process fails. What it printed becomes output of this test.
pub fn alone<F: FnOnce()>(test: F) {
    alone_after(|| (), test);
}

/// Runs the rest of a test in a process of its own; to be called by the test of this name, in whatever function it is.
///
/// # Panics
/// As [`alone`] does.
pub fn alone_as(name: &str, rest: impl FnOnce()) {
    let ran = format!("{name} ran in a process of its own");
    let in_parent = |child: &mut rusty_fork::ChildWrapper, output: &mut File| {
        let status = child.wait()?;
        let mut text = Vec::new();
        output.seek(SeekFrom::Start(0))?;
        output.read_to_end(&mut text)?;
        Ok((status, String::from_utf8_lossy(&text).contains(&ran)))
    };
    let in_child = || {
        rest();
        println!("{ran}");
    };
    let result: io::Result<_> = rusty_fork::fork(name, name, |_| (), in_parent, in_child)
        .unwrap_or_else(|error| panic!("{name}: no process of its own was started: {error}"));
    let (status, ran) = result.unwrap_or_else(|error| panic!("{name}: its process was lost: {error}"));
    assert!(status.success(), "{name}, in a process of its own: {status}");
    // A process that finds no test of this name ends well, too.
    assert!(
        ran,
        "{name}, in a process of its own: it did not run; its closure must stand in it, or it must have this name"
    );
}

/// Runs the body of a test in a process of its own, in which floats are f64.
///
/// # Panics
/// As [`alone`] does.
#[cfg(feature = "burn")]
pub fn in_f64<F: FnOnce()>(test: F) {
    alone_after(|| Device::default().configure(FloatDType::F64).expect("no tensor was made before"), test);
}

/// Runs this test program as so many processes over MPI, by a command to which `run` adds its arguments, and ends them when they
/// take too long.
///
/// # Panics
/// If `run` fails, as without `timeout` of coreutils.
pub fn mpirun<T>(processes: usize, limit: Duration, run: impl FnOnce(&mut Command) -> io::Result<T>) -> T {
    let sessions = tempfile::tempdir().expect("a folder for a moment");
    let program = std::env::current_exe().expect("a program has a file");
    let (limit, processes) = (limit.as_secs().to_string(), processes.to_string());
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", &limit, "mpirun", "--oversubscribe", "-n", &processes])
        .arg(program)
        // As in a container, where there is no other user.
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        // Else Open MPI 4 has one folder for all jobs of a user. The job that ends last removes it, and one that begins at that
        // moment fails for want of it.
        .env("OMPI_MCA_orte_tmpdir_base", sessions.path());
    run(&mut command).expect("`timeout` of coreutils")
}

/// The description of a cluster: ranks of one host, each call of which takes ten microseconds at least.
pub fn one_host(ranks: usize) -> String {
    let link = "{ alpha_us = 10, gb_per_s = 1 }";
    format!(
        "[[host]]\ncount = 1\ninside = {link}\noutside = {link}\ndevices = [{{ class = \"any\", count = {ranks} }}]\n\
         [class.any]\nmemory_gb = 1\ntflops = 1\nmemory_gb_per_s = 1\n"
    )
}

/// The largest of some errors; no number where one of them is none, which no bound admits: `f64::max` would leave it out.
pub fn largest(errors: impl IntoIterator<Item = f64>) -> f64 {
    errors
        .into_iter()
        .fold(0.0, |largest: f64, error| if largest.is_nan() || error <= largest { largest } else { error })
}

/// Numbers between -1 and 1 without a pattern that a wrong index could share.
///
/// Not drawn: Burn's generator is the whole process's, so that a test that draws changes what the tests beside it draw, where
/// these have seeded it.
pub fn numbers(seed: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0).collect()
}

/// A float tensor of such numbers, in the device's default type.
#[cfg(feature = "burn")]
pub fn tensor<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers(seed, shape.iter().product()), shape), device)
}

fn alone_after<F: FnOnce()>(setup: impl FnOnce(), test: F) {
    alone_as(test_of(std::any::type_name::<F>()), || {
        setup();
        test();
    });
}

/// The test in which a closure of this type stands: `program::module::test::{{closure}}`.
fn test_of(closure: &'static str) -> &'static str {
    let path = closure.split_once("::").map_or(closure, |(_program, path)| path);
    path.trim_end_matches("::{{closure}}")
}
