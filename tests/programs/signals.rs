//! SIGTERM and Ctrl-C end a run after its step, saved; the next run goes on with it. A second one ends the process. A
//! folder has one run at a time.
//!
//! The example is run as a user runs it; `cargo test` has built it.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use epl::data::{ShuffledSampler, TrainData};
use epl::trainer::{StopHandle, Trainer};
use epl::{Place, WithLoss, launch, testing};
use serde_json::Value;

use crate::built;

/// How long a process may take for anything, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(300);
/// What two runs of the same steps do not have in common.
const TIMES: [&str; 4] = ["seconds", "data_wait", "data_ahead", "tokens_per_second"];

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.0.id().to_string()).status();
        assert!(sent.expect("there is a `kill`").success());
    }

    /// Waits until it has ended.
    fn status(&mut self) -> ExitStatus {
        until("the process ends", || self.0.try_wait().expect("it can be waited for"))
    }
}

/// Waits for a condition.
fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(met) = condition() {
            return met;
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `moe_t5` on a corpus of four pairs, in a folder of its own.
fn run(folder: &Path, out: &str, steps: usize, resume: bool) -> Process {
    run_with(folder, out, out, &["--steps", &steps.to_string()], resume)
}

/// The same with these arguments, and what it says in `log`.
fn run_with(folder: &Path, out: &str, log: &str, arguments: &[&str], resume: bool) -> Process {
    let mut command = built::command(built::example("moe_t5"));
    command.arg("--source").arg(folder.join("a.en")).arg("--target").arg(folder.join("a.de"));
    command.args(["--model", "moe_t5_numbers", "--vocab", "300"]).args(arguments);
    command.arg("--out").arg(folder.join(out)).args(resume.then_some("--resume"));
    let log = fs::File::create(folder.join(format!("{log}.log"))).expect("a file can be made");
    command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    Process(command.spawn().expect("the example was built; run `cargo test`, not this binary alone"))
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("signals").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder can be made");
    fs::write(folder.join("a.en"), "a dog runs\na cat sleeps\na dog sleeps\na cat runs\n").expect("a file");
    let german = "ein hund rennt\neine katze schläft\nein hund schläft\neine katze rennt\n";
    fs::write(folder.join("a.de"), german).expect("a file");
    folder
}

/// The steps of a run, without what depends on time.
fn steps(folder: &Path, out: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(out).join("metrics.jsonl")).unwrap_or_default();
    let line = |line: &str| {
        let mut step: Value = serde_json::from_str(line).expect("a line is an object");
        let fields = step.as_object_mut().expect("a line is an object");
        fields.retain(|key, _| !TIMES.contains(&key.as_str()));
        step
    };
    // The last line may be in the making.
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(line).collect()
}

/// Starts a run without end, signals it after its first steps, and goes on with it for three more.
fn goes_on_after(signal: &str, code: i32) {
    let folder = folder(signal);
    let log = |out: &str| fs::read_to_string(folder.join(format!("{out}.log"))).unwrap_or_default();
    let mut process = run(&folder, "parts", 1_000_000, false);
    until("the first line", || {
        assert!(process.0.try_wait().expect("it can be waited for").is_none(), "{}", log("parts"));
        (!steps(&folder, "parts").is_empty()).then_some(())
    });
    process.signal(signal);
    assert_eq!(process.status().code(), Some(code), "{}", log("parts"));
    assert!(
        log("parts").contains("stopped after step") && log("parts").contains("--resume` goes on"),
        "{}",
        log("parts")
    );

    let done = steps(&folder, "parts").len();
    assert!(done > 0 && done < 1_000_000);
    assert!(run(&folder, "parts", done + 3, true).status().success(), "{}", log("parts"));
    assert!(run(&folder, "whole", done + 3, false).status().success(), "{}", log("whole"));
    let (parts, whole) = (steps(&folder, "parts"), steps(&folder, "whole"));
    assert_eq!(parts.len(), done + 3);
    // Also the losses of the last three steps, which are those of the saved parameters.
    assert_eq!(parts, whole);
}

#[test]
fn a_run_goes_on_after_a_sigterm() {
    goes_on_after("TERM", 143);
}

#[test]
fn a_run_goes_on_after_a_ctrl_c() {
    goes_on_after("INT", 130);
}

/// What the next test starts: waits to be asked to stop, and then does not.
#[test]
fn stubborn() {
    if std::env::var_os("EPL_TEST_STUBBORN").is_none() {
        return;
    }
    let stop = StopHandle::on_signals().expect("signals can be handled");
    println!("\nwaits");
    until("a signal", || stop.is_requested().then_some(()));
    println!("\nasked: {}", stop.is_interrupted());
    until("nothing", || None::<()>);
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    for (first, second, status) in [("INT", "INT", 130), ("TERM", "INT", 130), ("INT", "TERM", 143)] {
        let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
        command
            .args(["--exact", "signals::stubborn", "--nocapture"])
            .env("EPL_TEST_STUBBORN", "1")
            .stdout(Stdio::piped());
        let mut process = Process(command.spawn().expect("a test can be started"));
        let mut lines = BufReader::new(process.0.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "waits"));
        process.signal(first);
        assert!(lines.any(|line| line == "asked: true"));
        process.signal(second);
        assert_eq!(process.status().code(), Some(status), "{first}, {second}");
    }
}

