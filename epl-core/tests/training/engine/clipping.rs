//! The global norm is clipped, and only if that is asked for; or each replica's own, by numbers made by hand.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl_core::config::{Config, HalfDtype, LossScale, ReduceMethod};
use epl_core::plan::Compression;
use epl_core::testing::{config, in_half, run};
use epl_core::{Engine, EngineSettings, Epl, MicroBatch, Place, Result, StepReport, WithLoss, launch};

use crate::engine::chain::{Chain, micro_batches};

#[test]
fn clipping_brings_the_update_down() {
    let update = |clip_norm| {
        let all = run((1, 1, 1), |epl| {
            let settings = EngineSettings { clip_norm, ..Default::default() };
            let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), settings)?;
            let before = engine.parameters()?;
            let report = engine.step(micro_batches(&epl, 1), 1.0)?;
            let after = engine.parameters()?;
            let squares = before.iter().flat_map(|(name, data)| {
                let pairs: Vec<_> = data.iter::<f64>().zip(after[name].iter::<f64>()).collect();
                pairs.into_iter().map(|(a, b)| (a - b) * (a - b))
            });
            Ok((squares.sum::<f64>().sqrt(), report.grad_norm))
        });
        all[0]
    };
    let (free, norm) = update(None);
    assert!((free - norm).abs() < 1e-4 * norm, "SGD with rate 1 moves by the gradient: {free} {norm}");
    let (clipped, same_norm) = update(Some(norm / 4.0));
    assert_eq!(norm, same_norm, "the norm is reported before clipping");
    assert!((clipped - norm / 4.0).abs() < 1e-4 * norm, "{clipped} {norm}");
}

/// Two numbers whose gradient is the mean of the rows.
#[derive(Module, Debug)]
struct Point {
    at: Param<Tensor<1>>,
}

fn point(place: &Place) -> WithLoss<Point, Tensor<2>> {
    WithLoss::new(Point { at: place.param([2], Initializer::Zeros) }, |net, rows: &Tensor<2>| {
        let at = net.at.val();
        (rows.clone().cast(at.dtype()) * at.unsqueeze::<2>()).sum() / rows.dims()[0] as f64
    })
}

/// The rows of each micro-batch of each replica.
type Replicas<'a> = &'a [&'a [&'a [[f64; 2]]]];

/// The report of the first step and what it moved the point by, with rate 1 and the limit 1.
fn step(config: &Config, replicas: Replicas<'_>, settings: &EngineSettings) -> Result<(StepReport, [f64; 2])> {
    let batch = |epl: &Epl, rows: &[[f64; 2]]| {
        let samples: Vec<u64> = (0..rows.len() as u64).collect();
        let flat: Vec<f64> = rows.concat();
        let rows = Tensor::<1>::from_floats(&*flat, epl.place().device()).reshape([rows.len(), 2]);
        MicroBatch::new(rows, samples)
    };
    let all = launch(config, |epl| {
        let mut engine = Engine::new(epl.build(point)?, &SgdConfig::new(), settings.clone())?;
        let own = replicas[epl.context().data().rank()];
        let report = engine.step(own.iter().map(|rows| batch(&epl, rows)).collect(), 1.0)?;
        let moved: Vec<f64> = engine.parameters()?["at"].iter::<f64>().map(|x| -x).collect();
        Ok((report, [moved[0], moved[1]]))
    })?;
    Ok(all.into_iter().next().unwrap())
}

fn own() -> EngineSettings {
    EngineSettings { clip_norm: Some(1.0), clip_after_allreduce: false, ..Default::default() }
}

/// Whose norm is 5, and whose is 0.5.
const LONG: [f64; 2] = [3.0, 4.0];
const SHORT: [f64; 2] = [0.0, 0.5];

fn assert_moves(replicas: Replicas<'_>, settings: &EngineSettings, norm: f64, moved: [f64; 2]) {
    let (report, found) = step(&config(replicas.len(), 1, 1), replicas, settings).unwrap();
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5;
    assert!(close(found[0], moved[0]) && close(found[1], moved[1]), "{found:?} instead of {moved:?}");
    assert!(close(report.grad_norm, norm), "norm {} instead of {norm}", report.grad_norm);
}

#[test]
fn each_replica_clips_its_own_gradient() {
    // EPL's rule: the mean of (0.6, 0.8) and (0, 0.5).
    assert_moves(&[&[&[LONG]], &[&[SHORT]]], &own(), 2.75, [0.3, 0.65]);
    // Beside it the mean (1.5, 2.25), clipped.
    let after = EngineSettings { clip_after_allreduce: true, ..own() };
    let norm = 2.25_f64.hypot(1.5);
    assert_moves(&[&[&[LONG]], &[&[SHORT]]], &after, norm, [1.5 / norm, 2.25 / norm]);
    // Nothing is above the limit: the mean of all rows.
    assert_moves(&[&[&[SHORT]], &[&[SHORT]]], &own(), 0.5, SHORT);
    // Four replicas, two of them clipped.
    assert_moves(&[&[&[LONG]], &[&[SHORT]], &[&[SHORT]], &[&[LONG]]], &own(), 2.75, [0.3, 0.65]);
    // Sums: (0.6, 0.8) and (0, 0.5).
    let sum = EngineSettings { reduce: ReduceMethod::Sum, ..own() };
    assert_moves(&[&[&[LONG]], &[&[SHORT]]], &sum, 2.75, [0.6, 1.3]);
}

