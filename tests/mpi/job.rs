//! The main job as `epl-launch` starts it: over workers and ranks in every way, its losses are those of one rank.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use epl::comm::mpi;
use serde_json::Value;

const STEPS: &str = "6";

/// What is built beside the tests.
fn built(name: &str) -> PathBuf {
    let here = env::current_exe().expect("a test has a path");
    let path = here.parent().and_then(Path::parent).expect("tests are built in a folder").join(name);
    assert!(path.is_file(), "there is no {}; `.ci/mpi` has the command that makes it", path.display());
    path
}

/// An empty folder.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("main job");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// Runs the job by what starts it, on so many ranks.
fn run(starter: &[&str], ranks: usize, out: &Path, more: &[&str]) -> Output {
    let (example, ranks) = (built("examples/moe_t5"), ranks.to_string());
    let expert = if ranks == "1" { "1" } else { "2" };
    let program = ["--data", &ranks, "--expert", expert, "--steps", STEPS, "--out"];
    let mut command = match starter {
        [] => Command::new(&example),
        options => {
            let mut command = Command::new(built("epl-launch"));
            command.args(options).arg("--").arg(&example);
            command
        }
    };
    let output = command.args(program).arg(out).args(more).env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    let output = output.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{starter:?}: {}\n{text}", String::from_utf8_lossy(&output.stdout));
    output
}

/// The loss of each step.
fn losses(out: &Path) -> Vec<f64> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).expect("a run writes its metrics");
    let line = |line: &str| serde_json::from_str::<Value>(line).expect("a line is an object");
    text.lines().filter_map(|text| line(text)["loss"].as_f64()).collect()
}

/// The traces of two workers make one, in which no rank leaves a collective of all before each has come.
fn assert_joined(first: &Path, ranks: usize) {
    let (second, joined) = (first.with_extension("worker1.json"), first.with_extension("joined.json"));
    epl::probe::join_traces(&[first, &second], &joined).expect("both processes have traced the same steps");
    let document: Value = serde_json::from_slice(&fs::read(&joined).expect("it is written")).expect("it is JSON");
    let mut calls: BTreeMap<u64, Vec<[f64; 2]>> = BTreeMap::new();
    for event in document["traceEvents"].as_array().expect("events") {
        let is_of_all = event["args"]["group"] == "world" && event["name"] == "all_reduce(sum)";
        if let (true, Some(call)) = (is_of_all, event["args"]["call"].as_u64()) {
            let begin = event["ts"].as_f64().expect("a time");
            calls.entry(call).or_default().push([begin, begin + event["dur"].as_f64().expect("a time")]);
        }
    }
    assert!(calls.len() >= 5, "a step has one at least: {}", calls.len());
    for (call, spans) in calls {
        let last = spans.iter().map(|span| span[0]).fold(f64::MIN, f64::max);
        let first = spans.iter().map(|span| span[1]).fold(f64::MAX, f64::min);
        assert_eq!(spans.len(), ranks, "call {call}");
        // The clocks of one host do not drift in a second.
        assert!(last <= first + 5.0, "call {call}: the last comes at {last} µs, the first leaves at {first}");
    }
}

#[test]
fn the_main_job_computes_the_same_over_any_workers() {
    if mpi::is_launched() {
        return;
    }
    let folder = folder();
    let alone = folder.join("alone");
    run(&[], 1, &alone, &[]);
    let expected = losses(&alone);
    assert_eq!(expected.len().to_string(), STEPS);
    for (workers, ranks) in [(2, 1), (1, 2), (2, 2)] {
        let out = folder.join(format!("{workers} of {ranks}"));
        let (num_workers, per_worker) = (workers.to_string(), ranks.to_string());
        let starter = ["--num_workers", &num_workers, "--gpu_per_worker", &per_worker, "--start", "mpi"];
        let total = workers * ranks;
        let plan = run(&starter, total, &out, &["--plan"]);
        let text = String::from_utf8_lossy(&plan.stdout);
        let hosts = if workers > 1 { " on 1 host; " } else { "" };
        let said = format!("worker_num {workers}, total_gpu_num {total}{hosts}");
        assert_eq!(text.matches(&said).count(), 1, "`{said}`, by the first rank only:\n{text}");
        let trace = folder.join(format!("{workers} of {ranks}.json"));
        run(&starter, total, &out, &["--trace", &trace.to_string_lossy()]);
        if workers > 1 {
            assert_joined(&trace, total);
        }
        let got = losses(&out);
        assert_eq!(got.len(), expected.len(), "{workers} × {ranks}");
        for (step, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let error = (got - expected).abs() / expected;
            assert!(error <= 1e-5, "{workers} × {ranks}, step {step}: loss {got} instead of {expected}");
        }
    }
}
