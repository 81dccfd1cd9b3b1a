//! Accuracy, F1, BLEU, losses and texts under every layout, sharded and offloaded, are those of one rank; of a model that
//! has half learned what it is asked.

use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::optim::AdamWConfig;
use epl_comm::shard_range;
use epl_core::data::ValidData;
use epl_core::engine::{Engine, MicroBatch};
use epl_core::evaluate::{Accuracy, Average, Classified, Evaluator, F1, MeanLoss, Values};
use epl_core::{Config, Epl, Model, Place, Result, launch};
use epl_models::TokenPair;
use epl_models::bert::classification::SequenceClassification;
use epl_models::bert::{BertBatch, BertBatcher, BertConfig, BertForSequenceClassification, BertHead, BertItem};
use epl_models::t5::{IGNORED, T5, T5Batch, T5Batcher, T5Carry, T5Config, T5MoeConfig};
use epl_models::text::{CorpusBleu, Judged, MeanScore, Pair, PairBatcher};
use epl_modules::moe::Capacity;

const LONGEST: usize = 9;

/// What differs from one rank.
type Settings = &'static [(&'static str, &'static str)];

const TWO_STAGES: (&str, &str) = ("dist.pipeline_parallel_size", "2");
const TWO_REPLICAS: (&str, &str) = ("dist.data_parallel_size", "2");
const SHARDED: (&str, &str) = ("zero.level", "v3");

const LAYOUTS: [Settings; 8] = [
    &[TWO_STAGES],
    &[TWO_STAGES, ("pipeline.num_chunks", "2")],
    &[("dist.tensor_parallel_size", "2")],
    &[TWO_REPLICAS, SHARDED],
    &[("offload.level", "v0")],
    &[TWO_STAGES, ("offload.level", "v1")],
    &[TWO_STAGES, TWO_REPLICAS, SHARDED],
    &[TWO_STAGES, ("dist.data_parallel_size", "3"), SHARDED, ("offload.level", "v0")],
];

/// What all ranks find: `f` with the model that was trained on one rank, under each layout.
fn check<M: Model, T: PartialEq + core::fmt::Debug + Send>(
    model: impl Fn(&Place) -> M + Sync,
    train: impl Fn(&mut Engine<M>) -> Result<()> + Sync,
    f: impl Fn(&Epl, &Engine<M>) -> Result<T> + Sync,
    same: impl Fn(&T, &T) -> bool,
) {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("checkpoint");
    let of = |settings: Settings, make: &(dyn Fn(&mut Engine<M>, &Path) -> Result<()> + Sync)| {
        let set = |config: Config, (key, value): &(&str, &str)| match value.parse::<usize>() {
            Ok(number) => config.with(key, number).unwrap(),
            Err(_) => config.with(key, *value).unwrap(),
        };
        let config = settings.iter().fold(Config::new(), set);
        let ranks = launch(&config, |epl| {
            let mut engine = Engine::build(&epl, &model, &AdamWConfig::new())?;
            make(&mut engine, &saved)?;
            f(&epl, &engine)
        });
        ranks.unwrap_or_else(|error| panic!("{settings:?}: {error}"))
    };
    let expected = of(&[], &|engine, saved| {
        train(engine)?;
        engine.save(saved)
    });
    println!("{expected:?}");
    for settings in LAYOUTS {
        for (rank, found) in of(settings, &|engine, saved| engine.load(saved)).iter().enumerate() {
            assert!(same(found, &expected[0]), "{settings:?}, rank {rank}: {found:?} instead of {expected:?}");
        }
    }
}

/// Counts to the bit, and losses to rounding.
fn same(found: &Values, expected: &Values) -> bool {
    let is_loss = |name: &str| name.contains("cross_entropy");
    let close = |name: &str, a: f64, b: f64| if is_loss(name) { (a / b - 1.0).abs() <= 1e-5 } else { a == b };
    found.len() == expected.len()
        && found.iter().zip(expected).all(|((name, a), (other, b))| name == other && close(name, *a, *b))
}

/// That a test can tell a wrong value from a right one.
fn between(values: &Values, most: f64) -> bool {
    values.iter().all(|(_, value)| *value > 0.0 && *value < most)
}

fn dense() -> T5Config {
    T5Config::new(23)
        .with_d_model(16)
        .with_d_kv(6)
        .with_d_ff(24)
        .with_heads(4)
        .with_encoder_layers(2)
        .with_decoder_layers(2)
        .with_dropout(0.0)
}

/// With room for all, so that no forward drops a token.
fn experts() -> T5Config {
    let moe = T5MoeConfig::new(4).with_decoder_sparse_step(2).with_capacity(Capacity::Unlimited);
    dense().with_moe(Some(moe))
}

/// Rows of different lengths, an odd number of them.
fn pairs() -> Vec<TokenPair> {
    let row =
        |row: usize, length: usize| (0..length).map(|at| (2 + (row * 5 + at * 3) % 20) as i64).chain([1]).collect();
    (0..5).map(|index| TokenPair { source: row(index, 1 + index % 4), target: row(index + 1, 2 + index % 5) }).collect()
}

