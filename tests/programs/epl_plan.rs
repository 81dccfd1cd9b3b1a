//! `epl plan` and `epl completions` as a user runs them. The examples whose plans are made are built by `cargo test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use epl::config::OPTIONS;

use crate::built;

/// The code, the standard output and the standard error of `epl` with these arguments.
fn epl(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = built::command(env!("CARGO_BIN_EXE_epl"));
    let ran = command.args(arguments).env("BURN_DEVICE", "flex").output().expect("it can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
}

fn example(name: &str) -> String {
    built::example(name).to_str().expect("it is text").to_string()
}

/// The plan that is printed, of an example with these arguments.
fn planned(options: &[&str], name: &str, arguments: &[&str]) -> String {
    let program = example(name);
    let (code, plan, said) = epl(&[&["plan"], options, &["--", &program][..], arguments].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("step 1"), "no step is made: {said}");
    plan
}

/// The bytes of all that a rank keeps on its device between two steps, in the table that follows these words.
fn between_steps(plan: &str, words: &str) -> u64 {
    let (_, table) = plan.split_once(words).unwrap_or_else(|| panic!("no `{words}` in {plan}"));
    let line = table.lines().find(|line| line.starts_with("all") && line.contains("between steps"));
    let line = line.unwrap_or_else(|| panic!("no sum in {table}"));
    line.split_whitespace().nth(2).and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("no bytes in {line}"))
}

#[test]
fn a_program_with_a_trainer_is_planned_and_makes_no_step() {
    let plan = planned(&[], "smallest", &[]);
    assert!(plan.contains("2 ranks = data 2") && plan.contains("97 parameters, 97 on this rank"), "{plan}");
    // f32: 97 parameters, with two moments each.
    assert_eq!(between_steps(&plan, "memory of a rank:\n"), 97 * 4 * 3);
    assert!(plan.contains("which `Epl::auto_parallel` is given, and it is not called"), "{plan}");
}

/// `smallest` reads no environment.
#[test]
fn an_option_that_the_program_does_not_take_is_told() {
    let plan = planned(&["zero.level=v2", "dist.data_parallel_size=2"], "smallest", &[]);
    let told = "zero.level = \"v2\" was asked for, and the program has \"\": it does not read the environment";
    assert!(plan.contains(told), "{plan}");
    assert_eq!(plan.matches("was asked for").count(), 1, "{plan}");
}

fn moe_t5(folder: &Path) -> Vec<String> {
    let fixed = ["--model", "moe_t5_numbers", "--out"];
    fixed.map(String::from).into_iter().chain([folder.join("run").display().to_string()]).collect()
}

/// `moe_t5` builds its model first, and its engine of that; options come from its environment.
#[test]
fn each_stage_of_more_ranks_than_there_are_is_planned_under_the_options_that_are_given() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let own = moe_t5(folder.path());
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let of = |options: &[&str]| planned(options, "moe_t5", &[&own[..], &["--stages", "2", "--data", "64"]].concat());
    let plan = of(&[]);
    assert!(plan.contains("128 ranks = data 64"), "{plan}");
    let whole = [0, 1].map(|stage| between_steps(&plan, &format!("memory of a rank of stage {stage}:\n")));
    assert!(whole[0] > 0 && whole[1] > 0 && whole[0] != whole[1], "{plan}");
    let sharded = of(&["zero.level=v1"]);
    assert!(!sharded.contains("was asked for"), "{sharded}");
    assert!(between_steps(&sharded, "memory of a rank of stage 0:\n") < whole[0] / 2, "{sharded}");
    assert!(!folder.path().join("run/metrics.jsonl").exists());
}

const CLUSTER: &str = r#"
[[host]]
count = 2
devices = [{ class = "small", count = 4 }]
inside = { alpha_us = 8, gb_per_s = 100 }
outside = { alpha_us = 20, gb_per_s = 10 }
[class.small]
memory_gb = 0.003
tflops = 1
memory_gb_per_s = 100
"#;

fn described(folder: &Path, cluster: &str) -> PathBuf {
    let file = folder.join("cluster.toml");
    fs::write(&file, cluster).expect("a file");
    file
}

