//! `communication.clip_after_allreduce = false` in f64: each replica clips its own gradient, and every layout of as many
//! replicas, with as many rows each, computes the same, to 1e-10.
//!
//! What is expected is put together from runs of one rank that know of no replicas: the gradient of the sum of each loss
//! term over the rows of each replica.

use std::collections::BTreeMap;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::TensorData;
use epl::comm::{Trace, shard_range};
use epl::config::PipelineStrategy::{PreferBackward, PreferForward};
use epl::config::StateTier::{Device, Host};
use epl::config::ZeroLevel::{self, V0, V1, V2};
use epl::config::{Config, ReduceMethod};
use epl::models::t5::{T5, T5Batcher};
use epl::tensors::AssignMap;
use epl::testing::largest_error;
use epl::{Engine, EngineSettings, Epl, LazyModel, MicroBatch};

use crate::parity::{Case, Layout, dense, layout, micro_batches, moe, program};

type Tensors = BTreeMap<String, TensorData>;

const STEPS: u64 = 3;
const RATE: f64 = 0.3;
const BOUND: f64 = 1e-10;

/// What a run left: the norm of each step, the gradients of the first, and the parameters at the end.
struct Outcome {
    norms: Vec<f64>,
    gradients: Tensors,
    parameters: Tensors,
}

/// The same case without what depends on the step: a run of one rank always makes its first one.
fn without_noise(case: Case) -> Case {
    let moe = case.model.moe.clone().map(|moe| moe.with_jitter(0.0));
    Case { model: case.model.clone().with_dropout(0.0).with_moe(moe), ..case }
}

/// A run under a layout.
fn train(case: &Case, layout: Layout, reduce: ReduceMethod) -> Outcome {
    let settings = |config: &Config| {
        let clip_norm = case.clip_norm;
        EngineSettings { clip_norm, clip_after_allreduce: false, reduce, ..EngineSettings::from_config(config) }
    };
    let (config, trace) = (layout.config(), Trace::new());
    let outcomes = epl::launch_traced(&config, Some(trace.clone()), |epl| {
        let built = epl.build(|place| case.init(place))?;
        let mut engine = Engine::new(built, &SgdConfig::new(), settings(epl.config()))?;
        let batches = |step| micro_batches(&epl, case, step, layout.accumulation);
        let gradients = engine.gradients(batches(0))?.1;
        let mut norms = Vec::new();
        for step in 0..STEPS {
            let batches = batches(step);
            if step + 1 == STEPS {
                engine.context().mark(|| program::MARKS[0].to_string());
            }
            norms.push(engine.step(batches, RATE)?.grad_norm);
        }
        engine.context().mark(|| program::MARKS[1].to_string());
        let traced = program::Traced::of(&engine);
        Ok((Outcome { norms, gradients, parameters: engine.parameters()? }, traced))
    });
    let outcomes = outcomes.unwrap_or_else(|error| panic!("{layout:?}: {error}"));
    let (mut outcomes, traced): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
    let batches = |epl: &Epl| micro_batches(epl, case, STEPS - 1, layout.accumulation);
    let lay = |lazy: LazyModel<T5>, config: &Config| lazy.for_optimizer(&SgdConfig::new(), settings(config));
    let has_experts = case.model.moe.is_some();
    let step = program::Step { config: &config, trace: &trace, rows: case.pairs.len(), has_experts };
    program::check(&traced, step, |place| case.init(place), lay, batches);
    for other in &outcomes[1..] {
        assert_eq!(outcomes[0].norms, other.norms, "all ranks report the same");
        assert_eq!(outcomes[0].parameters, other.parameters, "replicas stay equal, to the bit");
    }
    outcomes.remove(0)
}

/// Of one rank that has the parameters, the gradient of the sum of all terms over some rows, and the weights of the terms.
fn of_rows(case: &Case, parameters: &Tensors, rows: std::ops::Range<usize>) -> (Tensors, BTreeMap<String, f64>) {
    let outcomes = epl::launch(&layout(1, 1, 1, 1).config(), |epl| {
        let built = epl.build(|place| case.init(place))?.assign(parameters, &AssignMap::identity())?;
        let settings = EngineSettings { reduce: ReduceMethod::Sum, ..EngineSettings::default() };
        let engine = Engine::new(built, &SgdConfig::new(), settings)?;
        let batch = T5Batcher::new(&case.model).batch(case.pairs[rows.clone()].to_vec(), epl.place().device());
        let samples: Vec<u64> = rows.clone().map(|row| row as u64).collect();
        let (report, gradients) = engine.gradients(vec![MicroBatch::new(batch, samples)])?;
        Ok((gradients, report.weights.into_iter().collect()))
    });
    outcomes.unwrap_or_else(|error| panic!("one rank: {error}")).remove(0)
}

