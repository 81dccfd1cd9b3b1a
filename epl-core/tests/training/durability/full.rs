//! A disk that is full.

use std::sync::Arc;

use tempfile::tempdir;

use crate::durability::disk::Recorder;
use crate::durability::{check_all, save_on_two};

#[test]
fn what_cannot_be_written_is_told_and_the_one_before_stands() {
    let folder = tempdir().unwrap();
    let disk = Recorder::default();
    assert!(save_on_two(Arc::new(disk.clone()), folder.path(), 2, &[1]).is_empty());
    // Wherever it runs full: in the tensors, in the index, in the mark.
    for room in [0, 10, 200, 600, 1000, 1500, 2000] {
        disk.set_room(Some(room));
        let failed = save_on_two(Arc::new(disk.clone()), folder.path(), 2, &[2]);
        disk.set_room(None);
        let (steps, latest) = check_all(folder.path());
        match failed.as_slice() {
            [2] => assert_eq!((latest, steps.contains(&1)), (Some(1), true), "room for {room} bytes"),
            [] => assert_eq!(latest, Some(2), "room for {room} bytes"),
            other => panic!("{other:?}"),
        }
        let again = save_on_two(Arc::new(disk.clone()), folder.path(), 2, &[1]);
        assert_eq!((again, check_all(folder.path()).1), (Vec::new(), Some(1)), "there is room again");
    }
    disk.set_room(Some(0));
    assert_eq!(save_on_two(Arc::new(disk), folder.path(), 2, &[2, 3]), [2, 3], "each is told");
}
