//! What a MoCo learns goes on as a ViT; what cannot be contrasted is refused.

use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use epl_core::config::{Config, HalfDtype, ZeroLevel};
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::optim::ParamGroups;
use epl_core::simulate::{Op, Purpose, StepProgram};
use epl_core::testing::{config, in_half, run};
use epl_core::{Epl, Result, launch, launch_dry};
use epl_models::moco::{MocoBatch, encoder_map};
use epl_models::vision::ImageBatch;
use epl_models::{Moco, MocoConfig, ViTConfig};

fn vit() -> ViTConfig {
    ViTConfig::shapes(5).with_image_size(16).with_d_model(16).with_d_ff(24).with_layers(2).with_fixed_positions(true)
}

fn engine(epl: &Epl) -> Result<Engine<Moco>> {
    // By the temperature roundings of cosines are divided.
    let model = MocoConfig::new(vit(), 3).with_dim(8).with_mlp_dim(12).with_temperature(0.5);
    Engine::new(epl.build(|at| model.init(at))?, &SgdConfig::new(), EngineSettings::default())
}

fn images(rows: usize, device: &Device) -> Tensor<4> {
    view(0, rows, device)
}

fn view(number: usize, rows: usize, device: &Device) -> Tensor<4> {
    epl_testing::tensor(number, [rows, 3, 16, 16], device)
}

fn pairs([first, second]: [usize; 2], device: &Device) -> MicroBatch<MocoBatch> {
    let batch = MocoBatch { first: view(0, first, device), second: view(1, second, device) };
    MicroBatch::new(batch, (0..first as u64).collect::<Vec<_>>())
}

#[test]
fn a_vit_goes_on_from_the_encoder_which_may_stay() {
    run((1, 1, 1), |epl| {
        let mut moco = engine(&epl)?;
        moco.step(vec![pairs([4, 4], moco.device())], 0.1)?;
        let learned = moco.parameters()?;
        let built = epl.build(|at| vit().init(at))?.assign(&learned, &encoder_map())?;
        let frozen =
            ParamGroups::new(SgdConfig::new()).group(["embeddings", "layers", "norm"], |group| group.with_frozen(true));
        let mut engine = Engine::new(built, &frozen, EngineSettings::default())?;
        let before = engine.parameters()?;
        for (name, values) in before.iter().filter(|(name, _)| !name.starts_with("class_layer")) {
            assert_eq!(values, &learned[&format!("encoder.{name}")], "{name}");
        }
        let batch = ImageBatch::new(images(4, engine.device()), vec![0, 1, 2, 3]);
        engine.step(vec![MicroBatch::new(batch, vec![0, 1, 2, 3])], 0.1)?;
        for (name, values) in engine.parameters()? {
            assert_eq!(values != before[&name], name.starts_with("class_layer"), "{name}");
        }
        Ok(())
    });
}

#[test]
fn the_product_of_the_patches_stays_and_other_parts_learn_or_follow() {
    run((1, 1, 1), |epl| {
        let mut engine = engine(&epl)?;
        let before = engine.parameters()?;
        engine.step(vec![pairs([4, 4], engine.device())], 0.1)?;
        let moved = |name: &str| engine.parameters().map(|after| after[name] != before[name]);
        for part in ["encoder", "momentum_encoder"] {
            assert!(!moved(&format!("{part}.embeddings.projection.weight"))?);
            assert!(!moved(&format!("{part}.projector.norms.2.gamma"))?);
            assert!(moved(&format!("{part}.embeddings.class_token"))?);
            assert!(moved(&format!("{part}.projector.norms.1.gamma"))?);
        }
        assert!(moved("predictor.norms.0.gamma")? && !moved("predictor.norms.1.beta")?);
        Ok(())
    });
}

