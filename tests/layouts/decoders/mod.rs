//! Small decoders that learn rows of ragged lengths, trained for three steps under a layout.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use burn::tensor::TensorData;
use epl::comm::Trace;
use epl::config::Config;
use epl::models::decoder::{Decoder, DecoderBatcher, DecoderConfig, DecoderExpertsConfig, DecoderItem};
use epl::modules::moe::{Balance, Capacity, Gate};
use epl::modules::{Activation, RotaryConfig, RotaryScaling};
use epl::{Engine, EngineSettings, Epl, LazyModel};

use crate::parity::{Layout, Outcome, launched, program, share, three_steps};

const VOCAB: usize = 29;

/// Five segments, the head tied over the first and the last of them.
pub fn gpt2() -> DecoderConfig {
    let config =
        DecoderConfig::new(VOCAB).with_d_model(16).with_d_ff(24).with_heads(4).with_layers(3).with_positions(12);
    config.with_deviation(0.2)
}

/// Four heads of queries share two of keys; a head of its own.
pub fn llama() -> DecoderConfig {
    let scaling = RotaryScaling::Llama3 {
        factor: 4.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 2.0,
        original_positions: 16,
    };
    let config = DecoderConfig::llama_like(VOCAB).with_d_model(16).with_d_ff(23).with_heads(4).with_kv_heads(Some(2));
    let config = config.with_layers(3).with_positions(12).with_deviation(0.2).with_dropout(0.1);
    config.with_rotary(Some(RotaryConfig::new().with_theta(100.0).with_scaling(Some(scaling))))
}

pub fn qwen3() -> DecoderConfig {
    let config = llama().with_rotary(Some(RotaryConfig::new().with_theta(50.0))).with_qk_norm(true);
    config.with_head_dim(Some(6)).with_attention_dropout(0.2).with_tied_head(true)
}

/// Norms around each part, limits, and windows that rows are longer than, in the first and the last of three layers.
pub fn gemma2() -> DecoderConfig {
    llama()
        .with_rotary(Some(RotaryConfig::new().with_theta(50.0)))
        .with_head_dim(Some(6))
        .with_activation(Activation::GeluNew)
        .with_attention_dropout(0.2)
        .with_tied_head(true)
        .with_scaled_embeddings(true)
        .with_zero_centered_gamma(true)
        .with_sandwich_norm(true)
        .with_windows(vec![Some(3), None])
        .with_query_pre_attn_scalar(Some(2))
        .with_attention_softcap(Some(1.0))
        .with_logit_softcap(Some(2.0))
}

/// A Llama of which two layers have experts, one network shared by all tokens and a bias that balances; the layer between them is dense.
pub fn mixtral() -> DecoderConfig {
    let experts = DecoderExpertsConfig::new(4).with_d_ff(Some(12)).with_shared(Some(10)).with_dense_layers(vec![1]);
    llama().with_experts(Some(experts.with_auxiliary(0.3).with_z(0.01).with_bias_rate(Some(0.05))))
}

/// A Qwen3 with experts that have places for some tokens of a sequence, balanced over the batch.
pub fn qwen3_moe() -> DecoderConfig {
    let experts = DecoderExpertsConfig::new(6)
        .with_gate(Gate::TopK { experts: 3, renormalise: false })
        .with_capacity(Capacity::Factor { train: 1.0, eval: 2.0 })
        .with_balance(Balance::Batch)
        .with_auxiliary(0.3);
    qwen3().with_experts(Some(experts))
}

/// Ragged rows; of one only the end is learned, and of the last one nothing.
fn items() -> Vec<DecoderItem> {
    let row = |row: usize| {
        let length = 2 + (row * 5) % 11;
        let ids: Vec<i64> = (0..length).map(|token| ((row * 11 + token * token * 7) % VOCAB) as i64).collect();
        let label = |(at, token): (usize, &i64)| if row == 6 || (row == 1 && at < 4) { -1 } else { *token };
        let labels = ids.iter().enumerate().map(label).collect();
        DecoderItem { ids, labels }
    };
    (0..7).map(row).collect()
}

/// The gradients of the first batch, and three steps.
pub fn train(model: &DecoderConfig, layout: Layout) -> Outcome {
    let (config, optimizer, trace) = (layout.config(), AdamWConfig::new().with_epsilon(1e-4), Trace::new());
    let settings = |config: &Config| EngineSettings { clip_norm: Some(0.5), ..EngineSettings::from_config(config) };
    let batches = |epl: &Epl, step: u64| {
        let (batcher, items) = (DecoderBatcher::new(model), items());
        let batch = |rows: Range<usize>| batcher.batch(items[rows].to_vec(), epl.place().device());
        share(epl, items.len(), (step, layout.accumulation), batch)
    };
    let steps = |epl: Epl| {
        let engine = Engine::new(epl.build(|place| model.init(place))?, &optimizer, settings(epl.config()))?;
        three_steps(engine, |step| batches(&epl, step))
    };
    let (outcome, traced) = launched(layout, (&config, &trace), steps);
    let lay = |lazy: LazyModel<Decoder>, config: &Config| lazy.for_optimizer(&optimizer, settings(config));
    let step =
        program::Step { config: &config, trace: &trace, rows: items().len(), has_experts: model.experts.is_some() };
    program::check(&traced, step, |place| model.init(place), lay, |epl| batches(epl, 2));
    without_zeros(outcome)
}

/// What the parameters are after three steps under a layout, of which the last follows on what another one saved after two, if it is
/// given. Running numbers of layers are among them.
pub fn gone_on(model: &DecoderConfig, layout: Layout, saved: Option<Layout>) -> BTreeMap<String, TensorData> {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let (path, optimizer) = (folder.path().join("saved"), AdamWConfig::new().with_epsilon(1e-4));
    let run = |layout: Layout, steps: Range<u64>| {
        let ranks = epl::launch(&layout.config(), |epl| {
            let settings = EngineSettings::from_config(epl.config());
            let mut engine = Engine::new(epl.build(|place| model.init(place))?, &optimizer, settings)?;
            if steps.start > 0 {
                engine.load(&path)?;
            }
            let (batcher, items) = (DecoderBatcher::new(model), items());
            for step in steps.clone() {
                let batch = |rows: Range<usize>| batcher.batch(items[rows].to_vec(), epl.place().device());
                engine.step(share(&epl, items.len(), (step, layout.accumulation), batch), 0.02)?;
            }
            if steps.end == 2 {
                engine.save(&path)?;
            }
            engine.parameters()
        });
        ranks.unwrap_or_else(|error| panic!("{layout:?}: {error}")).swap_remove(0)
    };
    let mut found = match saved {
        Some(before) => {
            run(before, 0..2);
            run(layout, 2..3)
        }
        None => run(layout, 0..3),
    };
    found.retain(|name, _| !name.contains("heads.key.bias"));
    found
}

/// Without the biases of keys whose gradients are zero up to rounding: they shift all scores of a query alike.
fn without_zeros(mut outcome: Outcome) -> Outcome {
    for tensors in [&mut outcome.gradients, &mut outcome.parameters, &mut outcome.state] {
        tensors.retain(|name, _| !name.contains("heads.key.bias"));
    }
    outcome
}