#[test]
fn on_a_cluster_that_is_described_a_step_is_predicted_and_what_does_not_fit_is_told() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let (own, cluster) = (moe_t5(folder.path()), described(folder.path(), CLUSTER));
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let options = ["--cluster", cluster.to_str().expect("it is text")];
    let plan = planned(&options, "moe_t5", &[&own[..], &["--data", "8", "--expert", "2"]].concat());
    assert!(
        plan.contains("predicted step ") && plan.contains("8 ranks = data 8") && plan.contains("on 2 hosts"),
        "{plan}"
    );
    assert!(plan.contains("and there are 3000000 bytes") && plan.contains(" too few"), "{plan}");
    // Another number of ranks than it has devices.
    let quickstart = example("quickstart");
    let (code, _, said) = epl(&[&["plan"], &options[..], &["--", &quickstart]].concat());
    assert!(code == Some(2) && said.contains("and the cluster that is described has 8 devices"), "{said}");
}

#[test]
fn the_cluster_that_is_here_is_described_and_planned_for() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let file = folder.path().join("here.toml");
    let file = file.to_str().expect("it is text");
    let (code, told, said) = epl(&["calibrate", "cluster.ranks=2", "offload.device_bytes=2000000000", "--out", file]);
    assert!(code == Some(0) && told.contains("describes 2 ranks on 1 host"), "{told} {said}");
    let text = fs::read_to_string(file).expect("it was written");
    assert!(text.contains("memory_gb = 2.0") && text.contains("# There was one host"), "{text}");
    // With larger counts it is a larger cluster.
    fs::write(file, text.replacen("count = 1\n", "count = 4\n", 1)).expect("a file");
    let quickstart = example("quickstart");
    let (code, _, said) = epl(&["plan", "--cluster", file, "--", &quickstart]);
    assert!(code == Some(2) && said.contains("and the cluster that is described has 8 devices"), "{said}");
    let (code, _, said) = epl(&["calibrate", "--out", file]);
    assert!(code == Some(2) && said.contains("one rank alone"), "{said}");
}

/// Each sum takes a second, and all other work less; self-attention gets a bias of heads, which are always divided.
#[test]
fn on_slow_links_layers_are_whole_that_may_be() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let slow = "[[host]]\ncount = 1\ndevices = [{ class = \"one\", count = 2 }]\n\
                inside = { alpha_us = 500000, gb_per_s = 1 }\noutside = { alpha_us = 0, gb_per_s = 1 }\n\
                [class.one]\nmemory_gb = 100\ntflops = 1\nmemory_gb_per_s = 1\n";
    let cluster = described(folder.path(), slow);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transformers/t5");
    let [cluster, model] = [&cluster, &model].map(|path| path.to_str().expect("it is text"));
    let options = ["auto.auto_parallel=true", "dist.tensor_parallel_size=2", "--tokens", "4", "--rows", "2"];
    let (code, plan, said) = epl(&[&["plan", "--model", model, "--cluster", cluster][..], &options].concat());
    assert_eq!(code, Some(0), "{said}");
    let whole = plan.lines().find(|line| line.starts_with("dist.whole_layers = ")).unwrap_or_else(|| panic!("{plan}"));
    for kind in ["encoder.blocks.*.feed_forward", "decoder.blocks.*.feed_forward", "decoder.blocks.*.cross_attention"] {
        assert!(whole.contains(kind), "{plan}");
    }
    assert!(!whole.contains("self_attention"), "{plan}");
}

/// By name and as a folder, whose activations this program counts.
#[test]
fn a_known_model_is_planned_without_a_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transformers");
    for (model, ranks) in [("hf_t5_small".into(), "4 ranks = data 2"), (folder.join("llama"), "4 ranks = data 2")] {
        let model = model.to_str().expect("it is text");
        let options = ["dist.tensor_parallel_size=2", "cluster.ranks=4", "--tokens", "8", "--rows", "4"];
        let (code, plan, said) = epl(&[&["plan", "--model", model][..], &options].concat());
        assert_eq!(code, Some(0), "{said}");
        assert!(plan.contains(ranks) && plan.contains("measured"), "{plan}");
        let activations = plan.lines().find(|line| line.starts_with("activations")).expect("a line of activations");
        assert!(!activations.contains('?'), "{plan}");
    }
}

