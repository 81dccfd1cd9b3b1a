//! Ranks that are processes, two on one GPU: NCCL takes them for ranks of different hosts.

use core::time::Duration;
use std::sync::Arc;

use epl_comm::Error;
use epl_comm::nccl::Worker;

use crate::collectives::{child, conformance, is_child};
use crate::file_store::FileStore;

#[test]
#[ignore = "needs a GPU"]
fn two_processes_on_one_gpu() {
    let folder = std::env::temp_dir().join(format!("epl-nccl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.to_str().unwrap();
    std::thread::scope(|scope| {
        for rank in ["0", "1"] {
            let variables = [
                ("EPL_TEST_STORE", path),
                ("EPL_TEST_RANK", rank),
                ("NCCL_HOSTID", rank),
                ("NCCL_SOCKET_IFNAME", "lo"),
                ("NCCL_IB_DISABLE", "1"),
            ];
            scope.spawn(move || child("processes::child_of_two_processes", &variables));
        }
    });
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "run by the test above"]
fn child_of_two_processes() {
    if !is_child() {
        return;
    }
    let store = FileStore(std::env::var("EPL_TEST_STORE").unwrap().into());
    let rank: usize = std::env::var("EPL_TEST_RANK").unwrap().parse().unwrap();
    let worker = Worker::new(Arc::new(store), rank..rank + 1, 2).time_limit(Duration::from_secs(120));
    worker
        .run(|group| {
            conformance(&group);
            Ok::<_, Error>(())
        })
        .unwrap();
}
