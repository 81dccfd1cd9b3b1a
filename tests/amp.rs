//! Mixed precision: layouts agree to the rounding of 16 bits, ranks agree on the steps that are skipped, and training
//! recovers from an overflow.

mod parity;

use burn::optim::AdamWConfig;
use epl::config::HalfDtype::{Bf16, F16};
use epl::config::PipelineStrategy::PreferBackward;
use epl::config::ZeroLevel::{V0, V1, V2, V3};
use epl::config::{HalfDtype, LossScale, ReduceMethod};
use epl::{Engine, Result, StepReport};
use parity::{Layout, dense, layout, micro_batches, moe, train};

/// One rounding of the type.
fn rounding(dtype: HalfDtype) -> f64 {
    match dtype {
        F16 => 2.0_f64.powi(-11),
        Bf16 => 2.0_f64.powi(-8),
    }
}

/// Loss and norm of three steps equal those of one rank in the same type, to a few roundings.
fn assert_close(case: &parity::Case, layout: Layout) {
    let dtype = layout.half.expect("in mixed precision");
    let (alone, got) = (train(case, Layout { half: Some(dtype), ..parity::layout(1, 1, 1, 1) }), train(case, layout));
    for (step, (got, alone)) in got.reports.iter().zip(&alone.reports).enumerate() {
        assert_eq!((got.skipped, got.loss_scale), (alone.skipped, alone.loss_scale), "{layout:?}, step {step}");
        let loss = (got.loss - alone.loss).abs() / alone.loss;
        let norm = (got.grad_norm - alone.grad_norm).abs() / alone.grad_norm;
        println!("{dtype}, step {step}: loss {loss:.1e}, norm {norm:.1e}");
        assert!(loss <= 2.0 * rounding(dtype), "{layout:?}, step {step}: loss off by {loss:.1e}");
        assert!(norm <= 20.0 * rounding(dtype), "{layout:?}, step {step}: norm off by {norm:.1e}");
    }
}

macro_rules! close {
    ($($name:ident: $case:expr, $layout:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_close(&$case, $layout);
        }
    )*};
}

close! {
    bf16_on_2:              moe(),          layout(2, 1, 1, 1).half(Bf16);
    f16_on_2_accumulates:   moe(),          layout(2, 1, 1, 4).half(F16);
    f16_v0:                 moe(),          layout(3, 1, 1, 4).half(F16).zero(V0);
    bf16_v1:                moe(),          layout(3, 1, 1, 4).half(Bf16).zero(V1);
    f16_v2:                 moe(),          layout(2, 1, 1, 4).half(F16).zero(V2);
    bf16_v3:                moe(),          layout(2, 1, 1, 4).half(Bf16).zero(V3);
    f16_v3_with_stages:     moe(),          layout(2, 1, 1, 4).half(F16).stages(2, 1, PreferBackward).zero(V3);
    bf16_with_tensor:       moe(),          layout(2, 2, 1, 1).half(Bf16);
    f16_with_experts:       moe(),          layout(4, 1, 2, 1).half(F16);
    f16_recomputes:         moe(),          layout(2, 1, 1, 4).half(F16).recompute(&[1, 3]);
    bf16_lora_v3:           dense().lora(), layout(2, 1, 1, 4).half(Bf16).zero(V3);
    f16_lora_v3:            dense().lora(), layout(3, 1, 1, 1).half(F16).zero(V3);
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