#[test]
fn one_image_and_views_that_do_not_match_are_refused() {
    for (rows, replicas, expected) in [
        ([1, 1], 1, "a micro-batch of 1 image on all replicas together"),
        ([1, 1], 2, "a micro-batch of 1 image on all replicas together"),
        ([4, 3], 1, "4 first views and 3 second ones; give two views of each image"),
    ] {
        let step = |epl: Epl| {
            let mut engine = engine(&epl)?;
            let batch = pairs(rows, engine.device());
            let batch = match epl.context().data().rank() {
                0 => batch,
                _ => MicroBatch::stand_in(batch.batch, [0]),
            };
            engine.step(vec![batch], 0.1).map(drop)
        };
        let error = launch(&config(replicas, 1, 1), step).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // Nothing is learned of it, and nothing is told apart.
    run((1, 1, 1), |epl| {
        let engine = engine(&epl)?;
        let batch = pairs([1, 1], &engine.device().clone().without_autodiff());
        assert_eq!(engine.evaluate([Ok(batch)])?.loss, 0.0);
        Ok(())
    });
}

/// Also where the first scales of the loss overflow f16, as batch norms of few rows that are near each other make large gradients.
#[test]
fn in_16_bits_the_loss_is_near_that_in_f32() {
    let first_loss = |options: &Config| {
        let ranks = launch(options, |epl| {
            let mut engine = engine(&epl)?;
            // Of images that are not alike: a batch norm makes the difference of those that are as large as any, with its rounding.
            let value = |at: usize, view: usize| ((at * at + 397 * view) as f64).sin() + (at / 768) as f64 - 1.5;
            let rows = |view: usize| (0..4 * 768).map(|at| value(at, view)).collect::<Vec<_>>();
            let view =
                |view: usize| Tensor::from_data(TensorData::new(rows(view), [4, 3, 16, 16]), epl.place().device());
            let batch = || MocoBatch { first: view(0), second: view(1) };
            let (mut losses, before) = (Vec::new(), engine.parameters()?);
            while engine.steps() == 0 {
                let report = engine.step(vec![MicroBatch::new(batch(), vec![0, 1, 2, 3])], 1e-3)?;
                assert!(report.loss.is_finite());
                losses.push(report.loss);
                let name = "momentum_encoder.layers.0.feed_forward.dense.input.weight";
                assert_eq!(engine.parameters()?[name] != before[name], !report.skipped);
            }
            Ok(losses[0])
        });
        ranks.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
    };
    let expected = first_loss(&config(1, 1, 1));
    for (dtype, unit) in [(HalfDtype::F16, 2f64.powi(-11)), (HalfDtype::Bf16, 2f64.powi(-8))] {
        let error = (first_loss(&in_half(config(1, 1, 1), dtype)) / expected - 1.0).abs() / unit;
        assert!(error > 0.0 && error <= 4.0, "{dtype}: off by {error} u");
    }
}

/// What ranks would do in a step of a world that is only thought of: states of both encoders go to the next stage, and gradients
/// of the one come back.
#[test]
fn keys_have_no_gradient_between_stages() {
    let mut options = config(2, 1, 1);
    options.dist.pipeline_parallel_size = 2;
    options.zero.level = ZeroLevel::V3;
    let sent = |rank: usize| {
        let (program, _) = launch_dry(&options, rank, |epl| {
            let model = MocoConfig::new(vit(), 3).with_dim(8).with_mlp_dim(12);
            let lazy = epl.plan(|at| model.init(at))?;
            let shapes = lazy.step_shapes(&[4], &[0], |_, device| pairs([4, 4], device).batch)?;
            StepProgram::new(lazy.plan(), &shapes.with_lanes(1))
        })
        .unwrap();
        let floats = |op: &Op| match op {
            Op::Start(Purpose::Parcel, call) if call.dtype.is_float() => call.elements,
            _ => 0,
        };
        program.ops.iter().map(floats).sum::<usize>()
    };
    // Of two views, 4 rows, 17 vectors of 16.
    let states = 2 * 4 * 17 * 16;
    let mut all: Vec<usize> = (0..4).map(sent).collect();
    all.sort_unstable();
    assert_eq!(all, [states, states, 2 * states, 2 * states]);
}
