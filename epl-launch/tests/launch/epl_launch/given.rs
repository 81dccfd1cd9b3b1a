//! What a program is given: its arguments, whole, and GPUs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use crate::launched::{LIMIT, folder, launch, launcher, script};

#[test]
fn a_script_is_run_by_bash_and_workers_know_who_they_are() {
    let folder = folder("script");
    let file = folder.join("train.sh");
    fs::write(&file, "echo \"$1: ${BASH_VERSION:+bash}\"; env | grep ^EPL_LAUNCH_ | sort\n")
        .expect("a file can be written");
    let arguments =
        ["--num-workers=2", "--gpu-per-worker", "3", "--start=processes", "--", file.to_str().expect("text"), "--x"];
    let ended = launch("bash", &arguments, &[]).end(LIMIT);
    ended.expect(
        0,
        &[
            "epl-launch: 2 processes, 3 ranks each (--start processes)",
            "[worker 1] --x: bash",
            "[worker 1] EPL_LAUNCH_ID=",
            "[worker 1] EPL_LAUNCH_LOCAL_RANKS=3",
            "[worker 1] EPL_LAUNCH_LOCAL_WORKER=1",
            "[worker 1] EPL_LAUNCH_RENDEZVOUS=127.0.0.1:",
            "[worker 1] EPL_LAUNCH_RESTART=0",
            "[worker 1] EPL_LAUNCH_TRANSPORT=nccl",
            "[worker 1] EPL_LAUNCH_WORKER=1",
            "[worker 1] EPL_LAUNCH_WORKERS=2",
        ],
    );
    assert!(!ended.text.contains("KEEPER"), "{}", ended.text);
    // Without anything between processes it is one, and it says so.
    let arguments = ["--num_workers", "2", "--gpu_per_worker", "3", file.to_str().expect("text")];
    let ended = launch("bash", &arguments, &[("PATH", "/nowhere:/usr/bin:/bin")]).end(LIMIT);
    ended.expect(
        0,
        &["one process with 2 × 3 ranks as threads", "[worker 0] EPL_LAUNCH_LOCAL_RANKS=6", "TRANSPORT=threads"],
    );
}

#[test]
fn long_arguments_and_those_that_are_no_text_arrive() {
    let long = "x".repeat(120_000);
    let text = "for word in \"$@\"; do echo \"of ${#word}\"; done; printf '%s' \"$4\" | od -An -tx1";
    let mut command = Command::new(launcher());
    command.args(["--start", "threads", "--", "bash", "-c", text, "name", &long, &long, &long]);
    let output = command.arg(OsStr::from_bytes(b"\xff\xfe")).stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.matches("[worker 0] of 120000\n").count(), 3, "{said}");
    assert!(said.contains("[worker 0]  ff fe"), "{said}");
}

/// A driver's program that shows two GPUs, of which something runs on one.
fn with_gpus(name: &str) -> String {
    let folder = folder(name);
    let file = folder.join("nvidia-smi");
    let text = "#!/bin/sh\ncase $1 in *compute-apps*) echo GPU-b;; *) printf '0, GPU-a\\n1, GPU-b\\n';; esac\n";
    fs::write(&file, text).expect("a file can be written");
    Command::new("chmod").arg("+x").arg(&file).status().expect("there is a chmod");
    format!("{}:/usr/bin:/bin", folder.to_str().expect("it is text"))
}

#[test]
fn gpus_are_asked_for_where_they_are_used_only() {
    let path = with_gpus("driver");
    let text = "echo \"sees ${CUDA_VISIBLE_DEVICES-all} by ${CUDA_DEVICE_ORDER-speed}\"";
    let run = |more: &[&str], device: &[(&str, &str)]| {
        let environment = [&[("PATH", path.as_str())], device].concat();
        launch("gpus", &script(&[&["--num_workers", "3"], more].concat(), text), &environment).end(LIMIT)
    };
    run(&["--start", "processes"], &[]).expect(2, &["3 ranks on this machine need as many GPUs, and 1 of 2"]);
    run(&["--start", "threads"], &[]).expect(0, &["GPUs 0, shared by 3 ranks", "sees 0 by PCI_BUS_ID"]);
    run(&["--start", "threads"], &[("BURN_DEVICE", "flex")]).expect(0, &["sees all"]);
    run(&[], &[("BURN_DEVICE", "flex")]).expect(0, &["no GPU"]);
    let given = ["--start", "threads", "--run_visible_devices"];
    run(&[&given[..], &["1,0"]].concat(), &[]).expect(0, &["sees 1,0 by PCI_BUS_ID"]);
    // Those are CUDA's numbers.
    run(&["--start", "threads"], &[("CUDA_VISIBLE_DEVICES", "1")]).expect(0, &["sees 1 by speed"]);
    run(&[&given[..], &["0,7"]].concat(), &[]).expect(2, &["there is no GPU `7`; this machine has 2: 0,1"]);
    run(&[&given[..], &["0"]].concat(), &[("BURN_DEVICE", "flex")]).expect(2, &["leave one of them out"]);
}