/// `a + factor · b`, tensor by tensor.
fn plus(a: &Tensors, factor: f64, b: &Tensors) -> Tensors {
    let sum = |(name, a): (&String, &TensorData)| {
        let values: Vec<f64> = a.iter::<f64>().zip(b[name].iter::<f64>()).map(|(a, b)| a + factor * b).collect();
        (name.clone(), TensorData::new(values, a.shape().clone()))
    };
    a.iter().map(sum).collect()
}

fn norm(tensors: &Tensors) -> f64 {
    tensors.values().flat_map(|data| data.iter::<f64>()).map(|x| x * x).sum::<f64>().sqrt()
}

/// The rows of every replica: those of the data ranks that divide its experts, of all their micro-batches.
fn rows(case: &Case, layout: Layout) -> Vec<std::ops::Range<usize>> {
    let (parts, own) = (layout.data * layout.accumulation, layout.expert * layout.accumulation);
    let part = |number| shard_range(case.pairs.len(), parts, number);
    (0..parts / own).map(|replica| part(replica * own).start..part((replica + 1) * own - 1).end).collect()
}

/// What each replica adds to the gradient of all rows: of each term the sum over its rows, divided by the weight of all.
fn shares(case: &Case, layout: Layout, parameters: &Tensors, reduce: ReduceMethod) -> Vec<Tensors> {
    let without = case.model.moe.clone().map(|moe| moe.with_auxiliary(0.0).with_z(0.0));
    let without = Case { model: case.model.clone().with_moe(without), ..case.clone() };
    let runs: Vec<_> = rows(case, layout)
        .into_iter()
        .filter(|rows| !rows.is_empty())
        .map(|rows| (of_rows(case, parameters, rows.clone()), of_rows(&without, parameters, rows).0))
        .collect();
    let total = |term: &str| runs.iter().map(|((_, weights), _)| weights.get(term).unwrap_or(&0.0)).sum::<f64>();
    let mut totals = [total("cross_entropy"), total("auxiliary")];
    assert_eq!(total("auxiliary"), total("z"), "the terms of routers have one weight");
    if reduce == ReduceMethod::Sum {
        totals = [1.0; 2];
    }
    let share = |((all, _), tokens): ((Tensors, _), Tensors)| {
        let zeros = plus(&tokens, -1.0, &tokens);
        let of_tokens = plus(&zeros, 1.0 / totals[0], &tokens);
        match case.model.moe {
            None => of_tokens,
            Some(_) => plus(&of_tokens, 1.0 / totals[1], &plus(&all, -1.0, &tokens)),
        }
    };
    runs.into_iter().map(share).collect()
}

/// Each replica's gradient by runs of one rank, clipped, and the mean of them, or the sum; the update by hand.
fn expected(case: &Case, layout: Layout, reduce: ReduceMethod) -> Outcome {
    let limit = case.clip_norm.expect("a case that is clipped");
    let replicas = (layout.data / layout.expert) as f64;
    let own = if reduce == ReduceMethod::Mean { replicas } else { 1.0 };
    let built = epl::launch(&self::layout(1, 1, 1, 1).config(), |epl| {
        Engine::new(epl.build(|place| case.init(place))?, &SgdConfig::new(), EngineSettings::default())?.parameters()
    });
    let mut parameters = built.expect("a model").remove(0);
    let (mut norms, mut first, mut clipped) = (Vec::new(), None, 0);
    for _ in 0..STEPS {
        let shares = shares(case, layout, &parameters, reduce);
        let own_norms: Vec<f64> = shares.iter().map(|share| own * norm(share)).collect();
        clipped += own_norms.iter().filter(|norm| **norm > limit).count();
        let zeros = plus(&parameters, -1.0, &parameters);
        let sum = shares
            .iter()
            .zip(&own_norms)
            .fold(zeros, |sum, (share, norm)| plus(&sum, (limit / (norm + 1e-6)).min(1.0), share));
        norms.push(own_norms.iter().sum::<f64>() / replicas);
        parameters = plus(&parameters, -RATE, &sum);
        first.get_or_insert(sum);
    }
    assert!(clipped > 0, "no replica had anything to clip");
    Outcome { norms, gradients: first.expect("a step"), parameters }
}

fn assert_same(what: &str, found: &Outcome, expected: &Outcome) {
    let tensors =
        [("gradient", &found.gradients, &expected.gradients), ("parameter", &found.parameters, &expected.parameters)];
    for (kind, found, expected) in tensors {
        let (name, error) = largest_error(found, expected);
        assert!(error <= BOUND, "{what}: {kind} {name}: error {error:.1e}");
    }
    for (step, (found, expected)) in found.norms.iter().zip(&expected.norms).enumerate() {
        let error = (found - expected).abs() / expected;
        assert!(error <= BOUND, "{what}: norm of step {step}: {found} instead of {expected}");
    }
}

