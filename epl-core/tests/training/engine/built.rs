//! The two ways to an engine are one, and parameters stay what they are whatever values they get.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor, TensorData};
use epl_comm::local;
use epl_core::plan::with_values;
use epl_core::testing::config;
use epl_core::{Cluster, Config, Engine, EngineSettings, Epl, Mesh, Place, Result, StepReport, WithLoss, launch};

use crate::engine::chain::{Chain, micro_batches};

/// A layer whose mean loss counts how often it is asked for.
fn counting(at: &Place, forwards: &Arc<AtomicUsize>) -> WithLoss<Linear, Tensor<2>> {
    let forwards = forwards.clone();
    WithLoss::new(LinearConfig::new(4, 3).init(at), move |layer: &Linear, rows: &Tensor<2>| {
        forwards.fetch_add(1, Ordering::Relaxed);
        layer.forward(rows.clone()).powi_scalar(2).mean()
    })
}

type Stepped = (String, StepReport, BTreeMap<String, TensorData>);

/// One step of an engine that is made by [`Engine::build`], or else by [`Engine::new`]: the first rank's, and how often the
/// model ran on all ranks.
fn stepped(config: &Config, build: bool) -> (Stepped, usize) {
    let forwards = Arc::new(AtomicUsize::new(0));
    let ranks = launch(config, |epl| {
        let (optimizer, model) = (AdamWConfig::new(), |at: &Place| counting(at, &forwards));
        let mut engine = match build {
            true => Engine::build(&epl, model, &optimizer)?,
            false => Engine::new(epl.build(model)?, &optimizer, EngineSettings::from_config(epl.config()))?,
        };
        let values: Vec<f32> = (0..48).map(|value| value as f32 / 7.0 - 3.0).collect();
        let batch = Tensor::from_data(TensorData::new(values, [12, 4]), epl.place().device());
        let report = engine.train_batch(&batch, 0.1)?;
        Ok((engine.plan().to_string(), report, engine.parameters()?))
    });
    (ranks.unwrap().remove(0), forwards.load(Ordering::Relaxed))
}

#[test]
fn new_is_build_also_where_the_number_of_micro_batches_follows_from_two_sizes() {
    let given = config(2, 1, 1).with("pipeline.num_micro_batch", 3).unwrap();
    let follows = config(2, 1, 1).with("train.global_batch_size", 12).unwrap();
    let follows = follows.with("train.micro_batch_size", 2).unwrap();
    for config in [given, follows] {
        let (built, made) = (stepped(&config, true), stepped(&config, false));
        assert_eq!(built.1, 2 * 3, "micro-batches of both replicas");
        assert_eq!(built, made);
    }
}

/// How gradients of each parameter are to be computed.
fn strategies<M: Module>(model: &M) -> Vec<Option<GradientCheckpointingStrategy>> {
    struct Strategies(Vec<Option<GradientCheckpointingStrategy>>);
    impl ModuleVisitor for Strategies {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.base().gradient_checkpointing_strategy());
        }
    }
    let mut strategies = Strategies(Vec::new());
    model.visit(&mut strategies);
    strategies.0
}

#[test]
fn other_values_keep_the_strategy_of_gradient_checkpointing() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let param = Param::from_tensor(Tensor::<2>::ones([2, 3], &device));
    let changed = with_values(param, Tensor::zeros([2, 3], &Device::flex()));
    assert!(changed.is_require_grad());
    assert_eq!(changed.base().gradient_checkpointing_strategy(), device.gradient_checkpointing_strategy());
}

/// Runs one rank on a device whose gradients are computed under that strategy.
fn on_checkpointing_device<T: Send>(config: &Config, f: impl Fn(Epl) -> Result<T> + Sync) -> T {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let run = |world| {
        let (cluster, mesh) = (Cluster::local(1)?, Mesh::from_config(config)?);
        f(Epl::on_cluster(config.clone(), (cluster, device.clone()), mesh, world, None)?)
    };
    local::Launcher::new(1).run(run).map_err(|(_, error)| error).unwrap().remove(0)
}

#[test]
fn an_engine_keeps_the_strategy_of_gradient_checkpointing() {
    let expected = Device::flex().autodiff().gradient_checkpointing().gradient_checkpointing_strategy();
    for (key, value) in [("zero.level", ""), ("zero.level", "v3"), ("offload.level", "v0")] {
        let config = config(1, 1, 1).with(key, value).unwrap();
        let found = on_checkpointing_device(&config, |epl| {
            let built = epl.build(Chain::new)?;
            let first = strategies(built.model());
            let mut engine = Engine::new(built, &AdamWConfig::new(), EngineSettings::from_config(epl.config()))?;
            let folder = tempfile::tempdir().unwrap();
            engine.save(folder.path().join("saved"))?;
            engine.step(micro_batches(&epl, 1), 0.1)?;
            let updated = strategies(engine.model());
            engine.load(folder.path().join("saved"))?;
            Ok([first, updated, strategies(engine.model())])
        });
        for (when, found) in ["drawn", "updated", "loaded"].iter().zip(found) {
            assert!(found.iter().all(|strategy| *strategy == expected), "{key} = {value:?}, {when}: {found:?}");
        }
    }
}
