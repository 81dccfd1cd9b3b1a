//! A machine that stops after any change to its disk, and goes on from what is left.

use std::sync::Arc;

use tempfile::tempdir;

use crate::durability::disk::{Change, Lost, Recorder, Tree};
use crate::durability::{check_all, go_on, save_on_two};

#[test]
fn after_every_change_the_newest_complete_checkpoint_loads_and_the_run_goes_on() {
    let folder = tempdir().unwrap();
    let disk = Recorder::default();
    // The second time, step 3 takes the place of one that is there and is the latest.
    assert!(save_on_two(Arc::new(disk.clone()), folder.path(), 1, &[1, 2, 3]).is_empty());
    assert!(save_on_two(Arc::new(disk.clone()), folder.path(), 2, &[3, 4]).is_empty());
    let changes = disk.changes();
    let mut tree = Tree::new();
    // The latest that must be found: its mark is durable.
    let mut least = None;
    let mut found_any = 0;
    let (mut marks, mut last_mark) = ([1, 2, 3, 3, 4].into_iter(), None);
    for (number, change) in changes.iter().enumerate() {
        tree.apply(change, folder.path());
        match change {
            Change::Rename(_, to) if to.ends_with("latest") => last_mark = marks.next(),
            Change::SyncFolder(_) if last_mark.is_some() => least = last_mark.take(),
            _ => {}
        }
        for lost in [Lost::Nothing, Lost::Bytes, Lost::All] {
            let left = tempdir().unwrap();
            tree.leave(lost, left.path());
            let (steps, latest) = check_all(left.path());
            assert!(
                latest >= least,
                "{lost:?} after {number}, {change:?}: {steps:?}, latest {latest:?}, not {least:?}"
            );
            found_any += usize::from(latest.is_some());
            go_on(left.path(), 1 + number % 2);
        }
    }
    assert_eq!(least, Some(4), "the last one was marked");
    assert!(changes.len() > 100 && found_any > 200, "{} changes, {found_any} times", changes.len());
}
