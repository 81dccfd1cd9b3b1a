//! `epl` as a user runs it. `.ci/run` compiles and runs a project that it makes.

use std::fs;
use std::path::Path;
use std::process::Command;

use epl::prelude::Config;

#[path = "../../templates/project/src/lib.rs"]
mod project;

fn run(folder: &Path, arguments: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epl"));
    let ran = command.args(arguments.split_whitespace()).current_dir(folder).output().expect("it can be started");
    (ran.status.code(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
}

#[test]
fn a_new_project_has_its_name_and_where_epl_is() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let (code, said) = run(folder.path(), "new my-model");
    assert_eq!(code, Some(0), "{said}");
    let read = |file: &str| fs::read_to_string(folder.path().join("my-model").join(file)).expect(file);
    assert!(read("Cargo.toml").contains("name = \"my-model\""));
    assert!(read("Cargo.toml").contains(&format!("epl = {{ path = {:?} }}", env!("CARGO_MANIFEST_DIR"))));
    assert!(read("src/main.rs").contains("my_model::train(&epl)"));
    assert!(read("tests/ranks.rs").contains("my_model::train(&epl)"));
    for file in ["Cargo.toml", "src/lib.rs", "src/main.rs", "tests/ranks.rs", ".gitignore"] {
        assert!(!read(file).contains('@'), "{file}: {}", read(file));
    }
    let options = Config::load(Some(&folder.path().join("my-model/train.toml")), ["cluster.ranks=3"]).expect("options");
    assert_eq!((options.cluster.ranks, options.train.global_batch_size), (Some(3), Some(50)));
}

#[test]
fn its_model_computes_on_two_ranks_what_it_does_on_one() {
    let last = |ranks: usize| {
        let options = [format!("cluster.ranks={ranks}"), "train.steps=10".into(), "schedule.rate=0.01".into()];
        let config = Config::load(None, options).expect("options");
        epl::launch(&config, |epl| project::train(&epl)).expect("it trains")[0].expect("a step was made")
    };
    assert!((last(2) / last(1) - 1.0).abs() < 1e-5);
}

#[test]
fn what_cannot_be_made_or_run_is_told() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    fs::create_dir(folder.path().join("there")).expect("a folder");
    for (arguments, expected) in [
        ("new there", "is there already; give a folder that is not"),
        ("new 1st", "is no name of a package"),
        ("new burn", "is no name of a package"),
        ("new mine --epl nowhere", "the sources of EPL are not in nowhere; give their folder by --epl"),
        ("no-such-program", "cannot run epl-no-such-program"),
    ] {
        let (code, said) = run(folder.path(), arguments);
        assert!(code == Some(2) && said.contains(expected), "{arguments}: {code:?} {said}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 1);
}

#[test]
fn other_programs_run_by_their_short_names_and_end_as_they_do() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    assert!(run(folder.path(), "ckpt --version").1.starts_with("epl-ckpt "));
    let (code, said) = run(folder.path(), "ckpt list nowhere");
    assert!(code == Some(2) && said.contains("nowhere"), "{code:?} {said}");
}