#[test]
fn what_cannot_be_planned_is_told() {
    let noise = example("noise");
    for (arguments, expected) in [
        (&["--", "true"][..], "no plan of true: it ended without one"),
        (&["--", "false"][..], "no plan of false: it ended before it built an engine"),
        (&["--", "no-such-program"][..], "no-such-program cannot be started"),
        (&["zero.levle=v1", "--", "true"][..], "unknown option zero.levle (command line); the nearest is zero.level"),
        (&["--cluster", "nowhere.toml", "--", "true"][..], "--cluster nowhere.toml: "),
        (&["--model", "nobody"][..], "nobody is no folder, and no model of that name is known; there are gpt2,"),
        (&["--", &noise][..], "what it launched ended without an engine"),
        (&[][..], "PROGRAM"),
    ] {
        let (code, plan, said) = epl(&[&["plan"][..], arguments].concat());
        assert!(code == Some(2) && plan.is_empty() && said.contains(expected), "{arguments:?}: {code:?} {said}");
    }
}

#[test]
fn every_shell_completes_every_command_and_every_option() {
    let commands = ["new", "plan", "calibrate", "plot", "trace", "completions", "launch", "ckpt", "corpus"];
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, said) = epl(&["completions", shell]);
        assert_eq!(code, Some(0), "{said}");
        let words: Vec<&str> = script.split(|c: char| !c.is_ascii_alphanumeric() && !"._".contains(c)).collect();
        let missing = |word: &&str| !words.contains(word);
        assert_eq!(commands.iter().filter(|word| missing(word)).count(), 0, "{shell}: {script}");
        let keys: Vec<String> = OPTIONS.iter().map(|option| option.key()).collect();
        let missing: Vec<&String> = keys.iter().filter(|key| missing(&key.as_str())).collect();
        assert!(missing.is_empty(), "{shell}: {missing:?}");
    }
}

/// There may be no zsh: its script is read.
#[test]
fn zsh_puts_no_space_behind_an_option() {
    let (_, script, _) = epl(&["completions", "zsh"]);
    let (function, rest) = script.split_once("\n}\n").expect("a function of options comes first");
    assert!(function.starts_with("#compdef epl\n") && function.contains("compadd \"$@\" -S '' -- "), "{function}");
    assert!(function.contains(" pipeline.cuts=") && !rest.contains("pipeline.cuts="), "{script}");
    assert!(rest.contains(":_epl_options'") && !rest.contains("EPL_OPTION"), "{rest}");
    let (_, script, _) = epl(&["completions", "zsh", "--for", "mine"]);
    assert!(script.contains("-S '' -- ") && script.ends_with("compdef _epl_options mine\n"), "{script}");
}

#[test]
fn bash_completes_by_the_scripts() {
    let complete = |script: &str, function: &str, words: &str| {
        let last = words.split(' ').count() - 1;
        let words = words.replace(' ', "' '");
        let run = format!(
            "{script}\nCOMP_WORDS=('{words}'); COMP_CWORD={last}; {function} epl \"${{COMP_WORDS[{last}]}}\" x; echo \"${{COMPREPLY[@]}}\""
        );
        let ran = Command::new("bash").args(["-c", &run]).output().expect("there is a bash");
        String::from_utf8_lossy(&ran.stdout).trim().to_string()
    };
    let (_, script, _) = epl(&["completions", "bash"]);
    for (words, expected) in
        [("epl pla", "plan"), ("epl plan zero", "zero.level="), ("epl plan a=b c=d zero", "zero.level=")]
    {
        assert_eq!(complete(&script, "_epl_and_options", words), expected, "{words}");
    }
    assert_eq!(complete(&script, "_epl_and_options", "epl launch zero"), "");
    let (_, script, _) = epl(&["completions", "bash", "--for", "target/release/mine"]);
    assert!(script.contains("complete -F _epl_options") && script.ends_with(" target/release/mine\n"), "{script}");
    assert_eq!(complete(&script, "_epl_options", "mine zero.l"), "zero.level=");
    let (code, _, said) = epl(&["completions", "bash", "--for", "mine; rm"]);
    assert!(code == Some(2) && said.contains("is no name of a program that a shell can be told"), "{said}");
}
