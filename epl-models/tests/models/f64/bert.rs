//! The layout changes nothing of a BERT, in f64: with dropout, ragged rows, micro-batches, stages, and replicas without
//! a row, loss, norm, gradients, parameters and optimizer state are those of one rank, to 1e-10.

use std::collections::BTreeMap;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use burn::tensor::TensorData;
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch, StepReport};
use epl_core::testing::{config, error_on_scale, relative_error};
use epl_core::{Config, Epl, Model, Place, launch};
use epl_models::bert::{
    Bert, BertArchitecture, BertBatch, BertBatcher, BertConfig, BertHead, BertItem, MaskedLanguage, Pretraining,
    PretrainingLabel, QuestionAnswering, SequenceClassification, measured_beside,
};

const BOUND: f64 = 1e-10;
const STEPS: u64 = 3;

/// Replicas, tensor ranks and stages; micro-batches of a replica.
#[derive(Clone, Copy, Debug)]
struct Layout {
    data: usize,
    tensor: usize,
    stages: usize,
    parts: usize,
}

const fn layout(data: usize, tensor: usize, stages: usize, parts: usize) -> Layout {
    Layout { data, tensor, stages, parts }
}

impl Layout {
    fn config(self) -> Config {
        let mut config = config(self.data, self.tensor, 1);
        config.dist.pipeline_parallel_size = self.stages;
        config
    }
}

/// A head, with rows that it learns.
struct Case<H: BertHead> {
    shape: BertConfig,
    init: fn(&BertConfig, &Place) -> Bert<H>,
    items: Vec<BertItem<H::Label>>,
}

/// Four segments; weights large enough that all parameters matter.
fn shape() -> BertConfig {
    BertConfig::new(29)
        .with_d_model(16)
        .with_d_ff(24)
        .with_heads(4)
        .with_layers(3)
        .with_positions(12)
        .with_classes(3)
        .with_deviation(0.2)
}

/// Ragged rows; the second one ends with padding of its own.
fn items<L>(count: usize, label: impl Fn(usize, usize) -> L) -> Vec<BertItem<L>> {
    let item = |row: usize| {
        let length = 3 + (row * 5) % 9;
        let ids = (0..length).map(|token| ((row * 11 + token * 7) % 29) as i64).collect();
        let types = (0..length).map(|token| i64::from(token > length / 2)).collect();
        let mut item = BertItem::new(ids, types, label(row, length));
        item.tokens -= usize::from(row == 1);
        item
    };
    (0..count).map(item).collect()
}

/// One answer is outside its row, and one in part.
fn answers(count: usize) -> Case<QuestionAnswering> {
    let label = |row: usize, length: usize| match row {
        2 => (99, 99),
        4 => (1, 99),
        row => (row % 3, length / 2),
    };
    Case { shape: shape(), init: BertConfig::init_question_answering, items: items(count, label) }
}

/// Some tokens of every row but the last count.
fn tokens(count: usize) -> Case<MaskedLanguage> {
    let hidden = |row: usize, token: usize| row + 1 < count && (row + token).is_multiple_of(3);
    let target = |row: usize, token: usize| if hidden(row, token) { ((row + 2 * token) % 29) as i64 } else { -100 };
    let label = |row: usize, length: usize| (0..length).map(|token| target(row, token)).collect();
    Case { shape: shape(), init: BertConfig::init_masked_language, items: items(count, label) }
}

/// One row does not count.
fn classes(count: usize) -> Case<SequenceClassification> {
    let label = |row: usize, _| if row == 3 { -100 } else { (row % 3) as i64 };
    Case { shape: shape(), init: BertConfig::init_classification, items: items(count, label) }
}

/// Of one row neither the tokens nor the sentence count.
fn pretraining(count: usize) -> Case<Pretraining> {
    let of_tokens = tokens(count).items.into_iter().zip(classes(count).items).enumerate();
    let both = |(row, (tokens, classes)): (usize, (BertItem<Vec<i64>>, BertItem<i64>))| {
        let BertItem { ids, token_types, tokens, label } = tokens;
        let sentence = if row == 3 { -100 } else { classes.label % 2 };
        BertItem { ids, token_types, tokens, label: PretrainingLabel { tokens: label, sentence } }
    };
    Case { shape: shape(), init: BertConfig::init_pretraining, items: of_tokens.map(both).collect() }
}

