//! Measures of a validation set are those of one thread over all its samples, under every layout.
#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use epl_core::data::ValidData;
use epl_core::evaluate::{Accuracy, Average, Classified, Evaluator, F1, MeanLoss, Measure, Perplexity, Values};
use epl_core::testing::run;
use epl_core::{Engine, EngineSettings, Epl, Loss, LossWeights, Model, Result, launch, testing};

const CLASSES: usize = 6;
/// A target that stands for none.
const NONE: i64 = -1;

/// Scores the classes of points.
#[derive(Module, Debug)]
struct Scorer {
    head: Linear,
}

#[derive(Clone, Debug)]
struct Points {
    points: Tensor<2>,
    classes: Tensor<1, Int>,
    /// What the loss of each point is, and its weight: eighths, which add up to the bit in any order.
    nats: Vec<f64>,
    weights: Vec<f64>,
}

impl epl_core::Batch for Points {}

impl Model for Scorer {
    type Batch = Points;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &Points) -> LossWeights {
        LossWeights::new().with("nats", batch.weights.iter().sum())
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &Points) -> Loss {
        let sum = batch.nats.iter().sum::<f64>();
        Loss::new().with("nats", Tensor::from_data([sum], &batch.points.device()), 1.0)
    }
}

/// Item `index` of a dataset; every fifth has no class.
fn item(index: usize) -> ([f32; 3], i64, f64, f64) {
    let point = [7, 13, 29].map(|prime| (index * prime % 31) as f32 / 31.0 - 0.5);
    let class = if index % 5 == 4 { NONE } else { (index * 11 % 17 % CLASSES) as i64 };
    (point, class, (index % 9) as f64 / 8.0, 1.0 + (index % 3) as f64)
}

#[derive(Clone)]
struct Batches;

impl Batcher<usize, Points> for Batches {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Points {
        let items: Vec<_> = items.into_iter().map(item).collect();
        let points = items.iter().flat_map(|item| item.0).collect::<Vec<_>>();
        let classes = items.iter().map(|item| item.1).collect::<Vec<_>>();
        Points {
            points: Tensor::from_data(TensorData::new(points, [items.len(), 3]), device),
            classes: Tensor::from_data(classes.as_slice(), device),
            nats: items.iter().map(|item| item.2).collect(),
            weights: items.iter().map(|item| item.3).collect(),
        }
    }
}

fn valid(samples: usize, batch: usize) -> ValidData<usize, Points> {
    ValidData::new(InMemDataset::new((0..samples).collect()), Batches, batch).unwrap()
}

fn engine(epl: &Epl) -> Result<Engine<Scorer>> {
    let built = epl.build(|place| Scorer { head: LinearConfig::new(3, CLASSES).init(place) })?;
    Engine::new(built, &SgdConfig::new(), EngineSettings::default())
}

fn classified(model: &Scorer, (): (), batch: &Points) -> Result<Classified> {
    Classified::from_logits(model.head.forward(batch.points.clone()), batch.classes.clone(), Some(NONE))
}

/// All measures at once.
fn measured(engine: &Engine<Scorer>, samples: usize, batch: usize) -> Result<Values> {
    let mut classes = Evaluator::new(valid(samples, batch), classified)
        .with(Accuracy::top(1))
        .with(Accuracy::top(3))
        .with(Accuracy::of("own_accuracy", |output: &Classified| {
            let right: Vec<bool> = output.places.iter().map(|place| *place < 2).collect();
            Tensor::<1, Bool>::from_data(right.as_slice(), &Device::default())
        }))
        .with(F1::new(CLASSES, Average::Macro))
        .with(F1::new(CLASSES, Average::Micro).named("micro_f1"))
        .with(F1::new(CLASSES, Average::Of(4)).named("f1_of_4"));
    let mut loss = Evaluator::of_loss(valid(samples, batch)).with(MeanLoss::of("nats")).with(Perplexity::of("nats"));
    Ok([classes.measure(engine)?, loss.measure(engine)?].concat())
}

/// The same by their definitions, over all samples at once.
fn expected(engine: &Engine<Scorer>, samples: usize) -> Values {
    let batch = Batches.batch((0..samples).collect(), &engine.device().clone().without_autodiff());
    let logits = engine.inference().unwrap().head.forward(batch.points.clone()).into_data();
    let logits: Vec<f32> = logits.iter::<f32>().collect();
    let mut rows = Vec::new();
    for (index, row) in logits.chunks(CLASSES).enumerate() {
        let mut order: Vec<i64> = (0..CLASSES as i64).collect();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
        rows.push((item(index).1, order));
    }
    rows.retain(|(class, _)| *class != NONE);
    let top =
        |k: usize| rows.iter().filter(|(class, order)| order[..k].contains(class)).count() as f64 / rows.len() as f64;
    let counts = |class: i64| {
        let count = |f: &dyn Fn(bool, bool) -> bool| {
            rows.iter().filter(|(target, order)| f(*target == class, order[0] == class)).count() as f64
        };
        [count(&|there, found| there && found), count(&|_, found| found), count(&|there, _| there)]
    };
    let f1 = |[hits, found, there]: [f64; 3]| 2.0 * hits / (found + there);
    let classes: Vec<[f64; 3]> =
        (0..CLASSES as i64).map(counts).filter(|[_, found, there]| found + there > 0.0).collect();
    let nats = batch.nats.iter().sum::<f64>() / batch.weights.iter().sum::<f64>();
    [
        ("accuracy", top(1)),
        ("top_3_accuracy", top(3)),
        ("own_accuracy", top(2)),
        ("f1", classes.iter().map(|class| f1(*class)).sum::<f64>() / classes.len() as f64),
        ("micro_f1", top(1)),
        ("f1_of_4", f1(counts(4))),
        ("nats", nats),
        ("perplexity", nats.exp()),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec()
}

#[test]
fn measures_are_those_of_one_thread_under_every_layout() {
    for (samples, batch) in [(7, 2), (7, 1), (23, 3)] {
        let expected = run((1, 1, 1), |epl| Ok(expected(&engine(&epl)?, samples))).remove(0);
        assert!(expected[0].1 > 0.0 && expected[1].1 < 1.0, "the test can tell: {expected:?}");
        for sizes in [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 2, 2)] {
            for got in run(sizes, |epl| measured(&engine(&epl)?, samples, batch)) {
                assert_eq!(got, expected, "{samples} samples by {batch} on {sizes:?}");
            }
        }
    }
}

