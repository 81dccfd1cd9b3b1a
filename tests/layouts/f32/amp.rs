//! Mixed precision: layouts agree to the rounding of 16 bits, ranks agree on the steps that are skipped, and training
//! recovers from an overflow.

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData};
use epl::config::HalfDtype::{Bf16, F16};
use epl::config::PipelineStrategy::PreferBackward;
use epl::config::ZeroLevel::{V0, V1, V2, V3};
use epl::config::{LossScale, ReduceMethod, ZeroLevel};
use epl::{Batch, Chain, Engine, MicroBatch, Place, Result, StepReport, WithLoss};

use crate::parity::{self, Case, Layout, assert_close, dense, layout, micro_batches, pairs, rounding, train};

macro_rules! close {
    ($($name:ident: $case:expr, $layout:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_close(&$case, $layout);
        }
    )*};
}

/// With experts, over sentences at which no rounding of f16 turns the choice of a router: where one is turned, losses differ by
/// what two experts differ.
fn moe() -> Case {
    Case { pairs: pairs(11).split_off(4), ..parity::moe() }
}

close! {
    bf16_on_2:              moe(),          layout(2, 1, 1, 1).half(Bf16);
    f16_on_2_accumulates:   moe(),          layout(2, 1, 1, 4).half(F16);
    f16_v0:                 moe(),          layout(3, 1, 1, 4).half(F16).zero(V0);
    bf16_v1:                moe(),          layout(3, 1, 1, 4).half(Bf16).zero(V1);
    f16_v2:                 moe(),          layout(2, 1, 1, 4).half(F16).zero(V2);
    bf16_v3:                moe(),          layout(2, 1, 1, 4).half(Bf16).zero(V3);
    f16_v3_with_stages:     moe(),          layout(2, 1, 1, 4).half(F16).stages(2, 1, PreferBackward).zero(V3);
    f16_with_tensor:        moe(),          layout(2, 2, 1, 1).half(F16);
    // Without a router, whose choice the roundings of bf16 can turn.
    bf16_with_tensor:       dense(),        layout(2, 2, 1, 1).half(Bf16);
    f16_with_experts:       moe(),          layout(4, 1, 2, 1).half(F16);
    f16_recomputes:         moe(),          layout(2, 1, 1, 4).half(F16).recompute(&[1, 3]);
}

/// Mixed precision learns what f32 learns.
#[test]
fn it_is_near_f32() {
    let full = train(&moe(), layout(1, 1, 1, 1));
    for dtype in [F16, Bf16] {
        let half = train(&moe(), layout(1, 1, 1, 1).half(dtype));
        for (half, full) in half.reports.iter().zip(&full.reports) {
            let error = (half.loss - full.loss).abs() / full.loss;
            assert!(error <= 4.0 * rounding(dtype) && error > 0.0, "{dtype}: {error:.1e}");
        }
    }
}

/// Steps with so large a fixed part of the loss that f16 overflows at the first scale.
fn overflowing(layout: Layout, steps: usize) -> Result<Vec<StepReport>> {
    let case = moe();
    let mut config = layout.config();
    // The sum over all tokens, not the mean.
    config.communication.gradients_reduce_method = ReduceMethod::Sum;
    let ranks = epl::launch(&config, |epl| {
        let mut engine = Engine::build(&epl, |place| case.model.init(place), &AdamWConfig::new())?;
        let mut reports = Vec::new();
        for step in 0..steps {
            let before = engine.parameters()?;
            let report = engine.step(micro_batches(&epl, &case, step as u64, layout.accumulation), 1e-3)?;
            assert_eq!(report.skipped, engine.parameters()? == before, "a skipped step updates nothing");
            reports.push(report);
        }
        let made = reports.iter().filter(|report| !report.skipped).count();
        assert_eq!(engine.steps(), made as u64, "a skipped step does not count");
        let scaler = engine.loss_scaler().expect("in mixed precision");
        assert_eq!(scaler.state().skipped, (steps - made) as u64);
        Ok(reports)
    })?;
    // Not a number is not equal to itself.
    let said = |reports: &Vec<StepReport>| format!("{reports:?}");
    assert!(ranks.iter().all(|reports| said(reports) == said(&ranks[0])), "ranks agree");
    Ok(ranks.into_iter().next().expect("there is a first rank"))
}

#[test]
fn an_overflow_halves_the_scale_until_training_goes_on() {
    for layout in [layout(1, 1, 1, 1), layout(2, 1, 1, 2), layout(2, 1, 1, 2).zero(V3), layout(4, 1, 2, 1).zero(V1)] {
        let reports = overflowing(layout.half(F16), 12).unwrap_or_else(|error| panic!("{layout:?}: {error}"));
        let skipped = reports.iter().take_while(|report| report.skipped).count();
        assert!((1..8).contains(&skipped), "{layout:?}: {skipped} skipped at first");
        for (step, report) in reports.iter().enumerate().take(skipped + 1) {
            assert_eq!(report.loss_scale, Some(32_768.0 / 2.0_f64.powi(step as i32)));
        }
        let made: Vec<f64> = reports.iter().filter(|report| !report.skipped).map(|report| report.loss).collect();
        assert!(made.iter().all(|loss| loss.is_finite()) && made.last() < made.first(), "{layout:?}: {made:?}");
    }
}

