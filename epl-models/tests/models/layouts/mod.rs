//! The layout and the cut into micro-batches change neither the loss nor a gradient of a T5, with dropout, jitter,
//! label smoothing and experts that are too small.

#![allow(unreachable_pub, reason = "the two binaries use different parts")]
#![allow(dead_code, reason = "the two binaries use different parts")]

use std::collections::BTreeMap;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::TensorData;
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch, StepReport};
use epl_core::testing::{largest_error, run};
use epl_models::TokenPair;
use epl_models::t5::{T5Batch, T5Batcher, T5Config, T5FeedForward, T5MoeConfig};
use epl_modules::moe::{Capacity, Gate};

/// Data, tensor and expert ranks.
type Mesh = (usize, usize, usize);

pub fn dense() -> T5Config {
    T5Config::new(29)
        .with_d_model(16)
        .with_d_kv(6)
        .with_d_ff(24)
        .with_heads(4)
        .with_encoder_layers(2)
        .with_decoder_layers(3)
        .with_dropout(0.2)
        .with_label_smoothing(0.1)
}

pub fn experts(gate: Gate) -> T5Config {
    let moe = T5MoeConfig::new(4)
        .with_gate(gate)
        .with_decoder_sparse_step(2)
        .with_capacity(Capacity::Fixed(2))
        .with_jitter(0.1)
        .with_auxiliary(0.5)
        .with_z(0.1);
    dense().with_moe(Some(moe))
}

/// Ragged pairs; the last one has no target that counts.
fn pairs() -> Vec<TokenPair> {
    let row = |length: usize, start: usize| (0..length).map(|i| ((start + 7 * i) % 27 + 2) as i64).collect();
    let mut pairs: Vec<TokenPair> = [(5, 3), (2, 8), (9, 1), (7, 7)]
        .iter()
        .map(|(a, b)| TokenPair { source: row(*a, *b), target: row(*b, *a) })
        .collect();
    pairs.push(TokenPair { source: row(4, 0), target: vec![-100; 2] });
    pairs
}

/// Report and gradients, with every replica's samples in `parts` micro-batches.
fn gradients(config: &T5Config, mesh: Mesh, parts: usize) -> (StepReport, BTreeMap<String, TensorData>) {
    let mut results = run(mesh, |epl| {
        let engine = Engine::new(epl.build(|at| config.init(at))?, &SgdConfig::new(), EngineSettings::default())?;
        let batcher = T5Batcher::new(config);
        let data = epl.context().data();
        let mine = shard_range(pairs().len(), data.size(), data.rank());
        let micro_batch = |part| -> MicroBatch<T5Batch> {
            let range = shard_range(mine.len(), parts, part);
            let range = mine.start + range.start..mine.start + range.end;
            let samples: Vec<u64> = range.clone().map(|sample| 100 + sample as u64).collect();
            match range.is_empty() {
                true => MicroBatch::stand_in(batcher.batch(pairs()[..1].to_vec(), engine.device()), vec![0]),
                false => MicroBatch::new(batcher.batch(pairs()[range].to_vec(), engine.device()), samples),
            }
        };
        engine.gradients((0..parts).map(micro_batch).collect())
    });
    results.swap_remove(0)
}

fn check(config: &T5Config, layouts: &[(Mesh, usize)], tolerance: f64) {
    let (StepReport { loss, .. }, expected) = gradients(config, (1, 1, 1), 1);
    for (mesh, parts) in layouts {
        let (StepReport { loss: other, .. }, found) = gradients(config, *mesh, *parts);
        assert!(
            (other / loss - 1.0).abs() <= tolerance,
            "mesh {mesh:?}, {parts} micro-batches: loss {other}, not {loss}"
        );
        let (name, error) = largest_error(&found, &expected);
        assert!(error <= tolerance, "mesh {mesh:?}, {parts} micro-batches: error {error:e} in {name}");
    }
}

/// Dense models.
pub fn check_dense(tolerance: f64) {
    let layouts = [((1, 1, 1), 3), ((2, 1, 1), 1), ((2, 1, 1), 4), ((1, 2, 1), 1), ((2, 2, 1), 2)];
    check(&dense(), &layouts, tolerance);
    let gated = dense().with_feed_forward(T5FeedForward::GatedGelu).with_tied_head(false).with_scaled_head(false);
    check(&gated, &layouts, tolerance);
}

/// Models with experts.
pub fn check_experts(tolerance: f64) {
    let layouts = [((1, 1, 1), 3), ((2, 1, 1), 2), ((2, 1, 2), 1), ((2, 1, 2), 4), ((1, 2, 1), 1), ((2, 2, 2), 2)];
    check(&experts(Gate::Top2), &layouts, tolerance);
    check(&experts(Gate::Switch), &layouts, tolerance);
    check(&experts(Gate::Top2).with_feed_forward(T5FeedForward::GatedGelu), &layouts, tolerance);
}

/// The loss that balances the experts counts with its coefficient, in the loss and in every gradient: EPL computed it
/// and never added it.
pub fn check_auxiliary(tolerance: f64) {
    let with = |auxiliary: f64| {
        let mut config = experts(Gate::Top2);
        config.moe = config.moe.map(|moe| moe.with_auxiliary(auxiliary));
        config
    };
    for mesh in [(1, 1, 1), (2, 1, 2)] {
        let [(none, without), (one, first), (two, second)] = [0.0, 0.25, 0.5].map(|a| gradients(&with(a), mesh, 2));
        let auxiliary = two.terms.iter().find(|(name, _)| name == "auxiliary").expect("it is a term").1;
        assert!(auxiliary > 0.1, "{auxiliary}");
        for (loss, coefficient) in [(one.loss, 0.25), (two.loss, 0.5)] {
            let added = loss - none.loss;
            assert!((added / (coefficient * auxiliary) - 1.0).abs() <= tolerance, "{added} of {auxiliary}");
        }
        let added = |with: &BTreeMap<String, TensorData>| -> BTreeMap<String, Vec<f64>> {
            let difference = |(name, with): (&String, &TensorData)| {
                let values = with.iter::<f64>().zip(without[name].iter::<f64>()).map(|(with, without)| with - without);
                (name.clone(), values.collect())
            };
            with.iter().map(difference).collect()
        };
        let (first, second) = (added(&first), added(&second));
        let largest = |values: &[f64]| values.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        for (name, second) in &second {
            let twice: Vec<f64> = second.iter().zip(&first[name]).map(|(second, first)| second - 2.0 * first).collect();
            assert!(largest(&twice) <= tolerance, "{name}: {}", largest(&twice));
            assert!(largest(second) > 1e-4 || !name.contains("router"), "{name} learns nothing of the balance");
        }
        assert!(second.keys().any(|name| name.contains("router")));
    }
}
