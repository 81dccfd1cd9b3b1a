//! MoCo equals what PyTorch computed, and the layout changes nothing of it, in f64: neither losses nor gradients, parameters, those
//! of the momentum encoder, and running statistics.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::config::{CheckpointType, Config, OffloadLevel, ZeroLevel};
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::tensors::AssignMap;
use epl_core::{Epl, Error, Result, launch, testing};
use epl_models::huggingface::TensorFile;
use epl_models::moco::MocoBatch;
use epl_models::{MocoConfig, ViTConfig};

use super::resnet::{Outcome, assert_same, batch, train_with};

type Parameters = BTreeMap<String, TensorData>;

/// The model of `tools/make_moco_fixture.py`.
fn of_fixture() -> MocoConfig {
    let encoder = ViTConfig::new(2).with_image_size(8).with_patch_size(4).with_d_model(8).with_d_ff(12).with_heads(2);
    MocoConfig::new(encoder.with_layers(2), 5).with_dim(6).with_mlp_dim(10).with_momentum(0.9)
}

/// What PyTorch stored under a prefix.
fn stored(file: &TensorFile, prefix: &str) -> Result<Parameters> {
    let names = file.names().into_iter().filter_map(|name| Some((name.strip_prefix(prefix)?.to_string(), name)));
    names.map(|(ours, name)| Ok((ours, file.read(&name)?))).collect()
}

#[track_caller]
fn assert_near(found: &TensorData, expected: &TensorData, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let pairs = found.iter::<f64>().zip(expected.iter::<f64>());
    let far = epl_testing::largest(pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1.0)));
    assert!(far <= 1e-10, "{what} is off by {far:e}");
}

fn as_pytorch(epl: &Epl, file: &TensorFile) -> Result<()> {
    let initial =
        AssignMap::new().with("encoder", "encoder").with("encoder", "momentum_encoder").with("predictor", "predictor");
    let kept = ["*.embeddings.positions", "**.running_mean", "**.running_var"].into_iter();
    let map = kept.fold(initial, AssignMap::allow_missing);
    let initial = stored(file, "initial.")?;
    let built = || epl.build(|at| of_fixture().init(at))?.assign(&initial, &map);
    let mut engine = Engine::new(built()?, &SgdConfig::new(), EngineSettings::default())?;
    let mine = shard_range(5, epl.context().data().size(), epl.context().data().rank());
    let micro_batch = |step: usize, device: &Device| {
        let view = |name: &str| -> Result<Tensor<4>> {
            let whole = Tensor::from_data(file.read(&format!("{name}.{step}"))?, device);
            Ok(whole.slice([mine.clone()]))
        };
        let samples: Vec<u64> = mine.clone().map(|row| row as u64).collect();
        let batch = MocoBatch { first: view("first")?, second: view("second")? };
        Ok::<_, Error>(vec![MicroBatch::new(batch, samples)])
    };
    let (_, gradients) = engine.gradients(micro_batch(0, engine.device())?)?;
    let expected = stored(file, "gradient.")?;
    assert!(gradients.keys().eq(expected.keys()), "{:?}", gradients.keys());
    gradients.iter().for_each(|(name, gradient)| assert_near(gradient, &expected[name], name));
    // Running statistics moved.
    engine = Engine::new(built()?, &SgdConfig::new(), EngineSettings::default())?;
    for step in 0..3 {
        let loss = engine.step(micro_batch(step, engine.device())?, 0.1)?.loss;
        let expected = file.read(&format!("loss.{step}"))?.iter::<f64>().next().unwrap_or(f64::NAN);
        assert!((loss / expected - 1.0).abs() < 1e-10, "step {step}: {loss}, not {expected}");
    }
    let (found, expected) = (engine.parameters()?, stored(file, "final.")?);
    let positions = |name: &&String| name.ends_with("positions");
    assert!(found.keys().filter(|name| !positions(name)).eq(expected.keys()), "{:?}", found.keys());
    expected.iter().for_each(|(name, expected)| assert_near(&found[name], expected, name));
    Ok(())
}

#[test]
fn three_steps_are_those_of_pytorch() {
    epl_testing::in_f64(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/moco.safetensors");
        let file = TensorFile::open(path).unwrap();
        for (data, tensor, stages, zero) in
            [(1, 1, 1, ZeroLevel::Off), (2, 1, 1, ZeroLevel::V3), (1, 2, 1, ZeroLevel::Off), (2, 1, 3, ZeroLevel::Off)]
        {
            let mut options = testing::config(data, tensor, 1);
            options.dist.pipeline_parallel_size = stages;
            options.zero.level = zero;
            launch(&options, |epl| as_pytorch(&epl, &file)).unwrap_or_else(|error| panic!("{error}"));
        }
    });
}

const SIZE: usize = 12;
const ROWS: usize = 7;

