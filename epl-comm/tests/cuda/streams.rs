//! What is on a GPU's streams at the same time: who waits for whom, and who must not.

use core::time::Duration;
use std::fs;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use epl_comm::nccl::Worker;
use epl_comm::{Error, ProcessGroup, ReduceOp, Result};

use crate::collectives::{child, is_child};
use crate::file_store::FileStore;
use crate::model::Array;
use crate::watchdog::within_seconds;

const SIDE: usize = 1024;

/// Runs two processes of a test on one GPU, in a folder with these files.
fn two_processes(test: &str, files: &[(&str, &str)]) {
    let name = format!("epl-streams-{}-{}", std::process::id(), test.replace(':', "-"));
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
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
            scope.spawn(move || child(test, &variables));
        }
    });
    fs::remove_dir_all(folder).unwrap();
}

/// One of them, in that folder.
fn of_two() -> Worker {
    let folder = std::env::var("EPL_TEST_STORE").unwrap();
    std::env::set_current_dir(&folder).unwrap();
    let rank: usize = std::env::var("EPL_TEST_RANK").unwrap().parse().unwrap();
    Worker::new(Arc::new(FileStore(folder.into())), rank..rank + 1, 2).devices(&[0]).time_limit(Duration::from_secs(60))
}

/// A value that is there only after many kernels.
fn slowly(value: f32, device: &Device) -> Tensor<1> {
    let (mut x, one) = (Tensor::<2>::full([SIDE, SIDE], value, device), Tensor::<2>::eye(SIDE, device));
    for _ in 0..200 {
        x = x.matmul(one.clone());
    }
    x.reshape([SIDE * SIDE])
}

/// The mean of what both have, to which each adds something in the same memory, again and again: NCCL comes neither
/// before it nor after what is computed next.
fn in_place(group: &ProcessGroup, is_started: bool) -> Result<()> {
    let (device, me) = (Device::cuda(0), group.rank() as f32);
    let (mut x, mut expected) = (slowly(me, &device), 0.5);
    for round in 0..100 {
        if round == 20 {
            group.warmed_up();
        }
        x = match is_started {
            true => group.start_all_reduce(x, ReduceOp::Mean)?.wait()?,
            false => group.all_reduce(x, ReduceOp::Mean)?,
        };
        x = x * 0.5 + slowly(me + round as f32, &device);
        expected = expected * 0.5 + f64::from(round) + 0.5;
    }
    let found = Array::of(group.all_reduce(x, ReduceOp::Mean)?);
    assert!(found.values.iter().all(|value| (value - expected).abs() < 1e-2), "{} for {expected}", found.values[0]);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn what_is_computed_in_place_is_waited_for() {
    two_processes("streams::child_in_place", &[]);
}

#[test]
#[ignore = "run by the test above"]
fn child_in_place() {
    if !is_child() {
        return;
    }
    of_two().run(|group| [true, false].into_iter().try_for_each(|started| in_place(&group, started))).unwrap();
}

/// Two stages that send each other large tensors while memory grows and kernels are loaded, for which they stay in their warm-up:
/// some are for shapes that come late, here at a side of 133.
fn large_carries(group: &ProcessGroup) -> Result<()> {
    let (device, other) = (Device::cuda(0), 1 - group.rank());
    for step in 0..20 {
        let mut sent = Vec::new();
        for micro_batch in 0..4 {
            let len = (16 << 20) + (step * 4 + micro_batch) * 4096;
            let own = Tensor::<1>::full([len], micro_batch as f32, &device).exp().log();
            sent.push(group.start_send(own, other)?);
            // Of a shape that was not there before: it takes memory, and what is not yet loaded.
            let side = 64 + step * 4 + micro_batch;
            let work = Tensor::<2>::ones([side, side], &device);
            let work = work.clone().matmul(work).sum().into_data().iter::<f32>().sum::<f32>();
            assert_eq!(work, (side * side * side) as f32);
            let received = group.receive(Tensor::<1>::zeros([len], &device), other)?;
            let most = received.max().into_data().iter::<f32>().sum::<f32>();
            assert!((most - micro_batch as f32).abs() < 1e-3, "{most}");
        }
        sent.into_iter().try_for_each(|sent| sent.wait())?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_grows_and_kernels_that_are_loaded_hold_up_nobody() {
    within_seconds(300, || two_processes("streams::child_with_large_carries", &[]));
}

#[test]
#[ignore = "run by the test above"]
fn child_with_large_carries() {
    if is_child() {
        of_two().run(|group| large_carries(&group)).unwrap();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_waits_for_the_device_is_refused() {
    let sync = [("cubecl.toml", "[memory.cuda]\nallocator = \"sync\"\n")];
    within_seconds(120, move || two_processes("streams::child_that_is_refused", &sync));
}

#[test]
#[ignore = "run by the test above"]
fn child_that_is_refused() {
    if is_child() {
        let (_, error) = of_two().run(|group| group.barrier()).unwrap_err();
        assert!(error.to_string().contains("allocator = \"sync\""), "{error}");
        assert!(matches!(error, Error::Invalid { .. } | Error::Peer { .. }), "{error:?}");
    }
}

/// Results that are used and dropped, on the rank's thread, though helper threads send them: their memory is used again.
fn gathers(group: &ProcessGroup) -> Result<()> {
    let (device, len) = (Device::cuda(0), 8 << 20);
    let free = || cudarc::driver::result::mem_get_info().unwrap().0;
    let mut after_some = 0;
    for round in 0..60 {
        if round == 10 {
            group.warmed_up();
            group.barrier()?;
            after_some = free();
        }
        let own = Tensor::<1>::full([len], round as f32, &device);
        let all = group.start_all_gather(own, 0)?.wait()?;
        let last = all.slice([2 * len - 1..2 * len]).into_data().iter::<f32>().sum::<f32>();
        assert_eq!(last, round as f32);
    }
    group.barrier()?;
    // Fifty results have 3 GiB.
    assert!(free() + (512 << 20) >= after_some, "{} bytes are free of {after_some}", free());
    // The rank's own tensors get that of a result, of 64 MiB: it is in no pool of a helper's.
    let before = free();
    let own = Tensor::<1>::full([2 * len], 1.0, &device);
    assert_eq!(own.clone().slice([0..1]).into_data().iter::<f32>().sum::<f32>(), 1.0);
    assert!(free() + (32 << 20) >= before, "{} bytes are free of {before}", free());
    group.barrier()
}

#[test]
#[ignore = "needs a GPU"]
fn memory_of_results_is_used_again() {
    within_seconds(120, || two_processes("streams::child_that_gathers", &[]));
}

#[test]
#[ignore = "run by the test above"]
fn child_that_gathers() {
    if is_child() {
        of_two().run(|group| gathers(&group)).unwrap();
    }
}
