//! `epl-launch` with a program that trains: a run that is started again goes on from its checkpoint. What else becomes of
//! workers is tested beside the launcher, in `epl-launch/tests`.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::built;
use crate::launched::{LIMIT, folder, launch, signal, until};

/// The arguments of a run of `moe_t5` on four pairs.
fn moe_t5(folder: &Path, out: &str, steps: &str) -> Vec<String> {
    fs::write(folder.join("a.en"), "a dog runs\na cat sleeps\na dog sleeps\na cat runs\n").expect("a file");
    let german = "ein hund rennt\neine katze schläft\nein hund schläft\neine katze rennt\n";
    fs::write(folder.join("a.de"), german).expect("a file");
    let path = |name: &str| folder.join(name).to_str().expect("it is text").to_string();
    let fixed = ["--model", "moe_t5_numbers", "--vocab", "300", "--set", "train.save_every=5", "--steps", steps];
    let files = [built::example("moe_t5").to_str().expect("it is text").to_string(), "--source".into(), path("a.en")];
    let more = ["--target".into(), path("a.de"), "--out".into(), path(out)];
    files.into_iter().chain(more).chain(fixed.map(String::from)).collect()
}

#[test]
fn a_killed_run_goes_on_from_its_checkpoint_to_the_same_end() {
    const STEPS: &str = "60";
    let folder = folder("resumed files");
    let start = ["--num_workers", "2", "--start", "threads", "--max_restarts", "2", "--"];
    let run = |out: &str| {
        let program = moe_t5(&folder, out, STEPS);
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        launch(&format!("resumed {out}"), &[&start[..], &program].concat(), &[])
    };
    let mut parts = run("parts");
    let latest = folder.join("parts/checkpoints/latest");
    for restart in 0..2 {
        // After a checkpoint of its own, each time.
        let before = fs::read_to_string(&latest).unwrap_or_default();
        until("a checkpoint", LIMIT, || {
            let now = fs::read_to_string(&latest).unwrap_or_default();
            (now != before && !now.is_empty()).then_some(())
        });
        let program = parts
            .left()
            .into_iter()
            .find(|(_, command)| command.contains("moe_t5 --source") && !command.contains("epl-launch"));
        let (process, _) = program.unwrap_or_else(|| panic!("it runs:\n{}", parts.text()));
        signal(process, "KILL");
        parts.said(&format!("restart {} of 2", restart + 1), 1);
    }
    parts.end(LIMIT).expect(0, &["killed by signal 9 (SIGKILL)"]);
    run("whole").end(LIMIT).expect(0, &[]);
    let last = |out: &str| folder.join(out).join(format!("checkpoints/step-{STEPS}"));
    let compared = Command::new(env!("CARGO_BIN_EXE_epl-ckpt"))
        .arg("diff")
        .args([last("parts"), last("whole")])
        .stdin(Stdio::null())
        .output();
    let compared = compared.expect("epl-ckpt can be started");
    assert_eq!(compared.status.code(), Some(0), "{}", String::from_utf8_lossy(&compared.stdout));
}

/// Without a terminal, as lines; the last of them when all have ended.
#[test]
fn who_watches_sees_the_steps_of_all_ranks() {
    let folder = folder("watched files");
    let program = moe_t5(&folder, "out", "5");
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let start = ["--num_workers", "2", "--start", "threads", "--watch", "--"];
    let ended = launch("watched", &[&start[..], &program].concat(), &[]).end(LIMIT);
    ended.expect(0, &["epl-launch: rank 0: step 5/5, ", "epl-launch: rank 1: step 5/5, ", " tokens/s, "]);
    let lines: Vec<&str> = ended.text.lines().filter(|line| line.starts_with("epl-launch: rank ")).collect();
    assert!(lines[lines.len() - 2..].iter().all(|line| line.ends_with(", ended")), "{lines:?}");
}

#[test]
fn a_restart_goes_on_with_no_other_run_that_the_folder_holds() {
    let folder = folder("other run files");
    let run = |restarts: &str| {
        let program = moe_t5(&folder, "out", "5");
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        let start = ["--num_workers", "2", "--start", "threads", "--max_restarts", restarts, "--"];
        launch("other run", &[&start[..], &program].concat(), &[]).end(LIMIT)
    };
    run("0").expect(0, &[]);
    let ended = run("1");
    ended.expect(1, &["restart 1 of 1", "out holds a run; go on with it by `--out "]);
    assert_eq!(ended.text.matches("out holds a run").count(), 4, "each time, and as last words:\n{}", ended.text);
}
