//! A process that is killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use epl_core::checkpoint::durable::FileSystem;
use rand::{Rng, SeedableRng};
use tempfile::tempdir;

use crate::durability::{check_all, go_on, left_over, save_on_two};

/// How many are killed while they save.
const TIMES: usize = 200;
/// How many of all may have been killed between two saves.
const MOST: usize = 1000;
const FOLDER: &str = "DURABILITY_FOLDER";

/// What is killed: saves step after step, from the latest on.
#[test]
#[ignore = "runs until it is killed"]
fn saving_without_end() {
    let out = PathBuf::from(std::env::var_os(FOLDER).expect("the folder to save in"));
    let first = check_all(&out).1.map_or(1, |latest| latest + 1);
    let steps: Vec<u64> = (first..first + 1_000_000).collect();
    assert!(save_on_two(Arc::new(FileSystem), &out, 2, &steps).is_empty());
}

fn start(out: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "durability::killed::saving_without_end", "--ignored", "--nocapture"]).env(FOLDER, out);
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A save was under way where its folder is left, or one that it took the place of or removes: the save before, by this
/// process, left none.
#[test]
fn at_any_moment_of_a_save() {
    let folder = tempdir().unwrap();
    let out = folder.path();
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let (mut saving, mut whole, mut last) = (0, 0, None);
    for time in 0..MOST {
        let mut child = start(out);
        // Until it saves, however long that takes.
        while left_over(out).is_empty() {
            assert!(child.try_wait().unwrap().is_none(), "{time}: it ended by itself");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let left = left_over(out);
        let (steps, latest) = check_all(out);
        assert!(latest >= last, "{time}: {latest:?} after {last:?}, {steps:?}, {left:?}");
        saving += usize::from(!left.is_empty());
        // Of these, those in which all of it was written, and something remained to be named or removed.
        whole += usize::from(left.iter().any(|name| is_whole(&out.join("checkpoints").join(name))));
        last = Some(go_on(out, 2));
        if saving == TIMES {
            println!("{TIMES} of {} were killed while they saved, {whole} of them when all was written", time + 1);
            return;
        }
    }
    panic!("only {saving} of {MOST} were killed while they saved");
}

/// Whether a folder has what makes it a checkpoint.
fn is_whole(folder: &Path) -> bool {
    folder.join("index.json").exists()
}