/// Of several micro-batches the gradient of the whole step is clipped: (1.5, 2), not (1, 0) and (0, 1).
#[test]
fn a_replica_clips_what_it_has_accumulated() {
    assert_moves(
        &[&[&[[3.0, 0.0]], &[[0.0, 4.0]]], &[&[SHORT], &[SHORT]]],
        &own(),
        (2.5 + 0.5) / 2.0,
        [0.6 / 2.0, (0.8 + 0.5) / 2.0],
    );
}

/// A replica's own gradient is its share of that of all four rows, twice: (1.5, 2) and (0, 0.75).
#[test]
fn replicas_with_more_rows_have_more_of_the_gradient() {
    assert_moves(&[&[&[LONG]], &[&[SHORT, SHORT, SHORT]]], &own(), (2.5 + 0.75) / 2.0, [0.6 / 2.0, (0.8 + 0.75) / 2.0]);
}

#[test]
fn the_loss_scale_and_16_bits_on_the_way_change_no_norm() {
    let replicas: Replicas<'_> = &[&[&[LONG]], &[&[SHORT]]];
    let scaled = EngineSettings { loss_scale: LossScale::Fixed(1024.0), ..own() };
    let compression = Some(Compression { dtype: HalfDtype::F16, scale: 128.0 });
    let half = in_half(config(2, 1, 1), HalfDtype::F16);
    for (config, settings) in [(half, scaled), (config(2, 1, 1), EngineSettings { compression, ..own() })] {
        let (report, moved) = step(&config, replicas, &settings).unwrap();
        assert!((moved[0] - 0.3).abs() < 1e-3 && (moved[1] - 0.65).abs() < 1e-3, "{moved:?}");
        assert!((report.grad_norm - 2.75).abs() < 1e-3 && !report.skipped, "{}", report.grad_norm);
    }
}

/// Of one replica's numbers, and of what overflows on the way.
#[test]
fn what_is_not_finite_is_found_on_all_ranks() {
    let said = |replicas: Replicas<'_>, settings| step(&config(2, 1, 1), replicas, &settings).unwrap_err().to_string();
    let error = said(&[&[&[LONG]], &[&[[f64::NAN, 1.0]]]], own());
    assert!(error.contains("the norm of the gradients is NaN at step 1"), "{error}");
    let compression = Some(Compression { dtype: HalfDtype::F16, scale: 1e6 });
    let error = said(&[&[&[LONG]], &[&[SHORT]]], EngineSettings { compression, ..own() });
    assert!(error.contains("is inf at step 1") && error.contains("communication.fp16_scale"), "{error}");
    let half = in_half(config(2, 1, 1), HalfDtype::F16);
    let (report, moved) = step(&half, &[&[&[LONG]], &[&[[f64::INFINITY, 1.0]]]], &own()).unwrap();
    assert!(report.skipped && moved == [0.0, 0.0], "{report:?} {moved:?}");
}

#[test]
fn no_rank_has_a_gradient_of_its_own_to_clip() {
    let config = || Config::new().with("train.clip_norm", 1.0).unwrap();
    let planned = |config: Config| {
        let config = config.with("communication.clip_after_allreduce", false).unwrap();
        let config = config.with("dist.data_parallel_size", 2).unwrap();
        epl_core::launch_dry(&config, 0, |epl| epl.plan(Chain::new).map(|model| model.plan().to_string()))
    };
    let start =
        "communication.clip_after_allreduce = false clips the gradient that each replica has of a whole step, and ";
    let end = ", or leave the option out, which clips the sum over all";
    let error = planned(config().with("zero.level", "v3").unwrap()).unwrap_err().to_string();
    let why = "under zero.level = v3 it keeps shards of the sum over all replicas; set zero.level = v2";
    assert_eq!(error, format!("{start}{why}{end}"));
    let error = planned(config().with("offload.gradients", "host").unwrap()).unwrap_err().to_string();
    assert!(error.starts_with(start) && error.contains("set offload.gradients = device"), "{error}");
    // What it makes of v2, and of the invariant, the plan says.
    let (plan, _) = planned(config().with("zero.level", "v2").unwrap()).unwrap();
    assert!(plan.contains("ZeRO v1: optimizer state and reduced gradients"), "{plan}");
    let exception = "communication.clip_after_allreduce = false (each of 2 replicas clips its own gradient): the result \
                     depends on the layout";
    assert!(plan.contains(exception), "{plan}");
}