#[test]
fn a_run_that_only_skips_stops() {
    let mut config = layout(2, 1, 1, 1).half(F16).config();
    config.amp.loss_scale = LossScale::Fixed(1e30);
    let case = moe();
    let ran = epl::launch(&config, |epl| {
        let mut engine = Engine::build(&epl, |place| case.model.init(place), &AdamWConfig::new())?;
        for step in 0..100 {
            let report = engine.step(micro_batches(&epl, &case, step, 1), 1e-3)?;
            assert!(report.skipped);
        }
        Ok(())
    });
    let error = ran.expect_err("it never learns").to_string();
    assert!(error.contains("skipped steps in a row 16") && error.contains("amp.loss_scale"), "{error}");
}

/// Two scales may be at fault.
#[test]
fn gradients_that_overflow_on_their_way_name_their_scale() {
    let mut config = layout(2, 1, 1, 1).half(F16).config();
    (config.communication.fp16, config.communication.fp16_scale) = (true, 1e30);
    let case = moe();
    let ran = epl::launch(&config, |epl| {
        let mut engine = Engine::build(&epl, |place| case.model.init(place), &AdamWConfig::new())?;
        (0..100).try_for_each(|step| engine.step(micro_batches(&epl, &case, step, 1), 1e-3).map(|_| ()))
    });
    let error = ran.expect_err("it never learns").to_string();
    assert!(error.contains("amp.dtype") && error.contains("lower communication.fp16_scale"), "{error}");
}

/// A chain of two plain layers of Burn.
fn plain(at: &Place) -> Chain<[Linear; 2], (Tensor<2>, Tensor<2>), Tensor<2>> {
    Chain::of([(); 2].map(|()| LinearConfig::new(4, 4).init(at)))
        .first(&["0"], |net: &[Linear; 2], (x, _): &(Tensor<2>, Tensor<2>)| net[0].forward(x.clone()))
        .then(&["1"], |net, x, _| net[1].forward(x))
        .mean_loss(|_, y, (_, target)| (y - target.clone()).powi_scalar(2).mean())
}

#[test]
fn what_is_not_finite_on_one_rank_is_skipped_by_all() {
    for level in [ZeroLevel::Off, V0, V1, V2, V3] {
        for bad in 0..3 {
            let mut config = layout(3, 1, 1, 1).half(F16).zero(level).config();
            config.train.clip_norm = Some(1.0);
            let ranks = epl::launch(&config, |epl| {
                let mut engine = Engine::build(&epl, plain, &AdamWConfig::new())?;
                let rank = epl.context().world().rank();
                let mut skipped = Vec::new();
                for step in 0..4_u64 {
                    let value = if step == 1 && rank == bad { f32::INFINITY } else { 0.5 };
                    let x = Tensor::full([2, 4], value, epl.place().device());
                    let first = (step * 3 + rank as u64) * 2;
                    let batch = MicroBatch::new((x.clone(), x.ones_like()), [first, first + 1]);
                    skipped.push(engine.step(vec![batch], 0.01)?.skipped);
                }
                let finite = |data: &TensorData| data.iter::<f64>().all(f64::is_finite);
                assert!(engine.parameters()?.values().all(finite));
                Ok((skipped, engine.steps(), engine.loss_scaler().map(|scaler| scaler.scale())))
            });
            let ranks = ranks.unwrap_or_else(|error| panic!("{level}: {error}"));
            for rank in ranks {
                assert_eq!(rank, (vec![false, true, false, false], 3, Some(16_384.0)), "{level}, not finite on {bad}");
            }
        }
    }
}

/// A batch of which mixed precision knows nothing.
struct Opaque(Tensor<2>);

impl Batch for Opaque {}

/// Whose batch is not cast is told what to do, before anything is updated.
#[test]
fn types_that_do_not_fit_are_an_error_with_a_remedy() {
    let run = |config: &epl::Config| {
        epl::launch(config, |epl| {
            let loss = |net: &Linear, x: &Opaque| net.forward(x.0.clone()).mean();
            let mut engine =
                Engine::build(&epl, |at| WithLoss::new(LinearConfig::new(4, 4).init(at), loss), &AdamWConfig::new())?;
            let x = Opaque(Tensor::ones([2, 4], epl.place().device()));
            engine.step(vec![MicroBatch::new(x, [0, 1])], 0.01).map(|_| ())
        })
    };
    assert!(run(&layout(1, 1, 1, 1).config()).is_ok(), "in f32 any batch will do");
    let error = run(&layout(1, 1, 1, 1).half(Bf16).config()).expect_err("f32 meets bf16").to_string();
    assert!(
        error.contains("BF16") && error.contains("Place::full_precision") && error.contains("no `Batch`"),
        "{error}"
    );
}