/// As a RoBERTa: some of the tokens are padding, in the midst of a row.
fn roberta<H: BertHead>(case: Case<H>) -> Case<H> {
    let shape = shape().with_architecture(BertArchitecture::Roberta).with_pad(18).with_positions(32);
    assert!(case.items.iter().any(|item| item.ids[..item.ids.len() - 1].contains(&18)), "padding inside");
    Case { shape, ..case }
}

/// What one run left.
struct Outcome {
    reports: Vec<StepReport>,
    evaluation: f64,
    outputs: BTreeMap<String, TensorData>,
    /// Gradients, parameters and state, by what they are.
    tensors: [(&'static str, BTreeMap<String, TensorData>); 3],
}

impl<H: BertHead> Case<H> {
    fn micro_batches(&self, epl: &Epl, step: u64, parts: usize) -> Vec<MicroBatch<BertBatch<H::Labels>>> {
        let (data, batcher, count) = (epl.context().data(), BertBatcher::<H>::new(&self.shape), self.items.len());
        let micro_batch = |part: usize| {
            let rows = shard_range(count, data.size() * parts, data.rank() * parts + part);
            let stand_in = rows.is_empty();
            let rows = if stand_in { 0..1 } else { rows };
            let batch = batcher.batch(self.items[rows.clone()].to_vec(), epl.place().device());
            let samples: Vec<u64> = rows.map(|row| step * count as u64 + row as u64).collect();
            if stand_in { MicroBatch::stand_in(batch, samples) } else { MicroBatch::new(batch, samples) }
        };
        (0..parts).map(micro_batch).collect()
    }

    fn train(&self, layout: Layout) -> Outcome {
        let optimizer = AdamWConfig::new().with_epsilon(1e-4);
        let outcomes = launch(&layout.config(), |epl| {
            let settings = EngineSettings { clip_norm: Some(0.5), ..Default::default() };
            let mut engine = Engine::new(epl.build(|place| (self.init)(&self.shape, place))?, &optimizer, settings)?;
            let evaluated = engine.evaluate(self.micro_batches(&epl, 0, layout.parts).into_iter().map(Ok))?;
            let (_, gradients) = engine.gradients(self.micro_batches(&epl, 0, layout.parts))?;
            let step = |step| engine.step(self.micro_batches(&epl, step, layout.parts), 0.02);
            let reports = (0..STEPS).map(step).collect::<epl_core::Result<_>>()?;
            let tensors =
                [("gradient", gradients), ("parameter", engine.parameters()?), ("state", engine.optimizer_state()?)];
            Ok(Outcome { reports, evaluation: evaluated.loss, outputs: evaluated.outputs, tensors })
        });
        let outcomes = outcomes.unwrap_or_else(|error| panic!("{layout:?}: {error}"));
        for other in &outcomes[1..] {
            assert_eq!(outcomes[0].reports, other.reports, "reports are the same on every rank");
            assert_eq!(outcomes[0].outputs, other.outputs, "outputs are the same on every rank");
            assert_eq!(outcomes[0].tensors[1], other.tensors[1], "replicas stay equal, to the bit");
        }
        outcomes.into_iter().next().expect("there is a first rank")
    }

    fn check(&self, layouts: &[Layout]) {
        let expected = self.train(layout(1, 1, 1, 1));
        for layout in layouts {
            let found = self.train(*layout);
            let mut worst = (String::new(), 0.0);
            for (what, error) in differences::<H>(&self.shape, &found, &expected) {
                assert!(error <= BOUND, "{layout:?}: error {error:.1e} in {what}");
                worst = if error > worst.1 { (what, error) } else { worst };
            }
            println!("{layout:?}: largest error {:.1e}, in {}", worst.1, worst.0);
        }
    }
}

/// All errors, by what they are errors of.
fn differences<H: BertHead>(shape: &BertConfig, found: &Outcome, expected: &Outcome) -> Vec<(String, f64)> {
    let number = |a: f64, b: f64| if a.is_finite() { (a - b).abs() / b.abs() } else { f64::INFINITY };
    let mut errors = vec![("evaluated loss".to_string(), number(found.evaluation, expected.evaluation))];
    for (step, (a, b)) in found.reports.iter().zip(&expected.reports).enumerate() {
        errors.push((format!("loss of step {step}"), number(a.loss, b.loss)));
        errors.push((format!("norm of step {step}"), number(a.grad_norm, b.grad_norm)));
    }
    let outputs = ("output", &found.outputs, &expected.outputs);
    let tensors = found.tensors.iter().zip(&expected.tensors).map(|((what, a), (_, b))| (*what, a, b));
    for (what, found, expected) in tensors.chain([outputs]) {
        assert!(found.keys().eq(expected.keys()), "{what}: {:?} instead of {:?}", found.keys(), expected.keys());
        for (name, value) in found {
            // A field of the optimizer's state stands behind the parameter's name.
            let last = ["bias.", "beta."].into_iter().find_map(|last| name.find(last).map(|at| at + last.len() - 1));
            let (path, field) = name.split_at(last.unwrap_or(name.len()));
            let error = match measured_beside::<H>(shape, path) {
                Some(other) => error_on_scale(value, &expected[name], &expected[&format!("{other}{field}")]),
                None => relative_error(value, &expected[name]),
            };
            errors.push((format!("{what} {name}"), error));
        }
    }
    errors
}

/// Replicas, tensor ranks, stages, and several of them.
const LAYOUTS: [Layout; 12] = [
    layout(1, 1, 1, 5),
    layout(2, 1, 1, 1),
    layout(1, 2, 1, 1),
    layout(1, 1, 2, 1),
    layout(1, 1, 2, 2),
    layout(1, 1, 2, 5),
    layout(1, 1, 3, 1),
    layout(1, 1, 3, 2),
    layout(1, 1, 3, 5),
    layout(2, 1, 2, 2),
    layout(1, 2, 2, 2),
    layout(2, 2, 2, 5),
];

#[test]
fn answers_to_questions() {
    epl_testing::in_f64(|| {
        answers(7).check(&LAYOUTS);
    });
}

#[test]
fn hidden_tokens() {
    epl_testing::in_f64(|| {
        tokens(7).check(&LAYOUTS);
    });
}

#[test]
fn classes_of_rows() {
    epl_testing::in_f64(|| {
        classes(7).check(&LAYOUTS);
    });
}

#[test]
fn tokens_and_sentences() {
    epl_testing::in_f64(|| {
        pretraining(7).check(&LAYOUTS);
    });
}

#[test]
fn as_a_roberta() {
    epl_testing::in_f64(|| {
        roberta(tokens(7)).check(&LAYOUTS);
        roberta(classes(7)).check(&LAYOUTS[..4]);
    });
}

#[test]
fn replicas_without_a_row() {
    epl_testing::in_f64(|| {
        let layouts = [layout(4, 1, 1, 1), layout(2, 1, 2, 5), layout(4, 1, 2, 2)];
        answers(3).check(&layouts);
        tokens(3).check(&layouts);
        classes(3).check(&layouts);
        pretraining(3).check(&layouts);
    });
}

#[test]
fn segments_are_named_for_every_parameter() {
    epl_testing::in_f64(|| {
        let segments = |tied: bool| {
            launch(&config(1, 1, 1), |epl| {
                let records = match tied {
                    true => epl.build(|at| shape().init_masked_language(at))?.plan().records().to_vec(),
                    false => {
                        let built = epl.build(|at| shape().init_question_answering(at))?;
                        assert_eq!(built.model().segments(), 4);
                        built.plan().records().to_vec()
                    }
                };
                Ok(records.into_iter().map(|record| (record.name, record.segments)).collect::<BTreeMap<_, _>>())
            })
            .expect("it can be built")
            .remove(0)
        };
        let (answers, tokens) = (segments(false), segments(true));
        assert_eq!((&answers["embeddings.words.weight"], &tokens["embeddings.words.weight"]), (&vec![0], &vec![0, 3]));
        assert_eq!(answers["embeddings.positions.weight"], [0]);
        assert_eq!(answers["layers.2.feed_forward.norm.beta"], [2]);
        assert_eq!((&answers["head.answers.bias"], &tokens["head.bias"]), (&vec![3], &vec![3]));
        assert!(answers.values().chain(tokens.values()).all(|segments| !segments.is_empty()));
    });
}
