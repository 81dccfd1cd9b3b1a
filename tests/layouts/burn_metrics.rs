//! Burn's metrics in an evaluator: under every layout those of Burn's loop over one rank's batches.

use burn::data::dataset::InMemDataset;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_train::ClassificationOutput;
use burn_train::metric::{
    AccuracyInput, AccuracyMetric, Adaptor, AurocMetric, ClassReduction, LossInput, LossMetric, Metric, MetricMetadata,
    Numeric, PerplexityMetric, PrecisionMetric, TopKAccuracyMetric,
};
use epl::Carry;
use epl::data::ValidData;
use epl::evaluate::{Accuracy, Evaluator, MeanLoss, Values};
use epl::prelude::*;
use epl::train::BurnMetrics;

use crate::widths::{Batch, Case, Net, Numbered, rows};

/// So many rows, so many at a time: two whole batches, and a last one of three.
const ROWS: usize = 11;
const BATCH: usize = 4;

fn output(model: &Net, hidden: Tensor<2>, (_, classes): &Batch) -> ClassificationOutput {
    let logits = model.logits(hidden);
    let loss = CrossEntropyLossConfig::new().init(&logits.device()).forward(logits.clone(), classes.clone());
    ClassificationOutput::new(loss, logits, classes.clone())
}

fn valid(batch: usize) -> ValidData<usize, Batch> {
    ValidData::new(InMemDataset::new((0..ROWS).collect()), Numbered, batch).expect("some data")
}

fn precision() -> PrecisionMetric {
    PrecisionMetric::multiclass(2, ClassReduction::Macro)
}

fn auroc() -> AurocMetric {
    AurocMetric::multiclass(ClassReduction::Micro)
}

/// Two passes over all metrics, the second of which begins anew, and of a measure of sums beside them.
fn measured(case: &Case, batch: usize) -> Vec<Values> {
    let all = epl::launch(&case.config(), |epl| {
        let engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
        let metrics = BurnMetrics::new()
            .with_input(AccuracyMetric::new(), |of: &ClassificationOutput| {
                AccuracyInput::new(of.output.clone(), of.targets.clone())
            })
            .with(LossMetric::new())
            .with(TopKAccuracyMetric::new(3))
            .with(precision())
            .with(auroc())
            .with(PerplexityMetric::new());
        let outputs = |model: &Chain<Net, Batch, Tensor<2>>, hidden: Tensor<2>, batch: &Batch| {
            Ok(output(&model.model, hidden, batch))
        };
        let right = |of: &ClassificationOutput| {
            let [rows, _] = of.output.dims();
            of.output.clone().argmax(1).reshape([rows]).equal(of.targets.clone())
        };
        let mut evaluator = Evaluator::with_head(valid(batch), outputs)
            .with(Accuracy::of("accuracy", right))
            .with_batches(metrics)
            .with_batches(BurnMetrics::new().with(AccuracyMetric::new()).with_prefix("again "));
        let first = evaluator.measure(&engine)?;
        assert_eq!(evaluator.measure(&engine)?, first);
        Ok(first)
    });
    all.unwrap_or_else(|error| panic!("{:?}: {error}", case.scopes))
}

/// The final value of a metric in Burn's loop over batches, and its last running one.
fn looped<M>(mut metric: M, outputs: &[ClassificationOutput]) -> f64
where
    M: Metric + Numeric,
    ClassificationOutput: Adaptor<M::Input>,
{
    for output in outputs {
        let progress = burn::data::dataloader::Progress { items_processed: 0, items_total: ROWS, unit: None };
        metric.update(&output.adapt(), &MetricMetadata { progress, iteration: None, lr: None }).expect("it is read");
    }
    let running = metric.running_value();
    metric.compute().expect("it is read");
    let last = metric.final_value().current();
    assert!(running.is_none_or(|running| running.current() == last), "the last running value is the final one");
    last
}

/// What Burn finds on one rank, by plain loops.
fn expected(batch: usize) -> Values {
    let case = Case::new(1, &[], ROWS, 1);
    let all = epl::launch(&case.config(), |epl| {
        let engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
        let (model, device) = (engine.inference()?, engine.device().clone().without_autodiff());
        let outputs: Vec<_> = (0..ROWS)
            .step_by(batch)
            .map(|first| {
                let batch = rows(first..ROWS.min(first + batch), &device);
                let hidden = (0..3).fold(None, |carry, at| Some(model.forward_segment(at, carry, &batch)));
                Ok(output(&model.model, hidden.expect("three segments").into_output()?, &batch))
            })
            .collect::<epl::Result<_>>()?;
        let accuracy = looped(AccuracyMetric::new(), &outputs);
        let found = [
            ("accuracy".into(), accuracy / 100.0),
            ("Accuracy".into(), accuracy),
            ("Loss".into(), looped(LossMetric::new(), &outputs)),
            ("Top-K Accuracy @ TopK(3)".into(), looped(TopKAccuracyMetric::new(3), &outputs)),
            (precision().name().to_string(), looped(precision(), &outputs)),
            (auroc().name().to_string(), looped(auroc(), &outputs)),
            (PerplexityMetric::new().name().to_string(), looped(PerplexityMetric::new(), &outputs)),
            ("again Accuracy".into(), accuracy),
        ];
        Ok(found.to_vec())
    });
    all.expect("one rank").remove(0)
}

