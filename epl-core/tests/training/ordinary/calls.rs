//! Collectives among draws: nobody waits for another rank while it holds the generator.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use epl_comm::{Partial, copied};
use epl_core::config::Config;
use epl_core::testing::config;
use epl_core::{Chain, Engine, MicroBatch, Place, launch};
use epl_modules::{SyncBatchNorm, SyncBatchNormConfig};

/// Dropout before, between and behind collectives, over the replicas and over the slices of a layer.
#[derive(Module, Debug)]
struct Mixed {
    first: Linear,
    norm: SyncBatchNorm,
    drop: Dropout,
    second: Linear,
    #[module(skip)]
    place: Place,
}

fn mixed(at: &Place) -> Chain<Mixed, Tensor<2>, Tensor<2>> {
    let net = Mixed {
        first: LinearConfig::new(4, 6).init(at),
        norm: SyncBatchNormConfig::new(6).init(at),
        drop: DropoutConfig::new(0.5).init(),
        second: LinearConfig::new(6, 2).init(at),
        place: at.clone(),
    };
    Chain::of(net)
        .first(&["first", "norm"], |net: &Mixed, rows: &Tensor<2>| {
            let x = net.norm.forward(net.drop.forward(net.first.forward(rows.clone())));
            let group = net.place.context().tensor();
            let x = net.drop.forward(x);
            // Of other sizes on each slice, as those of a split layer: what is drawn behind must be the same all the same.
            let own = copied(x.clone(), group).local().slice([0..rows.dims()[0], 0..2 + group.rank()]);
            let sum = Partial::from_local(net.drop.forward(own).sum(), group).all_reduce();
            net.drop.forward(x) * sum.reshape([1, 1])
        })
        .then(&["second"], |net, x, _| net.second.forward(net.drop.forward(x)))
        .mean_loss(|_, x, _| x.powi_scalar(2).mean())
}

/// The losses of two steps, and what the first layer has become.
fn train(config: &Config) -> Vec<(Vec<f64>, Vec<f32>)> {
    let ranks = launch(config, |epl| {
        let mut engine = Engine::build(&epl, mixed, &SgdConfig::new())?;
        let first = epl.context().data().rank() as u64 * 3;
        let rows = Tensor::<2>::ones([3, 4], epl.place().device()) * (first as f32 + 1.0);
        let mut step = || {
            let micro_batches = (0..2).map(|_| MicroBatch::new(rows.clone(), [first, first + 1, first + 2]));
            Ok::<_, epl_core::Error>(engine.step(micro_batches.collect(), 0.1)?.loss)
        };
        let losses = vec![step()?, step()?];
        let weight = engine.parameters()?["first.weight"].iter().collect();
        engine.check_replicas()?;
        Ok((losses, weight))
    });
    ranks.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_segment_that_draws_and_communicates_neither_stops_nor_differs() {
    epl_testing::alone(|| {
        for (data, tensor) in [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)] {
            let config = config(data, tensor, 1);
            let ranks = train(&config);
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{data} x {tensor}: {ranks:?}");
            assert_eq!(ranks, train(&config), "{data} x {tensor}, the second time");
            let mut again = config.clone().with("gradient_checkpoint.type", "collection").unwrap();
            again.gradient_checkpoint.kept = Some(vec!["1".to_string()]);
            assert_eq!(ranks, train(&again), "{data} x {tensor}, recomputed");
        }
    });
}

/// What is drawn depends on what it is drawn for.
#[test]
fn steps_micro_batches_segments_and_replicas_draw_other_masks() {
    epl_testing::alone(|| {
        let drops = || DropoutConfig::new(0.5).init();
        let ranks = launch(&config(2, 1, 1), |epl| {
            let masks = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let noted = masks.clone();
            let note = move |x: Tensor<2>| {
                noted.lock().unwrap().push(x.clone().inner().into_data().iter::<f32>().collect::<Vec<_>>());
                x
            };
            let noted = note.clone();
            let mut engine = Engine::build(
                &epl,
                |at| {
                    let (first, second) = (note.clone(), noted.clone());
                    Chain::of((LinearConfig::new(64, 1).init(at), drops()))
                        .first(&["0"], move |net: &(Linear, Dropout), rows: &Tensor<2>| {
                            let _ = first(net.1.forward(rows.clone()));
                            rows.clone()
                        })
                        .then(&["0"], move |net, x: Tensor<2>, _| net.0.forward(second(net.1.forward(x))))
                        .mean_loss(|_, x, _| x.mean())
                },
                &SgdConfig::new(),
            )?;
            let rows = |device: &Device| MicroBatch::new(Tensor::ones([1, 64], device), [0]);
            let device = epl.place().device();
            for _ in 0..2 {
                engine.step(vec![rows(device), rows(device)], 0.1)?;
            }
            let masks = masks.lock().unwrap().clone();
            Ok(masks)
        });
        let masks = ranks.unwrap_or_else(|error| panic!("{error}")).concat();
        assert_eq!(masks.len(), 2 * 2 * 2 * 2);
        for (index, mask) in masks.iter().enumerate() {
            assert!(!masks[..index].contains(mask), "mask {index} is there twice");
        }
    });
}
