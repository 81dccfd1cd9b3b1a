//! Burn's learner in two processes, each with a rank: what one rank learns, and how such a run ends.

#[allow(dead_code)] // Shared with the program `layouts`.
#[path = "../layouts/learner/small.rs"]
mod small;

use std::fs;
use std::path::{Path, PathBuf};

use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_train::{Learner, LearningResult, SupervisedTraining};
use epl::Config;
use epl::comm::mpi;
use epl::train::DataParallel;
use small::parameters;

/// In the environment: where the runs write.
const FOLDER: &str = "EPL_TEST_MPI_FOLDER";

/// Runs the learner on the ranks of both processes, in a folder of the run's.
fn learn(training: impl Fn(&Path) -> SupervisedTraining<small::Net>, net: &small::Net) -> LearningResult<small::Net> {
    let config = Config::new().with("cluster.ranks", 1).expect("a number of ranks");
    let strategy = DataParallel::new(&config.with("zero.level", "v1").expect("a level"), SgdConfig::new());
    let folder = tempfile::tempdir().expect("a folder");
    let training = training(folder.path()).with_training_strategy(strategy.expect("valid options").into());
    training.launch(Learner::new(net.clone(), SgdConfig::new().init(), 1e-1))
}

/// What the processes do.
#[test]
fn runs() {
    if !mpi::is_launched() {
        return;
    }
    let device = Device::default().autodiff();
    device.seed(1);
    let net = small::Net::new(&device);
    let process = mpi::place().expect("`mpirun` has started this process").process;
    let alone = tempfile::tempdir().expect("a folder");
    let alone = small::training(alone.path(), 2).launch(Learner::new(net.clone(), SgdConfig::new().init(), 1e-1));
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("the test says"));

    let both = learn(|_| small::training(&folder.join(process.to_string()), 2), &net);
    assert!(both.error.is_none(), "{:?}", both.error);
    for (found, expected) in parameters(&both.model).iter().zip(parameters(&alone.model)) {
        assert!((found - expected).abs() <= 1e-6, "{found} is not {expected}");
    }

    // The first process, which has the metrics, is asked to stop.
    let stopped = |folder: &Path| {
        let training = small::training(folder, 6);
        let interrupter = training.interrupter();
        training.metric_valid(small::Interrupts(interrupter))
    };
    let interrupted = learn(stopped, &net).interrupted.expect("it was interrupted");
    assert_eq!(interrupted.reason.as_deref(), Some("enough"), "of process {process}");

    // One that cannot read ends the run in both.
    let fails = if process == 1 { small::Fails::Read } else { small::Fails::Nothing };
    let unread = learn(|folder| small::failing(folder, fails), &net);
    let text = unread.error.expect("a loader has failed").to_string();
    assert!(text.contains("no file 5"), "of process {process}: {text}");
    assert_ne!(parameters(&unread.model), parameters(&net));

    let shuffled = learn(|folder| small::failing(folder, small::Fails::Shuffle(process as u64)), &net);
    let text = shuffled.error.expect("other batches are refused").to_string();
    assert!(text.contains("each process iterates its own loader"), "of process {process}: {text}");
    println!("process {process} has run all");
}

#[test]
fn two_processes_learn_as_one_rank() {
    if mpi::is_launched() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let text = crate::processes(2, "learner::runs", &[(FOLDER, &folder.path().to_string_lossy())]);
    assert_eq!(text.matches(" has run all").count(), 2, "{text}");
    // The first one alone writes.
    let written = |process: &str| fs::read_dir(folder.path().join(process).join("train")).is_ok();
    assert_eq!([written("0"), written("1")], [true, false]);
}