fn text(tokens: &[i64]) -> String {
    tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn tokens(text: &str) -> Vec<i64> {
    text.split(' ').map(|token| token.parse().unwrap()).collect()
}

fn of_tokens(model: &T5, carry: T5Carry, batch: &T5Batch) -> Result<Classified> {
    let logits = model.logits_of(carry);
    let [rows, length, vocab] = logits.dims();
    let targets = batch.targets.clone().reshape([rows * length]);
    Classified::from_logits(logits.reshape([rows * length, vocab]), targets, Some(IGNORED))
}

/// The measures of tokens and of texts, and what every source becomes.
fn judged(config: &T5Config, epl: &Epl, engine: &Engine<T5>) -> Result<(Values, Vec<Vec<i64>>)> {
    let valid = ValidData::new(InMemDataset::new(pairs()), T5Batcher::new(config), 2)?;
    let mut classes = Evaluator::new(valid.clone(), of_tokens)
        .with(Accuracy::top(1))
        .with(Accuracy::top(3))
        .with(F1::new(config.vocab, Average::Macro));
    let mut loss = Evaluator::of_loss(valid).with(MeanLoss::of("cross_entropy"));
    let sentence = |pair: TokenPair| Pair {
        source: text(&pair.source),
        target: text(pair.target.split_last().map_or(&[][..], |(_, written)| written)),
    };
    let sentences = InMemDataset::new(pairs().into_iter().map(sentence).collect());
    let write = |engine: &Engine<T5>, pairs: &Vec<Pair>| {
        let sources: Vec<Vec<i64>> = pairs.iter().map(|pair| tokens(&pair.source)).collect();
        let written = T5::generate(engine, &sources, LONGEST)?;
        Ok(written.iter().zip(pairs).map(|(tokens, pair)| Judged::new(text(tokens), &pair.target)).collect::<Vec<_>>())
    };
    let mut texts = Evaluator::by(ValidData::new(sentences, PairBatcher, 2)?, write)
        .with(CorpusBleu)
        .with(MeanScore::token_f1().named("token_f1"))
        .with(MeanScore::equal());
    let values = [classes.measure(engine)?, loss.measure(engine)?, texts.measure(engine)?].concat();
    // Each replica writes its share of all sources, and of one source one replica writes all.
    let data = epl.context().data();
    let sources: Vec<Vec<i64>> = pairs().into_iter().map(|pair| pair.source).collect();
    let mut written = T5::generate(engine, &sources, LONGEST)?;
    for count in [sources.len(), 1] {
        let mine = shard_range(count, data.size(), data.rank());
        assert_eq!(T5::generate(engine, &sources[mine.clone()], LONGEST)?, written[mine]);
    }
    written.push(T5::generate(engine, &sources[..1], 2)?.remove(0));
    Ok((values, written))
}

fn check_t5(config: &T5Config, steps: usize) {
    let train = |engine: &mut Engine<T5>| {
        let batch = T5Batcher::new(config).batch(pairs(), engine.device());
        (0..steps)
            .try_for_each(|_| engine.step(vec![MicroBatch::new(batch.clone(), [0, 1, 2, 3, 4])], 1e-2).map(|_| ()))
    };
    let found = |epl: &Epl, engine: &Engine<T5>| {
        let (values, texts) = judged(config, epl, engine)?;
        assert!(between(&values, 100.0) && values[0].1 < 1.0, "{values:?}");
        Ok((values, texts))
    };
    check(|at| config.init(at), train, found, |a, b| same(&a.0, &b.0) && a.1 == b.1);
}

#[test]
fn a_t5() {
    check_t5(&dense(), 14);
}

#[test]
fn a_t5_with_experts() {
    check_t5(&experts(), 14);
}

fn bert() -> BertConfig {
    BertConfig::new(29)
        .with_d_model(16)
        .with_d_ff(24)
        .with_heads(4)
        .with_layers(3)
        .with_positions(12)
        .with_classes(4)
        .with_dropout(0.0)
        .with_attention_dropout(0.0)
        .with_deviation(0.2)
}

/// Rows of different lengths, one of no class.
fn rows() -> Vec<BertItem<i64>> {
    let item = |row: usize| {
        let length = 3 + (row * 5) % 9;
        let ids = (0..length).map(|token| ((row * 11 + token * 7) % 29) as i64).collect();
        BertItem::new(ids, vec![0; length], if row == 3 { -1 } else { (row * row % 7 % 4) as i64 })
    };
    (0..11).map(item).collect()
}

#[test]
fn a_classifier() {
    type Batch = BertBatch<<SequenceClassification as BertHead>::Labels>;
    let config = bert();
    let train = |engine: &mut Engine<BertForSequenceClassification>| {
        let batch = BertBatcher::<SequenceClassification>::new(&bert()).batch(rows(), engine.device());
        let samples: Vec<u64> = (0..11).collect();
        (0..2).try_for_each(|_| engine.step(vec![MicroBatch::new(batch.clone(), samples.clone())], 1e-2).map(|_| ()))
    };
    let classified = |model: &BertForSequenceClassification, carry, batch: &Batch| {
        let logits = model.logits_of(carry);
        let [rows, _, classes] = logits.dims();
        Classified::from_logits(logits.reshape([rows, classes]), batch.labels.targets.clone(), Some(IGNORED))
    };
    let found = |_: &Epl, engine: &Engine<BertForSequenceClassification>| {
        // More rounds than are read ahead, and a last one of fewer rows than replicas.
        let valid = ValidData::new(InMemDataset::new(rows()), BertBatcher::<SequenceClassification>::new(&config), 1)?;
        let mut classes = Evaluator::new(valid.clone(), classified)
            .with(Accuracy::top(1))
            .with(Accuracy::top(2))
            .with(F1::new(4, Average::Macro))
            .with(F1::new(4, Average::Of(1)).named("f1_of_1"));
        let mut loss = Evaluator::of_loss(valid).with(MeanLoss::of("cross_entropy"));
        let values = [classes.measure(engine)?, loss.measure(engine)?].concat();
        assert!(between(&values, 2.0) && values[0].1 < 1.0, "{values:?}");
        Ok(values)
    };
    check(|at| config.init_classification(at), train, found, same);
}