#[test]
fn ranks_without_a_sample_take_part() {
    let expected = run((1, 1, 1), |epl| Ok(expected(&engine(&epl)?, 2))).remove(0);
    // F1 of a class that does not occur is no number: only what two samples have.
    for values in run((4, 1, 1), |epl| {
        let mut evaluator = Evaluator::new(valid(2, 3), classified).with(Accuracy::top(1)).with(Accuracy::top(3));
        evaluator.measure(&engine(&epl)?)
    }) {
        assert_eq!(values, expected[..2]);
    }
}

#[test]
fn a_measure_that_fails_on_one_rank_ends_the_run_everywhere() {
    let failed = launch(&testing::config(3, 1, 1), |epl| {
        let evaluator = Evaluator::new(valid(7, 1), classified);
        let first = epl.context().world().rank() == 0;
        let mut evaluator = if first { evaluator.with(Broken) } else { evaluator.with(Accuracy::top(1)) };
        evaluator.measure(&engine(&epl)?)
    });
    let text = failed.unwrap_err().to_string();
    assert!(text.contains("rank 0") && text.contains("broken"), "{text}");
}

/// A measure that cannot measure.
struct Broken;

impl Measure<Classified> for Broken {
    fn sums(&self) -> usize {
        2
    }

    fn add(&self, _output: &Classified, _sums: &mut [f64]) -> Result<()> {
        Err(epl_core::Error::invalid("broken"))
    }

    fn values(&self, _sums: &[f64]) -> Result<Values> {
        Ok(Values::new())
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let fails = |f: fn(&Engine<Scorer>) -> Result<Values>| {
        launch(&testing::config(2, 1, 1), |epl| f(&engine(&epl)?)).unwrap_err().to_string()
    };
    let none = fails(|engine| Evaluator::new(valid(7, 2), classified).measure(engine));
    assert!(none.contains("without a measure"), "{none}");
    let twice = fails(|engine| {
        Evaluator::new(valid(7, 2), classified).with(Accuracy::top(1)).with(Accuracy::top(1)).measure(engine)
    });
    assert!(twice.contains("`accuracy`"), "{twice}");
    let term = fails(|engine| Evaluator::of_loss(valid(7, 2)).with(Perplexity::of("bits")).measure(engine));
    assert!(term.contains("`bits`") && term.contains("nats"), "{term}");
    let target = fails(|engine| {
        let forward = |model: &Scorer, (): (), batch: &Points| {
            Classified::from_logits(model.head.forward(batch.points.clone()), batch.classes.clone(), None)
        };
        Evaluator::new(valid(7, 2), forward).with(Accuracy::top(1)).measure(engine)
    });
    assert!(target.contains("class -1, and logits of 6 classes"), "{target}");
}

/// What enters a head is known by the type that leaves the model alone.
#[test]
fn a_head_in_the_place_of_a_link_that_changes_the_type() {
    let found = launch(&testing::config(1, 1, 1), |epl| {
        let chain = |at: &epl_core::Place| {
            let link = || LinearConfig::new(3, 3).init(at);
            epl_core::Chain::of((link(), link()))
                .first(&["0"], |net: &(Linear, Linear), batch: &Points| {
                    net.0.forward(batch.points.clone()).unsqueeze_dim::<3>(1)
                })
                .then(&["1"], |net, x: Tensor<3>, _| net.1.forward(x).squeeze_dim::<2>(1))
                .mean_loss(|_, x: Tensor<2>, _| x.powi_scalar(2).mean())
        };
        let engine = Engine::build(&epl, chain, &SgdConfig::new())?;
        let head = |_: &_, x: Tensor<2>, batch: &Points| Classified::from_logits(x, batch.classes.clone(), Some(NONE));
        Evaluator::with_head(valid(4, 2), head).with(Accuracy::top(1)).measure(&engine).map(drop)
    });
    let error = found.unwrap_err().to_string();
    assert!(error.contains("enters the last segment") && error.contains("Tensor<2>"), "{error}");
    assert!(error.contains("return the type that it takes") && error.contains("Evaluator::new"), "{error}");
    assert!(!error.contains("`map`"), "{error}");
}