#[test]
fn a_folder_has_one_run_at_a_time() {
    let folder = folder("one at a time");
    let log = |log: &str| fs::read_to_string(folder.join(format!("{log}.log"))).unwrap_or_default();
    let endless = ["--steps", "1000000", "--set", "train.save_every=1"];
    let mut first = run_with(&folder, "out", "first", &endless, false);
    until("the first checkpoint", || {
        assert!(first.0.try_wait().expect("it can be waited for").is_none(), "{}", log("first"));
        folder.join("out/checkpoints/latest").exists().then_some(())
    });
    let tokenizer = fs::read(folder.join("out/tokenizer.json")).expect("it was learned");
    for resume in [true, false] {
        let mut second = run_with(&folder, "out", "second", &["--steps", "1"], resume);
        let code = second.status().code();
        let said = log("second");
        assert_eq!(code, Some(2), "{said}");
        let holder = format!("process {}", first.0.id());
        assert!(said.contains("is in use by") && said.contains(&holder) && said.contains(" on "), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    assert_eq!(fs::read(folder.join("out/tokenizer.json")).expect("it is there"), tokenizer);
    assert!(first.0.try_wait().expect("it can be waited for").is_none(), "{}", log("first"));
    // The system releases what a killed process held.
    drop(first);
    let done = steps(&folder, "out").len();
    let mut again = run(&folder, "out", done + 3, true);
    assert!(again.status().success(), "{}", log("out"));
    assert_eq!(steps(&folder, "out").len(), done + 3);
}

/// Numbers as a column.
struct Column;

impl Batcher<f32, Tensor<2>> for Column {
    fn batch(&self, numbers: Vec<f32>, device: &Device) -> Tensor<2> {
        Tensor::<1>::from_floats(numbers.as_slice(), device).unsqueeze_dim(1)
    }
}

/// What the next test starts: trains without end on two ranks, and says nothing of signals but what it is told to.
#[test]
fn trains() {
    let (Some(out), Ok(what)) = (std::env::var_os("EPL_TEST_OUT"), std::env::var("EPL_TEST_SIGNALS")) else { return };
    let own = (what == "handled").then(|| StopHandle::on_signals().expect("signals can be handled"));
    if let Some(own) = own {
        std::thread::spawn(move || {
            until("a signal", || own.is_interrupted().then_some(()));
            std::process::exit(7);
        });
    }
    if what == "later" {
        assert!(train(1, &PathBuf::from(&out).join("before"), None).is_ok());
    }
    let stop = match what.as_str() {
        "left" => Some(StopHandle::new()),
        "later" => Some(StopHandle::on_signals().expect("signals can be handled")),
        _ => None,
    };
    let ran = train(1_000_000, Path::new(&out), stop);
    println!("\nends: {:?}", ran.err());
}

/// So many steps on two ranks.
fn train(steps: u64, out: &Path, stop: Option<StopHandle>) -> epl::Result<()> {
    let config = testing::config(2, 1, 1).with("train.steps", steps).expect("an option");
    launch(&config, |epl| {
        let loss = |net: &Linear, x: &Tensor<2>| net.forward(x.clone()).powi_scalar(2).mean();
        let layer = |at: &Place| WithLoss::new(LinearConfig::new(1, 2).init(at), loss);
        let data = InMemDataset::new((0..10).map(|number| number as f32).collect());
        let data = TrainData::new(data, Column, ShuffledSampler::new(10, 4, 0)?)?;
        let trainer = Trainer::build(&epl, layer, &AdamWConfig::new())?.quiet();
        let trainer = trainer.with_settings(|run| run.with_out(Some(out.to_path_buf())));
        let trainer = match &stop {
            Some(stop) => trainer.with_stop(stop.clone()),
            None => trainer,
        };
        if trainer.fit(&data)?.summary.stopped {
            println!("\nafter the run");
        }
        Ok(())
    })
    .map(drop)
}

/// How a program ends that gets this signal in the midst of a run, and whether the run was saved.
fn signalled(what: &str, signal: &str) -> (ExitStatus, bool) {
    let folder = folder(&format!("{what} {signal}"));
    // A shell's background job, as which the tests may run, ignores SIGINT, and so do those whom it starts.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM").arg(std::env::current_exe().expect("a test has a path"));
    // In whichever test program this file is a module.
    let test = module_path!().split_once("::").map_or("trains".into(), |(_, module)| format!("{module}::trains"));
    command.args(["--exact", &test, "--nocapture"]).env("EPL_TEST_SIGNALS", what);
    let log = fs::File::create(folder.join("log")).expect("a file can be made");
    command.env("EPL_TEST_OUT", folder.join("out")).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    let mut process = Process(command.spawn().expect("a test can be started"));
    let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    until("the first line", || {
        assert!(process.0.try_wait().expect("it can be waited for").is_none(), "{}", log());
        (!steps(&folder, "out").is_empty()).then_some(())
    });
    process.signal(signal);
    let status = process.status();
    let goes_on = [log().contains("after the run"), log().contains("ends: None")];
    assert_eq!(goes_on, [what == "later"; 2], "{}", log());
    (status, folder.join("out/checkpoints/latest").exists())
}

#[test]
fn a_trainer_that_is_told_nothing_saves_before_the_signal_ends_the_process() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let (status, is_saved) = signalled("default", signal);
        assert_eq!((status.code(), is_saved), (Some(code), true), "{signal}");
    }
}

#[test]
fn signals_that_a_program_handles_or_leaves_to_the_system_stay_so() {
    let (status, is_saved) = signalled("handled", "TERM");
    assert_eq!((status.code(), is_saved), (Some(7), false));
    let (status, is_saved) = signalled("left", "TERM");
    assert_eq!((status.signal(), is_saved), (Some(15), false));
}

#[test]
fn signals_that_a_program_takes_over_after_a_run_are_its_own() {
    for signal in ["TERM", "INT"] {
        let (status, is_saved) = signalled("later", signal);
        assert_eq!((status.code(), is_saved), (Some(0), true), "{signal}: {status}");
    }
}