/// With dropout, in four segments.
fn model() -> MocoConfig {
    let encoder =
        ViTConfig::new(2).with_image_size(SIZE).with_patch_size(4).with_d_model(16).with_d_ff(24).with_heads(4);
    let encoder = encoder.with_layers(3).with_dropout(0.1).with_attention_dropout(0.1);
    MocoConfig::new(encoder, 6).with_dim(8).with_mlp_dim(12).with_momentum(0.6)
}

fn views(rows: Range<usize>, device: &Device) -> MocoBatch {
    let other = rows.start + 1000..rows.end + 1000;
    let [first, second] = [rows, other].map(|rows| batch(rows, [SIZE; 2], device).pixels);
    MocoBatch { second: first.clone() * 0.7 + second * 0.3, first }
}

/// Without what is rounding: a bias of the keys shifts all scores of a query alike; a batch norm takes away what the last norm
/// shifts; and what enters the predictor has the mean zero.
fn told(mut tensors: Parameters) -> Parameters {
    let rounding = [".key.bias", "encoder.norm.beta", "predictor.norms.0.running_mean"];
    tensors.retain(|name, _| !rounding.iter().any(|part| name.contains(part)));
    tensors
}

fn outcome(options: &Config) -> Outcome {
    let outcomes = launch(options, |epl| train_with(epl.build(|at| model().init(at))?, (ROWS, 1), views));
    let (losses, tensors) = outcomes.unwrap_or_else(|error| panic!("{error}")).pop().expect("there is a last rank");
    (losses, told(tensors))
}

#[test]
fn any_layout_equals_one_rank() {
    epl_testing::in_f64(|| {
        let one = outcome(&testing::config(1, 1, 1));
        assert!(one.0.iter().all(|loss| loss.is_finite()) && one.0[1] != one.0[0], "{:?}", one.0);
        let weight = |of: &str| one.1[&format!("{of}.projector.linears.0.weight itself")].clone();
        assert_ne!(weight("encoder"), weight("momentum_encoder"));
        assert!(one.1.keys().all(|name| name.ends_with("itself") || !name.starts_with("momentum_encoder")));
        let with = |mesh: (usize, usize), change: fn(&mut Config)| {
            let mut options = testing::config(mesh.0, mesh.1, 1);
            change(&mut options);
            options
        };
        let layouts = [
            with((2, 1), |_| ()),
            with((1, 2), |_| ()),
            // One of the replicas has no row.
            with((8, 1), |_| ()),
            with((2, 2), |options| options.zero.level = ZeroLevel::V2),
            with((3, 1), |options| options.zero.level = ZeroLevel::V3),
            with((2, 2), |options| options.zero.level = ZeroLevel::V3),
            with((2, 1), |options| options.offload.level = OffloadLevel::V0),
            with((1, 1), |options| options.dist.pipeline_parallel_size = 4),
            with((2, 2), |options| options.dist.pipeline_parallel_size = 2),
            with((2, 1), |options| {
                options.dist.pipeline_parallel_size = 3;
                options.zero.level = ZeroLevel::V3;
            }),
            with((2, 1), |options| options.gradient_checkpoint.r#type = CheckpointType::Auto),
        ];
        for options in &layouts {
            assert_same(&outcome(options), &one, &options.to_toml());
        }
    });
}

/// Each micro-batch stands by itself, over all replicas.
#[test]
fn a_micro_batch_is_contrasted_over_all_replicas() {
    epl_testing::in_f64(|| {
        // By replica, then by micro-batch: rows of 11.
        let rows = [[0..2, 5..8], [2..5, 8..11]];
        let outcome = |options: &Config| {
            let ranks = launch(options, |epl| {
                let built = epl.build(|at| model().init(at))?;
                let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
                let (replicas, own) = (epl.context().data().size(), epl.context().data().rank());
                let micro_batch = |number: usize| {
                    let own = rows.iter().skip(own).take(if replicas == 1 { 2 } else { 1 });
                    let own: Vec<usize> = own.flat_map(|rows| rows[number].clone()).collect();
                    let parts: Vec<MocoBatch> =
                        own.iter().map(|row| views(*row..row + 1, epl.place().device())).collect();
                    let of =
                        |view: fn(&MocoBatch) -> &Tensor<4>| Tensor::cat(parts.iter().map(view).cloned().collect(), 0);
                    let batch = MocoBatch { first: of(|batch| &batch.first), second: of(|batch| &batch.second) };
                    MicroBatch::new(batch, own.into_iter().map(|row| row as u64).collect::<Vec<_>>())
                };
                let losses = (0..2).map(|_| Ok(engine.step((0..2).map(micro_batch).collect(), 0.05)?.loss));
                Ok((losses.collect::<Result<_>>()?, told(engine.parameters()?)))
            });
            ranks.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
        };
        let one: Outcome = outcome(&testing::config(1, 1, 1));
        assert_same(&outcome(&testing::config(2, 1, 1)), &one, "two replicas");
        let mut stages = testing::config(2, 1, 1);
        stages.dist.pipeline_parallel_size = 2;
        assert_same(&outcome(&stages), &one, "two replicas of two stages");
    });
}