/// Layouts that divide the rows in the same way, one after the other.
fn assert_all(case: Case, layouts: &[Layout]) {
    let case = without_noise(case);
    let expected = expected(&case, layouts[0], ReduceMethod::Mean);
    for layout in layouts {
        assert_eq!(rows(&case, *layout), rows(&case, layouts[0]));
        assert_same(&format!("{layout:?}"), &train(&case, *layout, ReduceMethod::Mean), &expected);
    }
}

fn levels(layout: Layout) -> [Layout; 4] {
    [ZeroLevel::Off, V0, V1, V2].map(|level| layout.zero(level))
}

fn stages(layout: Layout) -> Layout {
    layout.stages(2, 1, PreferBackward)
}

#[test]
fn data_2() {
    epl_testing::in_f64(|| assert_all(moe(), &levels(layout(2, 1, 1, 1))));
}

#[test]
fn data_2_accumulates() {
    epl_testing::in_f64(|| assert_all(moe(), &levels(layout(2, 1, 1, 4))));
}

#[test]
fn data_4() {
    epl_testing::in_f64(|| assert_all(moe(), &levels(layout(4, 1, 1, 1))));
}

#[test]
fn data_4_accumulates() {
    epl_testing::in_f64(|| assert_all(moe(), &levels(layout(4, 1, 1, 4))));
}

#[test]
fn untied_and_dense() {
    epl_testing::in_f64(|| assert_all(Case { clip_norm: Some(0.5), ..dense() }, &levels(layout(3, 1, 1, 2))));
}

/// The norm of a replica is that of all its slices and stages; and whatever else lies or runs in another way.
#[test]
fn a_replica_of_several_ranks() {
    let all = [
        layout(2, 2, 1, 4),
        layout(2, 2, 1, 4).zero(V2),
        stages(layout(2, 1, 1, 4)),
        stages(layout(2, 1, 1, 4)).zero(V1),
        layout(2, 1, 1, 4).stages(2, 2, PreferBackward).zero(V2),
        layout(2, 1, 1, 4).stages(2, 1, PreferForward).zero(V0),
        stages(layout(2, 2, 1, 4)).zero(V2),
        layout(2, 1, 1, 4).recompute(&[1, 3]).zero(V1),
        layout(2, 1, 1, 4).tiers(Host, Device, Host),
        layout(2, 1, 1, 4).zero(V2).tiers(Device, Device, Host),
    ];
    epl_testing::in_f64(|| assert_all(moe(), &all));
}

/// Data ranks that divide the experts are one replica.
#[test]
fn experts() {
    let [off, v0, v1, v2] = levels(layout(4, 1, 2, 2));
    let all = [off, v0, v1, v2, stages(layout(4, 1, 2, 2)).zero(V1), layout(4, 2, 2, 2).zero(V0)];
    epl_testing::in_f64(|| assert_all(moe(), &all));
}

#[test]
fn a_replica_without_a_token_and_one_without_a_row() {
    epl_testing::in_f64(|| {
        assert_all(moe().half_ignored(), &[layout(2, 1, 1, 1), layout(2, 1, 1, 1).zero(V1)]);
        assert_all(moe().samples(3), &[layout(4, 1, 1, 1), layout(4, 1, 1, 1).zero(V2)]);
    });
}

/// Summed and not averaged, what is clipped is the sum over the rows of a replica.
#[test]
fn sums() {
    epl_testing::in_f64(|| {
        let case = without_noise(Case { clip_norm: Some(5.0), ..moe() });
        let layout = layout(2, 1, 1, 4);
        let expected = expected(&case, layout, ReduceMethod::Sum);
        assert_same("sums", &train(&case, layout, ReduceMethod::Sum), &expected);
    });
}

/// One replica's own gradient is the reduced one.
#[test]
fn one_replica_is_clipped_as_ever() {
    epl_testing::in_f64(|| {
        let case = without_noise(moe());
        let expected = expected(&case, layout(1, 1, 1, 1), ReduceMethod::Mean);
        for layout in [layout(1, 1, 1, 4), layout(1, 2, 1, 1), layout(2, 1, 2, 1).zero(V1)] {
            let found = train(&case, layout, ReduceMethod::Mean);
            // These gradients are not clipped yet.
            assert_same(&format!("{layout:?}"), &Outcome { gradients: expected.gradients.clone(), ..found }, &expected);
        }
    });
}
