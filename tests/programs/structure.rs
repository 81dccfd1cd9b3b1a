//! The layer check: imports run one way, no file is forgotten, no function passes its limit, and what only some systems have
//! stands in one place of a crate.
//!
//! A crate imports only from crates below it, a module only from modules that its `lib.rs` lists before it. Inside
//! a room, which is such a module with all files below it, the order of `mod` lines is not checked, but no files import
//! each other in a circle: what that means is written in `source::circles`.
//!
//! The check itself is tested on small made-up sources, in `source`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::source::Source;
use crate::source::circles::circles;
use crate::source::imports::{check_imports, modules};
use crate::source::orphans::orphans;
use crate::source::size::check_size;
use crate::source::systems::check_systems;

const CRATES: [&str; 6] = ["epl-launch", "epl-comm", "epl-core", "epl-modules", "epl-models", "epl-train"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The sources below a folder of the project; their paths are relative to it.
fn sources(folder: &str) -> Vec<Source> {
    let folder = root().join(folder);
    let mut sources = Vec::new();
    read(&folder, &folder, &mut sources);
    sources
}

fn read(folder: &Path, top: &Path, sources: &mut Vec<Source>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(&path, top, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            let path = path.strip_prefix(top).expect("the file is below the folder").to_path_buf();
            sources.push(Source { path, text });
        }
    }
}

/// Fails with all faults of all folders.
fn assert_none(what: &str, folders: &[String], check: impl Fn(&[Source]) -> Vec<String>) {
    let faults = folders.iter().flat_map(|folder| {
        let sources = sources(folder);
        assert!(!sources.is_empty(), "{folder} has sources");
        check(&sources).into_iter().map(move |fault| format!("{folder}/{fault}"))
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{what}:\n{}", faults.join("\n"));
}

fn crates() -> Vec<String> {
    CRATES.map(|name| format!("{name}/src")).to_vec()
}

#[test]
fn crates_import_only_from_crates_below() {
    let mut faults = Vec::new();
    for (level, name) in CRATES.iter().enumerate() {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).expect("every crate has a manifest");
        for above in &CRATES[level..] {
            let depends = |line: &str| line.starts_with(&format!("{above}.")) || line.starts_with(&format!("{above} "));
            if manifest.lines().any(depends) {
                faults.push(format!("{name} depends on {above}"));
            }
        }
    }
    assert!(faults.is_empty(), "imports that run upwards:\n{}", faults.join("\n"));
}

#[test]
fn modules_import_only_from_modules_listed_before() {
    for folder in crates() {
        assert!(!modules(&sources(&folder)).is_empty(), "{folder} declares modules");
    }
    assert_none("imports that run upwards", &crates(), check_imports);
}

/// The folders of the programs.
fn programs() -> Vec<String> {
    let of = |folder: &str| {
        let programs = fs::read_dir(root().join(folder)).into_iter().flatten().flatten();
        programs.map(|program| format!("{folder}/{}", program.file_name().to_string_lossy())).collect::<Vec<_>>()
    };
    [crates(), vec!["src".into()]].concat().iter().flat_map(|folder| of(&format!("{folder}/bin"))).collect()
}

#[test]
fn every_file_is_named_by_a_module() {
    let of_library = |sources: &[Source]| {
        // Each program is a crate of its own.
        let own = sources.iter().filter(|source| !source.path.starts_with("bin"));
        orphans(&own.cloned().collect::<Vec<_>>())
    };
    assert_none("files that no `mod` names", &[crates(), vec!["src".into()]].concat(), of_library);
    assert_none("files that no `mod` names", &programs(), orphans);
}

#[test]
fn functions_stay_within_their_limit() {
    let folders = [crates(), vec!["src".into(), "examples".into(), "benches".into()]].concat();
    assert_none("over the limit", &folders, |sources| sources.iter().flat_map(check_size).collect());
}

#[test]
fn what_only_some_systems_have_is_asked_for_in_one_place_of_a_crate() {
    let folders = [crates(), vec!["src".into(), "examples".into()]].concat();
    assert_none("of one system", &folders, |sources| sources.iter().flat_map(check_systems).collect());
}

#[test]
fn no_files_of_a_room_import_each_other_in_a_circle() {
    let all = crates().into_iter().flat_map(|folder| {
        let circles = circles(&sources(&folder)).into_iter();
        circles.map(move |(room, circles)| shown(&format!("{folder}/{room}"), &circles))
    });
    let all: Vec<String> = all.collect();
    assert!(all.is_empty(), "files that import each other in a circle:\n{}", all.join("\n"));
}

/// The files of layers and models that read tensors: those in host memory, and what is no part of a step, such as generation. A read
/// anywhere else would have each step wait for its device, and [`epl_core::Context::device_reads`] would not count it.
const READERS: [&str; 9] = [
    "epl-models/src/generation/run.rs",
    "epl-modules/src/attention/on_host/call.rs",
    "epl-modules/src/cross_entropy/classes.rs",
    "epl-modules/src/cross_entropy/rows.rs",
    "epl-modules/src/draws.rs",
    "epl-modules/src/embedding.rs",
    "epl-modules/src/host/view.rs",
    "epl-modules/src/moe/mask.rs",
    "epl-modules/src/top_k.rs",
];

#[test]
fn layers_read_tensors_in_few_places() {
    const READS: [&str; 5] = ["into_data()", "to_data()", "into_data_async()", "to_data_async()", ".into_scalar"];
    let reads = |source: &Source| source.code().iter().any(|(_, line)| READS.iter().any(|read| line.contains(read)));
    let is_test = |source: &Source| source.module().last().is_some_and(|module| module.ends_with("tests"));
    let found = ["epl-models/src", "epl-modules/src"].map(|folder| {
        let readers = sources(folder).into_iter().filter(|source| reads(source) && !is_test(source));
        readers.map(|source| format!("{folder}/{}", source.path.display())).collect::<Vec<_>>()
    });
    assert_eq!(found.concat(), READERS);
}

fn shown(room: &str, circles: &[String]) -> String {
    format!("{room}:\n    {}", circles.join("\n    "))
}
