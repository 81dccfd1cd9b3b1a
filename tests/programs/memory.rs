//! The numbers of the command that estimates memory on paper.
//!
//! The example is run as a user runs it; `cargo test` has built it.

use std::path::Path;
use std::process::Command;

/// What the example prints.
fn printed(arguments: &[&str]) -> String {
    let here = std::env::current_exe().expect("a test is a file");
    let built = here.parent().and_then(Path::parent).expect("tests are built in a folder").join("examples");
    let output = Command::new(built.join("memory")).args(arguments).output().expect("the example is built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn zero_s_example_is_reproduced() {
    let text = printed(&["--paper", "zero-7.5b"]);
    let paper = text.split("as the engine").next().unwrap_or_default();
    for (level, gigabytes) in [("nothing", "120.0 GB"), ("v0", "31.4 GB"), ("v1, v2", "16.6 GB"), ("v3", "1.9 GB")] {
        let line = paper.lines().find(|line| line.trim_start().starts_with(level));
        assert!(line.is_some_and(|line| line.ends_with(gigabytes)), "{level}: {text}");
    }
}

/// Layers, embedding and head of a T5, planned in worlds that do not exist.
#[test]
fn a_model_is_planned_for_any_world() {
    let text = printed(&["--model", "hf_t5_small", "--data", "4096", "--zero", "v3", "--rows", "2", "--tokens", "16"]);
    assert!(text.contains("60506624 parameters") && text.contains("4096 ranks = data 4096"), "{text}");
    assert!(text.contains("measured") && !text.contains("unknown"), "{text}");
}
