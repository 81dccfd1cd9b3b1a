//! `epl plot` as a user runs it.

use std::fs;
use std::path::Path;
use std::process::Command;

fn plot(folder: &Path, arguments: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epl"));
    command.arg("plot").args(arguments.split_whitespace()).current_dir(folder);
    let ran = command.output().expect("it can be started");
    (ran.status.code(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
}

#[test]
fn runs_are_drawn_together_and_what_cannot_be_drawn_is_told() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    for (run, steps) in [("first", 9), ("second", 4)] {
        let line =
            |step: u64| format!("{{\"step\":{step},\"loss\":{},\"terms\":{{\"error\":0.5}}}}\n", 1.0 / step as f64);
        fs::create_dir(folder.path().join(run)).expect("a folder");
        let log = (1..=steps).map(line).collect::<String>();
        fs::write(folder.path().join(run).join("metrics.jsonl"), log).expect("a log");
    }
    for (arguments, value) in [("", "loss"), (" --key terms/error", "terms/error")] {
        let (code, said) = plot(folder.path(), &format!("first second --out both.svg{arguments}"));
        assert_eq!((code, said), (Some(0), format!("both.svg shows {value} of 2 runs\n")));
        let picture = fs::read_to_string(folder.path().join("both.svg")).expect("a picture");
        for part in ["first", "second", value] {
            assert!(picture.contains(part), "{part}");
        }
    }
    for (arguments, expected) in [
        ("first second --out a.svg --key rate", "it has loss, terms/error"),
        ("first third --out a.svg", "there is no such log"),
        ("first --out a.png", "ends in .svg"),
        ("--out a.svg", "<RUN>"),
    ] {
        let (code, said) = plot(folder.path(), arguments);
        assert!(code == Some(2) && said.contains(expected), "{arguments}: {code:?} {said}");
    }
    assert!(!folder.path().join("a.svg").exists());
}
