//! ResNet equals what `transformers` computed: logits, loss and every gradient.
//!
//! It computed them in evaluation mode, so the statistics of the norms are the stored running ones.

use std::path::PathBuf;

use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{relative_error, run};
use epl_core::{Epl, LaidOutModel, Result};
use epl_models::huggingface::{Folder, Names, Reference, read_io};
use epl_models::resnet::{self, ClassLayer, ResNet, ResNetConfig, ResNetLayer, ResNetNames};
use epl_models::vision::ImageBatch;

const TOLERANCE: f64 = 1e-4;

/// Weights, and norms times two, of a stem and 19 convolutions; weight and bias of the class layer.
const GRADIENTS: usize = 3 * 20 + 2;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers/resnet"))
}

/// The largest errors of one rank, by what they are errors of.
fn errors<C: ClassLayer>(
    epl: &Epl,
    folder: &Folder,
    reference: &Reference,
    built: LaidOutModel<ResNet<C>>,
) -> Result<Vec<(String, f64)>> {
    let built = built.try_map(|model, plan| Ok(resnet::load(model, plan.records(), folder)?))?;
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
    let device = engine.device();
    let whole = resnet::reference_batch(reference, device)?;
    let data = epl.context().data();
    let mine = shard_range(whole.host_labels.len(), data.size(), data.rank());
    let rows = |of: Tensor<4>| of.slice([mine.clone()]);
    let batch = ImageBatch::new(rows(whole.pixels), whole.host_labels[mine.clone()].to_vec());
    let mut errors = Vec::new();

    let pixels = batch.pixels.clone().inner();
    let logits = epl_comm::catch(|| engine.inference().map(|model| model.forward(pixels)))??.into_data();
    let expected = Tensor::<2>::from_data(reference.logits()?, &Default::default()).slice([mine.clone()]);
    errors.push(("logits".to_string(), relative_error(&logits, &expected.into_data())));

    let samples: Vec<u64> = mine.map(|sample| sample as u64).collect();
    let (report, gradients) = engine.gradients(vec![MicroBatch::new(batch, samples)])?;
    errors.push(("loss".to_string(), (report.loss / reference.loss()? - 1.0).abs()));
    for (name, gradient) in gradients {
        let source = ResNetNames.source(&name).expect("every parameter stands in the folder");
        errors.push((name, relative_error(&gradient, &reference.gradient(&source)?)));
    }
    Ok(errors)
}

fn check(mesh: (usize, usize, usize), split: bool) {
    let (folder, config) = resnet::open(folder()).expect("the fixture is there");
    let reference = read_io(folder.path()).expect("the fixture has outputs");
    let config = config.with_fixed_statistics(true);
    let all = run(mesh, |epl| match split {
        true => errors(&epl, &folder, &reference, epl.build(|at| config.init_split(at))?),
        false => errors(&epl, &folder, &reference, epl.build(|at| config.init(at))?),
    });
    for (rank, errors) in all.into_iter().enumerate() {
        assert_eq!(errors.len(), GRADIENTS + 2);
        for (what, error) in errors {
            assert!(error <= TOLERANCE, "mesh {mesh:?}, split {split}, rank {rank}: error {error:e} in {what}");
        }
    }
}

#[test]
fn on_one_rank() {
    check((1, 1, 1), false);
    check((1, 1, 1), true);
}

#[test]
fn classes_over_the_tensor_axis() {
    check((1, 2, 1), true);
    check((1, 3, 1), true);
    check((1, 2, 1), false);
}

#[test]
fn rows_over_the_data_axis() {
    check((2, 1, 1), false);
    check((2, 2, 1), true);
}

#[test]
fn running_statistics_are_read() {
    let (folder, config) = resnet::open(folder()).unwrap();
    let parameters = run((1, 1, 1), |epl| {
        let built = epl.build(|at| config.init(at))?;
        let built = built.try_map(|model, plan| Ok(resnet::load(model, plan.records(), &folder)?))?;
        Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()
    });
    let stored = |name: &str| -> TensorData { folder.read(name).unwrap() };
    for field in ["running_mean", "running_var"] {
        let found = &parameters[0][&format!("backbone.stages.1.layers.1.parts.0.norm.{field}")];
        let name = format!("resnet.encoder.stages.1.layers.1.layer.0.normalization.{field}");
        assert_eq!(relative_error(found, &stored(&name)), 0.0);
    }
}

#[test]
fn the_shape_is_that_of_the_folder() {
    let (_, config) = resnet::open(folder()).unwrap();
    let expected = ResNetConfig::new(10)
        .with_embedding_size(8)
        .with_hidden_sizes(vec![16, 32, 48, 64])
        .with_depths(vec![1, 2, 1, 1])
        .with_layer(ResNetLayer::Bottleneck);
    assert_eq!(config, expected);
    let t5 = folder().with_file_name("t5");
    let error = resnet::open(t5).unwrap_err().to_string();
    assert!(error.contains("is a `t5`, which is not supported; supported are resnet"), "{error}");
}
