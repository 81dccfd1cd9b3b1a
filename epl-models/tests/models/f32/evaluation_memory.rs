//! A model that no rank could hold is evaluated and writes: no rank ever has more of it than in training.

use burn::data::dataset::InMemDataset;
use burn::optim::SgdConfig;
use epl_comm::ProcessGroup;
use epl_core::data::ValidData;
use epl_core::engine::Engine;
use epl_core::evaluate::{Accuracy, Classified, Evaluator, Values};
use epl_core::{Config, Epl, Result, launch};
use epl_models::TokenPair;
use epl_models::t5::{IGNORED, T5, T5Batch, T5Batcher, T5Carry, T5Config};

use crate::ALLOCATOR;

const STAGES: usize = 2;
const REPLICAS: usize = 2;
const RANKS: u64 = (STAGES * REPLICAS) as u64;
const LONGEST: usize = 4;

/// Many layers, of which two at a time are small beside all.
fn model() -> T5Config {
    T5Config::new(64)
        .with_d_model(128)
        .with_d_kv(32)
        .with_d_ff(512)
        .with_heads(4)
        .with_encoder_layers(12)
        .with_decoder_layers(12)
        .with_dropout(0.0)
}

/// Parameters of the model in f32, near enough: matrices of blocks.
const MODEL: u64 = (4 * 12 * (12 * 128 * 128 + 16 * 128 * 128)) as u64;
/// Of one rank. The parameters alone are more.
const BUDGET: u64 = MODEL / 100 * 85;

/// An odd number of rows of different lengths.
fn pairs() -> Vec<TokenPair> {
    let row = |row: usize| (0..2 + row % 4).map(|at| (2 + (row * 7 + at * 5) % 62) as i64).chain([1]).collect();
    (0..5).map(|index| TokenPair { source: row(index), target: row(index + 3) }).collect()
}

fn engine(epl: &Epl) -> Result<Engine<T5>> {
    Engine::build(epl, |at| model().init(at), &SgdConfig::new())
}

/// The accuracy of tokens, and what is written for all sources.
fn evaluated(engine: &Engine<T5>) -> Result<(Values, Vec<Vec<i64>>)> {
    let classified = |model: &T5, carry: T5Carry, batch: &T5Batch| {
        let logits = model.logits_of(carry);
        let [rows, length, vocab] = logits.dims();
        let targets = batch.targets.clone().reshape([rows * length]);
        Classified::from_logits(logits.reshape([rows * length, vocab]), targets, Some(IGNORED))
    };
    let valid = ValidData::new(InMemDataset::new(pairs()), T5Batcher::new(&model()), 2)?;
    let accuracy = Evaluator::new(valid, classified).with(Accuracy::top(1)).with(Accuracy::top(8)).measure(engine)?;
    let sources: Vec<Vec<i64>> = pairs().into_iter().map(|pair| pair.source).collect();
    Ok((accuracy, T5::generate(engine, &sources, LONGEST)?))
}

/// The most bytes of all ranks together above `before` while all of them run `f`.
fn most_in<T>(before: i64, all: &ProcessGroup, f: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    all.trim();
    all.barrier()?;
    ALLOCATOR.look_anew();
    all.barrier()?;
    let value = f()?;
    all.barrier()?;
    Ok((value, u64::try_from(ALLOCATOR.most() - before).unwrap_or(0)))
}

#[test]
fn what_no_rank_could_hold_is_evaluated_and_writes_within_the_budget_of_each() {
    epl_testing::alone(|| {
        let stages = Config::new().with("dist.pipeline_parallel_size", STAGES).unwrap();
        let budgeted = |config: Config| config.with("offload.device_bytes", BUDGET).unwrap();
        for config in [Config::new(), stages.clone()] {
            let refused = launch(&budgeted(config), |epl| engine(&epl).map(|_| ())).unwrap_err().to_string();
            assert!(refused.contains(&BUDGET.to_string()), "{refused}");
        }
        // This also sets up what a process needs once.
        let alone = launch(&Config::new(), |epl| evaluated(&engine(&epl)?)).unwrap().remove(0);
        let sharded = stages.with("dist.data_parallel_size", REPLICAS).unwrap().with("zero.level", "v3").unwrap();
        let before = ALLOCATOR.live();
        let ranks = launch(&budgeted(sharded), |epl| {
            let (engine, all) = (engine(&epl)?, epl.context().world().clone());
            let elements: usize = engine.plan().records().iter().map(|record| record.global_numel()).sum();
            assert!(elements as u64 * 4 >= MODEL, "{elements} elements");
            let (found, most) = most_in(before, &all, || evaluated(&engine))?;
            let held = engine.memory_usage();
            assert!(held.parameters + held.gathered <= BUDGET / 2, "{held}");
            let (whole, most_whole) = most_in(before, &all, || engine.inference())?;
            drop(whole);
            Ok((found, most, most_whole))
        });
        for (found, most, most_whole) in ranks.unwrap() {
            println!("{} bytes a rank, gathered {}, of {BUDGET}", most / RANKS, most_whole / RANKS);
            assert_eq!(found, alone);
            assert!(most <= RANKS * BUDGET, "{most} bytes on {RANKS} ranks of {BUDGET}");
            assert!(most_whole > RANKS * BUDGET, "gathered whole, the model would fit: {most_whole} bytes");
        }
    });
}
