//! Runs a case on the ranks of a mesh, and puts the whole result together.

use std::sync::Arc;

use burn::optim::SgdConfig;
use burn::tensor::TensorData;
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::{Epl, Pass, Result, testing};

use super::case::{Case, D_MODEL, LENGTHS, cases};
use super::net::{Batch, Net};
use super::{Outcome, assert_close, host};

/// Data × tensor ranks, expert divides data; and into how many micro-batches a replica's samples are cut.
type Layout = ((usize, usize, usize), usize);

const ONE: Layout = ((1, 1, 1), 1);

/// With five samples, three micro-batches leave the second of two replicas with an empty one.
const DENSE: [Layout; 6] =
    [((1, 2, 1), 1), ((1, 3, 1), 1), ((2, 1, 1), 3), ((2, 2, 1), 1), ((1, 1, 1), 2), ((6, 1, 1), 1)];

const EXPERTS: [Layout; 6] =
    [((1, 2, 1), 1), ((1, 3, 1), 2), ((2, 1, 2), 1), ((2, 2, 2), 3), ((4, 1, 2), 1), ((2, 1, 1), 1)];

/// Every case under every layout equals one rank.
pub(crate) fn layouts_equal_one_rank(limit: f64) {
    for case in cases() {
        let without_zeros =
            |outcome| if case.config.rotary.is_some() { outcome } else { without_zeros(outcome, limit) };
        let whole = without_zeros(run(&case, ONE));
        assert!(whole.len() > 20, "{}: {:?} are compared", case.name, whole.keys());
        for layout in if case.config.experts.is_some() { EXPERTS } else { DENSE } {
            let found = without_zeros(run(&case, layout));
            assert_close(&format!("{} under {layout:?}", case.name), &found, &whole, limit);
        }
    }
}

/// Takes out the gradients of the keys' biases, which are zero up to rounding where keys are not turned: a bias shifts all
/// scores of a query alike.
fn without_zeros(mut outcome: Outcome, limit: f64) -> Outcome {
    let largest = |x: &TensorData| x.iter::<f64>().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let names: Vec<String> = outcome.keys().filter(|name| name.ends_with("key.bias")).cloned().collect();
    for name in names {
        let zero = outcome.remove(&name).expect("it is there");
        let query = &outcome[&name.replace("key.bias", "query.bias")];
        assert!(largest(&zero) <= limit * largest(query), "the gradient of `{name}` is {}", largest(&zero));
    }
    outcome
}

/// The loss, the hidden states of every sample and every gradient; ranks that hold the same must hold the same bits.
fn run(case: &Case, (mesh, parts): Layout) -> Outcome {
    let mut whole = Outcome::new();
    for part in testing::run(mesh, |epl| run_rank(case, parts, &epl)) {
        for (name, value) in part {
            let known = whole.entry(name.clone()).or_insert_with(|| value.clone());
            assert!(*known == value, "{} under {mesh:?}: ranks differ in `{name}`", case.name);
        }
    }
    whole
}

fn run_rank(case: &Case, parts: usize, epl: &Epl) -> Result<Outcome> {
    let built = epl.build(|place| Net::new(case, &place.child("model")))?;
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
    let data = epl.context().data();
    let mine = shard_range(LENGTHS.len(), data.size(), data.rank());
    let batches: Vec<MicroBatch<Batch>> = (0..parts)
        .map(|part| {
            let range = shard_range(mine.len(), parts, part);
            let samples: Vec<usize> = (mine.start + range.start..mine.start + range.end).collect();
            match samples.is_empty() {
                true => MicroBatch::stand_in(Batch::new(vec![0], engine.device()), numbers(&[0])),
                false => MicroBatch::new(Batch::new(samples.clone(), engine.device()), numbers(&samples)),
            }
        })
        .collect();

    let mut outcome = Outcome::new();
    for batch in &batches {
        let MicroBatch { batch, samples, empty } = batch.clone();
        epl.context().begin(Pass { step: engine.steps(), training: true, samples, empty });
        let (hidden, _) = engine.model().forward(&batch);
        if !empty {
            outcome.extend(of_samples(&batch, &host(hidden.inner())));
        }
    }
    // What the forward above counted is not part of the step.
    epl.context().take_metrics();
    let (report, gradients) = engine.gradients(batches)?;
    outcome.insert("loss".into(), TensorData::new(vec![report.loss], [1]));
    outcome.extend(gradients);
    Ok(outcome)
}

fn numbers(samples: &[usize]) -> Arc<[u64]> {
    samples.iter().map(|sample| 100 + *sample as u64).collect()
}

/// The hidden states at the real positions of each sample.
fn of_samples(batch: &Batch, hidden: &TensorData) -> Outcome {
    let values: Vec<f64> = hidden.iter::<f64>().collect();
    let rows = values.chunks(batch.tokens.length() * D_MODEL);
    let of_sample = |(sample, row): (&usize, &[f64])| {
        let real = LENGTHS[*sample].0;
        (format!("hidden {sample}"), TensorData::new(row[..real * D_MODEL].to_vec(), [real, D_MODEL]))
    };
    batch.samples.iter().zip(rows).map(of_sample).collect()
}
