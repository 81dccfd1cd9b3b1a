//! [`Engine::save`] over a checkpoint that is there, on a machine that stops after any change to its disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData};
use epl_core::checkpoint::Checkpoint;
use epl_core::{Engine, Epl, Result, WithLoss, launch};
use tempfile::tempdir;

use crate::durability::disk::{Lost, Recorder, Tree};

type Parameters = BTreeMap<String, TensorData>;

fn loss(net: &Linear, inputs: &Tensor<2>) -> Tensor<1> {
    net.forward(inputs.clone()).powi_scalar(2).mean()
}

fn engine(epl: &Epl) -> Result<Engine<WithLoss<Linear, Tensor<2>>>> {
    Engine::build(epl, |at| WithLoss::new(LinearConfig::new(4, 6).init(at), loss), &AdamWConfig::new())
}

/// Below folders that are not there yet.
fn checkpoint(root: &Path) -> PathBuf {
    root.join("runs/one/checkpoint")
}

/// What was saved the first time, the second, and so on: how many changes that were so far, and what.
fn saved(disk: &Recorder, root: &Path, times: usize) -> Vec<(usize, Parameters)> {
    let ran = launch(&epl_core::testing::config(2, 1, 1), |epl| {
        let mut engine = engine(&epl)?;
        let mut saved = Vec::new();
        for _ in 0..times {
            engine.train_batch(&Tensor::ones([4, 4], epl.place().device()), 0.1)?;
            engine.save_on(disk, checkpoint(root))?;
            saved.push((disk.changes().len(), engine.parameters()?));
        }
        Ok(saved)
    });
    // The first rank's: the last changes are its own.
    ran.unwrap().remove(0)
}

#[test]
fn after_every_change_the_old_one_or_the_new_one_loads_and_the_next_is_saved() {
    let (folder, left) = (tempdir().unwrap(), tempdir().unwrap());
    let disk = Recorder::default();
    let saved = saved(&disk, folder.path(), 3);
    let (mut tree, mut cases) = (Tree::new(), Vec::new());
    for (number, change) in disk.changes().iter().enumerate() {
        tree.apply(change, folder.path());
        // The save that had returned.
        let least = saved.iter().filter(|(changes, _)| *changes <= number + 1).count();
        for lost in [Lost::Nothing, Lost::Bytes, Lost::All] {
            let root = left.path().join(format!("{number}-{lost:?}"));
            tree.leave(lost, &root);
            cases.push((root, least, format!("{lost:?} after {number}, {change:?}")));
        }
    }
    assert!(cases.len() > 150, "{} cases", cases.len());
    let ran = launch(&epl_core::testing::config(2, 1, 1), |epl| {
        let (mut engine, mut again) = (engine(&epl)?, engine(&epl)?);
        let mut found = [0; 4];
        for (root, least, said) in &cases {
            let folder = checkpoint(root);
            let loaded = engine.load(&folder);
            let step = if loaded.is_ok() { engine.steps() as usize } else { 0 };
            assert!(step >= *least, "{said}: step {step}, and {least} was saved: {loaded:?}");
            if step > 0 {
                assert!(engine.parameters()? == saved[step - 1].1, "{said}: step {step} is something else");
            }
            found[step] += 1;
            epl.context().world().barrier()?;
            engine.save(&folder)?;
            again.load(&folder)?;
            assert!(again.steps() == engine.steps() && again.parameters()? == engine.parameters()?, "{said}");
        }
        Ok(found)
    });
    let found = ran.unwrap().remove(0);
    assert!(found.iter().all(|times| *times > 10), "{found:?}: none, the first, the second and the third were found");
    for (root, _, said) in &cases {
        Checkpoint::open(checkpoint(root)).unwrap().verify().unwrap();
        let names = std::fs::read_dir(checkpoint(root).parent().unwrap()).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["checkpoint"], "{said}: nothing else is left");
    }
}
