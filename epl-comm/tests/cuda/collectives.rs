//! Collectives on CUDA tensors.

use core::time::Duration;
use std::process::Command;
use std::time::Instant;

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{Bool, DType, Device, Float, Int, Tensor};
use epl_comm::nccl::{self, Launcher};
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result, differentiable};

use crate::exercise::Exercise;
use crate::model::Array;
use crate::watchdog::within_seconds;

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
const WHOLE: [DType; 4] = [DType::I64, DType::I32, DType::U8, DType::I8];

fn exercise<K: Numeric + Autodiff + 'static>(group: &ProcessGroup, dtype: DType) {
    for started in [false, true] {
        Exercise { group, dtype, started, device: Device::cuda(0) }.all::<K>();
    }
}

/// Everything in the suite, on tensors of device 0: in the warm-up, and after it.
pub fn conformance(group: &ProcessGroup) {
    everything(group);
    group.warmed_up();
    everything(group);
}

fn everything(group: &ProcessGroup) {
    FLOATS.into_iter().for_each(|dtype| exercise::<Float>(group, dtype));
    WHOLE.into_iter().for_each(|dtype| exercise::<Int>(group, dtype));
    truth_values(group);
    in_the_midst_of_fusion(group);
    gradients(group);
    host_tensors(group);
    let sums = group.all_reduce_values(&[1.0, group.rank() as f64], ReduceOp::Sum).unwrap();
    let ranks = group.size();
    assert_eq!(sums, [ranks as f64, (0..ranks).sum::<usize>() as f64]);
}

fn truth_values(group: &ProcessGroup) {
    let own = Tensor::<1>::from_data([1.0, -1.0, group.rank() as f32 - 0.5], &Device::cuda(0)).greater_elem(0.0);
    let all: Tensor<1, Bool> = group.all_gather(own, 0).unwrap();
    let expected = (0..group.size()).flat_map(|member| [1.0, 0.0, if member == 0 { 0.0 } else { 1.0 }]);
    assert_eq!(Array::of(all.int()).values, expected.collect::<Vec<f64>>());
}

/// What has not been computed when it is sent, and what is computed with the result at once.
fn in_the_midst_of_fusion(group: &ProcessGroup) {
    let (device, ranks) = (Device::cuda(0), group.size() as f64);
    for round in 0..50 {
        let base = Tensor::<1>::full([4097], f64::from(round % 7), &device);
        let own = (base.clone() * 2.0 + 1.0) * (group.rank() as f64 + 1.0);
        let sum = match round % 2 {
            0 => group.all_reduce(own.clone(), ReduceOp::Sum).unwrap(),
            _ => group.start_all_reduce(own.clone(), ReduceOp::Sum).unwrap().wait().unwrap(),
        };
        let found = Array::of(sum * 0.5 + base - own);
        let (base, me) = (f64::from(round % 7), group.rank() as f64 + 1.0);
        let expected = (base * 2.0 + 1.0) * ranks * (ranks + 1.0) / 2.0 * 0.5 + base - (base * 2.0 + 1.0) * me;
        assert!(found.values.iter().all(|value| (value - expected).abs() < 1e-4), "round {round}");
    }
}

fn gradients(group: &ProcessGroup) {
    let x = Tensor::<1>::ones([33], &Device::cuda(0).autodiff()).require_grad();
    let sum = differentiable::all_reduce(x.clone() * 3.0, group);
    let grads = (sum.clone() * sum).sum().backward();
    let ranks = group.size() as f64;
    let found = Array::of(x.grad(&grads).unwrap());
    // Of the sum over ranks of (3 Σ x)², on every rank.
    assert!(found.values.iter().all(|value| (value - 18.0 * ranks * ranks).abs() < 1e-3), "{found:?}");
}

fn host_tensors(group: &ProcessGroup) {
    let x = Tensor::<2>::full([3, 5], group.rank() as f32 + 1.0, &Device::flex());
    let sum = group.all_reduce(x, ReduceOp::Sum).unwrap();
    assert_eq!(sum.device(), Device::flex());
    let ranks = group.size() as f64;
    assert!(Array::of(sum).values.iter().all(|value| *value == ranks * (ranks + 1.0) / 2.0));
}

#[test]
#[ignore = "needs a GPU"]
fn one_rank() {
    nccl::run(1, |group| {
        conformance(&group);
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// In a process of its own, as NCCL reads the variable when it is loaded.
pub fn child(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--test-threads=1", "--nocapture"])
        .env("EPL_TEST_CHILD", "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    println!("{}", String::from_utf8_lossy(&text));
}

/// Whether this process was started by [`child`]: otherwise a test that needs that does nothing.
pub fn is_child() -> bool {
    std::env::var_os("EPL_TEST_CHILD").is_some()
}

const SHARED: [(&str, &str); 1] = [("NCCL_MULTI_RANK_GPU_ENABLE", "1")];

fn shared(ranks: usize) -> Launcher {
    Launcher::new(ranks).devices(&vec![0; ranks]).time_limit(Duration::from_secs(120))
}

/// Needs NCCL 2.30.
#[test]
#[ignore = "needs a GPU"]
fn two_ranks_on_one_gpu() {
    child("collectives::child_of_two_ranks", &SHARED);
}

#[test]
#[ignore = "run by the test above"]
fn child_of_two_ranks() {
    if !is_child() {
        return;
    }
    shared(2)
        .run(|world| {
            conformance(&world);
            let part = world.split("part", 0, 9 - world.rank())?;
            exercise::<Float>(&part, DType::F32);
            time(&world)
        })
        .unwrap();
}

/// How long sums take in ranks that are warmed up; nothing is asserted.
fn time(group: &ProcessGroup) -> Result<()> {
    for elements in [1, 1 << 10, 1 << 18, 1 << 24] {
        let mut x = Tensor::<1>::ones([elements], &Device::cuda(0));
        x = group.all_reduce(x, ReduceOp::Max)?;
        group.barrier()?;
        let begun = Instant::now();
        for _ in 0..20 {
            x = group.all_reduce(x, ReduceOp::Max)?;
        }
        if group.rank() == 0 {
            let each = begun.elapsed().as_secs_f64() / 20.0;
            println!("all_reduce of {} KiB: {:.1} us", elements * 4 / 1024, each * 1e6);
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn a_rank_that_fails_releases_the_other() {
    child("collectives::child_that_fails", &SHARED);
}

#[test]
#[ignore = "run by the test above"]
fn child_that_fails() {
    if !is_child() {
        return;
    }
    within_seconds(60, || {
        let ended = shared(2).run(|group| {
            let x = || Tensor::<1>::ones([8], &Device::cuda(0));
            group.all_reduce(x(), ReduceOp::Sum)?;
            if group.rank() == 1 {
                return Err(Error::invalid("out of luck"));
            }
            group.all_reduce(x(), ReduceOp::Sum).map(drop)
        });
        assert!(matches!(&ended, Err((Rank(1), Error::Invalid { .. }))), "{ended:?}");
    });
}