#[test]
fn metrics_are_those_of_burns_loop_under_every_layout() {
    let [one, two] = [Strategy::replicate(1), Strategy::replicate(2)];
    let expected = expected(BATCH);
    let apart = expected.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    assert!(apart[1] > 0.0 && apart[1] < apart[3] && apart[3] < 100.0, "the test can tell: {expected:?}");
    let layouts: [(&[Strategy], usize, f64); 8] = [
        (&[], 1, 0.0),
        (&[], 2, 0.0),
        (&[], 3, 0.0),
        // One more than there are batches.
        (&[], 4, 0.0),
        (&[one.clone(), one.clone()], 4, 0.0),
        // Two devices divide the rows of a batch, and two share the layers.
        (&[one.clone(), two.clone()], 6, 1e-5),
        (&[two.clone(), Strategy::split(2)], 4, 1e-5),
        (&[Strategy::split(2), Strategy::replicate(3)], 5, 1e-5),
    ];
    for (scopes, ranks, tolerance) in layouts {
        for found in measured(&Case::new(ranks, scopes, ROWS, 1), BATCH) {
            assert_eq!(found.len(), expected.len());
            for ((name, value), (known, right)) in found.iter().zip(&expected) {
                let is_close = (value - right).abs() <= tolerance * right.abs();
                assert!(name == known && is_close, "{scopes:?} on {ranks}: {name} {value}, not {known} {right}");
            }
        }
    }
}

/// What depends on batches in Burn, and what does not.
#[test]
fn a_loss_is_a_mean_of_batches_and_an_accuracy_one_of_rows() {
    let [by_four, at_once] = [expected(BATCH), expected(ROWS)];
    let of = |values: &Values, name: &str| values.iter().find(|(known, _)| known == name).expect("it is there").1;
    assert_eq!(of(&by_four, "Accuracy"), of(&at_once, "Accuracy"));
    assert!((of(&by_four, "Loss") - of(&at_once, "Loss")).abs() > 1e-4);
    let case = Case::new(2, &[], ROWS, 1);
    let own = epl::launch(&case.config(), |epl| {
        let engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
        Evaluator::of_loss(valid(BATCH)).with(MeanLoss::of("loss")).measure(&engine)
    });
    // That of samples is the same however they are divided.
    let own = own.expect("a loss")[0][0].1;
    assert!((own - of(&at_once, "Loss")).abs() < 1e-5, "{own} {at_once:?}");
}

/// What a batch gives whose samples are padded to a length of its own.
struct Padded {
    /// Of each place: as many as the batch is long.
    losses: Tensor<1>,
    /// `[rows, length, classes]`
    logits: Tensor<3>,
    /// `[rows, length]`
    targets: Tensor<2, Int>,
}

epl::train::step_output!(Padded { losses: mean, logits: rows, targets: rows });

fn padded(output: &ClassificationOutput, classes: &Tensor<1, Int>) -> Padded {
    let ([rows, width], device) = (output.output.dims(), classes.device());
    let length = 2 + classes.clone().sum().into_scalar::<i64>() as usize % 5;
    let places = Tensor::<1, Int>::arange(1..length as i64 + 1, &device).float();
    let logits = output.output.clone().unsqueeze_dim::<3>(1) * places.clone().reshape([1, length, 1]);
    // The last class is right at none of the places but the first.
    let targets =
        classes.clone().unsqueeze_dim::<2>(1) + Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze();
    let targets = targets.clamp(0, width as i64 - 1);
    Padded { losses: output.loss.clone() * places, logits: logits.expand([rows, length, width]), targets }
}

#[test]
fn batches_may_be_padded_to_lengths_of_their_own() {
    let measured = |ranks| {
        let case = Case::new(ranks, &[], ROWS, 1);
        let found = epl::launch(&case.config(), |epl| {
            let engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
            let outputs = |model: &Chain<Net, Batch, Tensor<2>>, hidden: Tensor<2>, batch: &Batch| {
                Ok(padded(&output(&model.model, hidden, batch), &batch.1))
            };
            let metrics = BurnMetrics::new()
                .with_input(AccuracyMetric::new(), |of: &Padded| {
                    AccuracyInput::new(of.logits.clone().flatten(0, 1), of.targets.clone().flatten(0, 1))
                })
                .with_input(LossMetric::new(), |of: &Padded| LossInput::new(of.losses.clone().mean()));
            Evaluator::with_head(valid(BATCH), outputs).with_batches(metrics).measure(&engine)
        });
        found.unwrap_or_else(|error| panic!("on {ranks}: {error}"))
    };
    let lengths: Vec<i64> = (0..ROWS)
        .step_by(BATCH)
        .map(|first| rows(first..ROWS.min(first + BATCH), &Device::default()).1.sum().into_scalar::<i64>() % 5)
        .collect();
    assert!(lengths.iter().any(|length| *length != lengths[0]), "the test can tell: {lengths:?}");
    let one = measured(1).remove(0);
    for ranks in [2, 3, 4] {
        for found in measured(ranks) {
            assert_eq!(found, one, "on {ranks}");
        }
    }
}
