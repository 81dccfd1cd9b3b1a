//! Whatever happens while a checkpoint is written, the newest complete one loads, and nothing partial is taken for one.
#![allow(clippy::unwrap_used)]

mod disk;
mod full;
mod killed;
mod mutated;
mod replaced;
mod stopped;

use std::path::Path;
use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use epl_comm::ProcessGroup;
use epl_core::checkpoint::durable::{Disk, FileSystem};
use epl_core::checkpoint::{Checkpoint, Region, Scalar, Snapshot, SnapshotPiece, TensorValues};
use epl_core::trainer::{CheckpointId, Checkpoints, RunState};

/// Two tensors, cut over two ranks in different ways.
const WEIGHT: [usize; 2] = [6, 8];
const TABLE: [usize; 2] = [5, 3];

fn values(step: u64, shape: [usize; 2]) -> Vec<f32> {
    (0..shape[0] * shape[1]).map(|at| step as f32 * 1000.0 + at as f32).collect()
}

/// What a rank of two keeps after a step.
fn snapshot(step: u64, rank: usize, ranks: usize) -> Snapshot<'static> {
    let columns = epl_comm::shard_range(WEIGHT[1], ranks, rank);
    let region = Region::of(&WEIGHT, &[0..WEIGHT[0], columns.clone()]).unwrap();
    let all = values(step, WEIGHT);
    let own: Vec<f32> = (0..WEIGHT[0]).flat_map(|row| all[row * WEIGHT[1]..][columns.clone()].to_vec()).collect();
    let len = own.len();
    let weight = SnapshotPiece {
        name: "model/weight".into(),
        region,
        from: 0,
        values: TensorValues::Data(TensorData::new(own, [len])),
    };
    let part = epl_comm::shard_range(TABLE[0] * TABLE[1], ranks, rank);
    let table = SnapshotPiece {
        name: "optimizer/weight/moment".into(),
        region: Region::all(&TABLE).part(part.clone()),
        from: part.start,
        values: TensorValues::Data(TensorData::new(values(step, TABLE), TABLE)),
    };
    let scalars = [("optimizer/weight/time".to_string(), Scalar::Uint(step))].into();
    let state = [("engine".to_string(), serde_json::json!({"steps": step}))].into();
    Snapshot { pieces: vec![weight, table], scalars, state }
}

fn saved(step: u64) -> RunState {
    RunState { step, ..RunState::new(1, "in order".into(), "anything".into()) }
}

/// Saves steps, one after the other, with all ranks of a group; what could not be saved.
fn save(world: &ProcessGroup, checkpoints: &Checkpoints, steps: &[u64]) -> Vec<u64> {
    let mut failed = Vec::new();
    for step in steps {
        failed.extend(checkpoints.start(world, &saved(*step), snapshot(*step, world.rank(), world.size())).unwrap());
    }
    failed.extend(checkpoints.settle(world).unwrap());
    // For who reads why a test failed.
    failed.iter().for_each(|failed| println!("{failed:?}"));
    failed.into_iter().map(|failed| failed.step).collect()
}

/// The same on two ranks, each a thread.
fn save_on_two(disk: Arc<dyn Disk>, out: &Path, keep: usize, steps: &[u64]) -> Vec<u64> {
    let config = epl_core::testing::config(2, 1, 1);
    let ran = epl_core::launch(&config, |epl| {
        let checkpoints = Checkpoints::on(disk.clone(), out, keep);
        Ok(save(epl.context().world(), &checkpoints, steps))
    });
    ran.unwrap().remove(0)
}

/// Whether a checkpoint holds what was saved after its step, and that step.
fn check(folder: &Path) -> epl_core::Result<u64> {
    let checkpoint = Checkpoint::open(folder)?;
    checkpoint.verify()?;
    let step = checkpoint.index().state["engine"]["steps"].as_u64().unwrap_or_default();
    let read = |name: &str| checkpoint.read_whole(name);
    let expected = |values: Vec<f32>, shape: [usize; 2]| TensorData::new(values, shape);
    let (weight, table) = (read("model/weight")?, read("optimizer/weight/moment")?);
    let is_same = weight == expected(values(step, WEIGHT), WEIGHT) && table == expected(values(step, TABLE), TABLE);
    match is_same && weight.dtype() == DType::F32 {
        true => Ok(step),
        false => Err(epl_core::Error::invalid(format!("step {step} holds something else: {weight:?}"))),
    }
}

/// All checkpoints that there are, and the latest: each must be whole.
fn check_all(out: &Path) -> (Vec<u64>, Option<u64>) {
    let checkpoints = Checkpoints::new(out, 1);
    let steps = checkpoints.steps().unwrap();
    for step in &steps {
        let found = check(&checkpoints.find(CheckpointId::Step(*step)).unwrap());
        assert_eq!(found.unwrap_or_else(|error| panic!("{error}")), *step);
    }
    let latest = checkpoints.path().join("latest").exists().then(|| {
        let folder = checkpoints.find(CheckpointId::Latest).unwrap_or_else(|error| panic!("{error}"));
        check(&folder).unwrap_or_else(|error| panic!("{error}"))
    });
    (steps, latest)
}

/// Goes on from what is left: the next save finds its way, what it writes loads, and it leaves nothing else behind.
fn go_on(out: &Path, keep: usize) -> u64 {
    let latest = check_all(out).1.unwrap_or(0);
    // A run that went back comes by the latest again.
    let steps: Vec<u64> = (latest.max(1)..=latest + 1).collect();
    assert!(save_on_two(Arc::new(FileSystem), out, keep, &steps).is_empty(), "{steps:?} can be saved");
    let (found, now) = check_all(out);
    assert_eq!((now, found.contains(&(latest + 1))), (Some(latest + 1), true), "after {latest}: {found:?}");
    assert!(left_over(out).is_empty(), "{:?}", left_over(out));
    latest + 1
}

/// The folders of checkpoints that are in the making, replaced or removed.
fn left_over(out: &Path) -> Vec<String> {
    let names = std::fs::read_dir(out.join("checkpoints")).into_iter().flatten();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
    names.sort();
    names
}
