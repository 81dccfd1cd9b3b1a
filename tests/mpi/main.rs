//! Ranks in several processes compute what one rank does: in f64, all errors are at most 1e-10.
//!
//! This program starts itself under `mpirun`. In each process `layouts` then runs one layout after the other, as a run
//! over MPI, and compares it with a run on one rank of that process.

#[cfg(feature = "ndarray")]
mod another_backend;
mod job;
mod learner;
#[path = "../layouts/parity/mod.rs"]
mod parity;

use std::time::Duration;

use burn::tensor::{Device, FloatDType};
use epl::comm::mpi;
use epl::config::{PipelineStrategy, StateTier, ZeroLevel};
use parity::{Case, Layout, dense, layout, moe};

/// In the environment: how many ranks are in each process.
const RANKS: &str = "EPL_TEST_MPI_RANKS";

/// What is compared with so many ranks.
fn cases(ranks: usize) -> Vec<(Case, Layout)> {
    let pipeline = PipelineStrategy::PreferBackward;
    match ranks {
        2 => vec![
            (moe(), layout(2, 1, 1, 1)),
            (moe().sgd(), layout(2, 1, 2, 2)),
            (dense(), layout(1, 2, 1, 1)),
            (moe(), layout(1, 2, 1, 1)),
            (moe(), layout(1, 1, 1, 3).stages(2, 1, pipeline)),
            (dense(), layout(2, 1, 1, 2).zero(ZeroLevel::V1)),
            (moe(), layout(2, 1, 1, 2).zero(ZeroLevel::V3)),
            (moe(), layout(2, 1, 2, 1).zero(ZeroLevel::V2).offload(StateTier::Host)),
            (moe().half_ignored(), layout(2, 1, 2, 1)),
            (dense().samples(1), layout(2, 1, 1, 1)),
        ],
        4 => vec![
            (moe(), layout(4, 1, 2, 1)),
            (moe(), layout(4, 1, 4, 1)),
            (moe(), layout(2, 2, 2, 1)),
            (dense(), layout(1, 4, 1, 2)),
            (dense(), layout(2, 1, 1, 2).stages(2, 1, pipeline)),
            (moe(), layout(1, 2, 1, 2).stages(2, 1, pipeline)),
            (moe(), layout(2, 2, 1, 1).zero(ZeroLevel::V3)),
            (dense(), layout(4, 1, 1, 1).zero(ZeroLevel::V0)),
        ],
        ranks => panic!("no layouts of {ranks} ranks"),
    }
}

/// What the processes do.
#[test]
fn layouts() {
    if !mpi::is_launched() {
        return;
    }
    Device::default().configure(FloatDType::F64).expect("no tensor was made before");
    let ranks: usize = std::env::var(RANKS).expect("the test says").parse().expect("a number");
    let place = mpi::place().expect("`mpirun` has started this process");
    for (case, layout) in cases(place.processes * ranks) {
        let mut config = layout.config();
        config.cluster.ranks = Some(ranks);
        let got = parity::train_as(&case, layout, &config);
        parity::assert_same(layout, &got, &parity::train_alone(&case), 1e-10);
        println!("{} processes of {ranks}: {layout:?}", place.processes);
    }
}

/// Runs [`layouts`] in so many processes of so many ranks.
fn over(processes: usize, ranks: usize) {
    if mpi::is_launched() {
        return;
    }
    let text = self::processes(processes, "layouts", &[(RANKS, &ranks.to_string())]);
    let compared = format!("{processes} processes of {ranks}: ");
    assert_eq!(text.matches(&compared).count(), processes * cases(processes * ranks).len(), "{text}");
}

/// Runs a test of this program in so many processes; what they print.
fn processes(count: usize, test: &str, environment: &[(&str, &str)]) -> String {
    let output = epl_testing::mpirun(count, Duration::from_secs(300), |command| {
        let command = command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.envs(environment.iter().copied()).output()
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn two_processes() {
    over(2, 1);
}

#[test]
fn four_processes() {
    over(4, 1);
}

#[test]
fn two_processes_of_two_ranks() {
    over(2, 2);
}

#[test]
fn one_process_of_two_ranks() {
    over(1, 2);
}
