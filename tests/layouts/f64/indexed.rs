//! Rows that are made of a corpus of tokens are the same under every layout, and a run that is resumed goes on with the next ones: to
//! 1e-10.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::optim::AdamWConfig;
use burn::tensor::TensorData;
use epl::config::PipelineStrategy::PreferBackward;
use epl::data::{ShuffledSampler, TrainData};
use epl::models::bert::{BertBatcher, BertConfig, BertItem, Pretraining, PretrainingLabel};
use epl::models::indexed::{BlendConfig, IndexedCorpus, MaskedWordsConfig, SpanCorruptionConfig, TokenType, write};
use epl::models::t5::T5Batcher;
use epl::models::text::TokenPair;
use epl::testing::largest_error;
use epl::trainer::learning_rate::Decay;
use epl::{Engine, EngineSettings, Epl, LrSchedule, Model, Trainer, TrainerConfig};

use crate::parity::{Layout, dense, layout};

const BOUND: f64 = 1e-10;
const VOCAB: usize = 29;
const ROWS: usize = 6;

type Parameters = BTreeMap<String, TensorData>;

/// 20 documents of 2 to 6 sentences of 2 to 9 tokens.
fn corpus(folder: &Path) -> Arc<IndexedCorpus> {
    let sentence = |document: usize, at: usize| -> Vec<i64> {
        (0..2 + (document * 5 + at * 3) % 8)
            .map(|token| (4 + (document * 7 + at * 5 + token * token) % 20) as i64)
            .collect()
    };
    let document = |document: usize| Ok((0..2 + document % 5).map(|at| sentence(document, at)).collect());
    let prefix = folder.join("corpus");
    write(&prefix, TokenType::U16, (0..20).map(document)).expect("it can be written");
    Arc::new(IndexedCorpus::open(&prefix).expect("it was written"))
}

/// Trains to so many steps, on from what is in the folder.
fn train<M: Model, I: 'static>(
    (layout, steps, out): (Layout, u64, &Path),
    data: impl Fn() -> epl::Result<TrainData<I, M::Batch>> + Sync,
    build: impl Fn(&Epl) -> epl::Result<epl::LaidOutModel<M>> + Sync,
) -> Parameters
where
    M::Batch: 'static,
{
    let ranks = epl::launch(&layout.config(), |epl| {
        let optimizer = AdamWConfig::new().with_epsilon(1e-4);
        let engine = Engine::new(build(&epl)?, &optimizer, EngineSettings::from_config(epl.config()))?;
        let settings = TrainerConfig::new(steps)
            .with_micro_batches(layout.accumulation)
            .with_out(Some(out.to_path_buf()))
            .with_resume(out.join("checkpoints").exists());
        let trainer = Trainer::new(engine, settings, LrSchedule::new(0.02, Decay::Constant)).quiet();
        trainer.fit(&data()?)?.engine.parameters()
    });
    let mut parameters = ranks.unwrap_or_else(|error| panic!("{layout:?}: {error}")).swap_remove(0);
    parameters.retain(|name, _| !name.contains("key.bias"));
    parameters
}

/// One rank for four steps, beside two layouts one after the other, of two steps each.
fn check(run: impl Fn(Layout, u64, &Path) -> Parameters) {
    let folder = || tempfile::tempdir().expect("a folder for a moment");
    let alone = run(layout(1, 1, 1, 1), 4, folder().path());
    let first = run(layout(1, 1, 1, 1), 2, folder().path());
    assert!(largest_error(&first, &alone).1 > 1e-4, "steps change something");
    for (before, then) in [
        (layout(2, 1, 1, 2), layout(1, 2, 1, 1)),
        (layout(1, 1, 1, 2).stages(2, 1, PreferBackward), layout(3, 1, 1, 1)),
    ] {
        let out = folder();
        run(before, 2, out.path());
        let (name, error) = largest_error(&run(then, 4, out.path()), &alone);
        assert!(error <= BOUND, "{before:?}, then {then:?}: error {error:.1e} in {name}");
    }
}

#[test]
fn hidden_words_of_a_blend() {
    epl_testing::in_f64(|| {
        let folder = tempfile::tempdir().expect("a folder for a moment");
        let corpus = corpus(folder.path());
        let config = BertConfig::new(VOCAB).with_d_model(16).with_d_ff(24).with_heads(4).with_layers(2);
        let config = config.with_positions(24).with_deviation(0.2);
        let words = |length: usize| -> Arc<dyn Dataset<BertItem<PretrainingLabel>>> {
            let words = MaskedWordsConfig::new(length, VOCAB, 1, 2, 3).with_never(vec![0]).with_duplicates(3);
            Arc::new(words.init(corpus.clone()).expect("it can be"))
        };
        let data = || {
            let rows = BlendConfig::new(vec![2.0, 1.0], 50).init(vec![words(24), words(16)])?;
            let sampler = ShuffledSampler::new(rows.len(), ROWS, 7)?;
            TrainData::new(rows, BertBatcher::<Pretraining>::new(&config), sampler)
        };
        check(|layout, steps, out| {
            train((layout, steps, out), data, |epl| epl.build(|place| config.init_pretraining(place)))
        });
    });
}

#[test]
fn spans_that_are_cut_out() {
    epl_testing::in_f64(|| {
        let folder = tempfile::tempdir().expect("a folder for a moment");
        let corpus = corpus(folder.path());
        let model = dense().model;
        let data = || {
            let rows = SpanCorruptionConfig::new(9, model.vocab as i64 - 1, model.eos).init(corpus.clone())?;
            let sampler = ShuffledSampler::new(Dataset::<TokenPair>::len(&rows), ROWS, 7)?;
            TrainData::new(rows, T5Batcher::new(&model), sampler)
        };
        check(|layout, steps, out| train((layout, steps, out), data, |epl| epl.build(|place| model.init(place))));
    });
}
