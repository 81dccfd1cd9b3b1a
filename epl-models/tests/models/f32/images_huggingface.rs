//! ResNet, ViT and Swin equal what `transformers` computed, and ResMLP what timm does: logits, loss and every gradient.
//!
//! It computed them in evaluation mode, so the statistics of a ResNet's norms are the stored running ones.

use std::path::PathBuf;

use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{self, error_on_scale, relative_error, run};
use epl_core::{Epl, LaidOutModel, Model, Plan, Result, launch};
use epl_models::ViTConfig;
use epl_models::huggingface::{Folder, Names, Reference, read_io};
use epl_models::resmlp::{self, ResMlp, ResMlpConfig, ResMlpNames};
use epl_models::resnet::{self, ResNet, ResNetConfig, ResNetLayer, ResNetNames};
use epl_models::swin::{self, Swin, SwinNames};
use epl_models::vision::{ClassLayer, ImageBatch, reference_batch};
use epl_models::vit::{self, ViT, ViTNames};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};

const TOLERANCE: f64 = 1e-5;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

/// What is compared of one model.
struct Case<'a> {
    name: &'a str,
    /// How many gradients it has.
    gradients: usize,
}

/// Weights, and norms times two, of a stem and 19 convolutions; weight and bias of the class layer.
const RESNET: Case<'_> = Case { name: "resnet", gradients: 3 * 20 + 2 };
/// Of two layers four products with biases in attention, two in the network and two norms; of the patches a product with its bias, the
/// class token and the positions; the last norm, and the class layer.
const VIT: Case<'_> = Case { name: "vit", gradients: 2 * 16 + 4 + 2 + 2 };
/// Of two layers three products with biases, two affines and two scales; of the patches a product with its bias; the last affine, and
/// the class layer.
const RESMLP: Case<'_> = Case { name: "resmlp", gradients: 2 * 12 + 2 + 2 + 2 };

/// Of two stages of two blocks as many as a ViT's layer, and a table or the network and the scale of heads without a bias of keys;
/// what merges; of the patches a product with its bias and a norm, perhaps positions; the last norm, and the class layer.
const SWINS: [Case<'_>; 4] = [
    Case { name: "swin", gradients: 4 * (16 + 1) + 3 + 4 + 2 + 2 },
    Case { name: "swinv2", gradients: 4 * (15 + 4) + 3 + 4 + 2 + 2 },
    Case { name: "swin-filled", gradients: 4 * (16 + 1) + 3 + 5 + 2 + 2 },
    Case { name: "swinv2-filled", gradients: 5 * (15 + 4) + 6 + 4 + 2 + 2 },
];

/// The largest errors of one rank, by what they are errors of.
fn errors<M: Model<Batch = ImageBatch>>(
    epl: &Epl,
    reference: &Reference,
    built: LaidOutModel<M>,
    logits: impl Fn(&M, &ImageBatch) -> Tensor<2>,
    names: &impl Names,
) -> Result<Vec<(String, f64)>> {
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
    let device = engine.device();
    let whole = reference_batch(reference, device)?;
    let data = epl.context().data();
    let mine = shard_range(whole.host_labels.len(), data.size(), data.rank());
    let rows = |of: Tensor<4>| of.slice([mine.clone()]);
    let batch = ImageBatch::new(rows(whole.pixels), whole.host_labels[mine.clone()].to_vec());
    let mut errors = Vec::new();

    let plain = ImageBatch { pixels: batch.pixels.clone().inner(), ..batch.clone() };
    if epl.context().mesh().stages() == 1 {
        let logits = epl_comm::catch(|| engine.inference().map(|model| logits(&model, &plain)))??.into_data();
        let expected = Tensor::<2>::from_data(reference.logits()?, &Default::default()).slice([mine.clone()]);
        errors.push(("logits".to_string(), relative_error(&logits, &expected.into_data())));
    }
    let samples: Vec<u64> = mine.map(|sample| sample as u64).collect();
    let (report, gradients) = engine.gradients(vec![MicroBatch::new(batch, samples)])?;
    errors.push(("loss".to_string(), (report.loss / reference.loss()? - 1.0).abs()));
    let source = |name: &str| names.source(name).expect("every parameter stands in the folder");
    for (name, gradient) in &gradients {
        let stored = reference.gradient(&source(name))?;
        let error = match vit::measured_beside(name) {
            // It is zero up to rounding.
            Some(other) => error_on_scale(gradient, &stored, &reference.gradient(&source(&other))?),
            None => relative_error(gradient, &stored),
        };
        errors.push((name.clone(), error));
    }
    Ok(errors)
}

fn check(case: &Case<'_>, mesh: (usize, usize, usize), stages: usize, split: bool) {
    let path = folder(case.name);
    let reference = read_io(&path).expect("the fixture has outputs");
    let mut options = testing::config(mesh.0, mesh.1, mesh.2);
    options.dist.pipeline_parallel_size = stages;
    let all = launch(&options, |epl| match case.name {
        "resnet" => {
            let (folder, config) = resnet::open(&path)?;
            let config = config.with_fixed_statistics(true);
            fn load<C: ClassLayer>(model: ResNet<C>, plan: &Plan, folder: &Folder) -> Result<ResNet<C>> {
                Ok(resnet::load(model, plan.records(), folder)?)
            }
            fn logits<C: ClassLayer>(model: &ResNet<C>, batch: &ImageBatch) -> Tensor<2> {
                model.forward(batch.pixels.clone())
            }
            match split {
                true => {
                    let built =
                        epl.build(|at| config.init_split(at))?.try_map(|model, plan| load(model, plan, &folder))?;
                    errors(&epl, &reference, built, logits, &ResNetNames)
                }
                false => {
                    let built = epl.build(|at| config.init(at))?.try_map(|model, plan| load(model, plan, &folder))?;
                    errors(&epl, &reference, built, logits, &ResNetNames)
                }
            }
        }
        name if name.starts_with("swin") => {
            let (folder, config) = swin::open(&path)?;
            let load = |model, plan: &Plan| Ok(swin::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init_split(at))?.try_map(load)?;
            errors(&epl, &reference, built, Swin::forward, &SwinNames::new(config.version, &folder))
        }
        "resmlp" => {
            let (folder, config) = resmlp::open(&path)?;
            let load = |model, plan: &Plan| Ok(resmlp::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init_split(at))?.try_map(load)?;
            errors(&epl, &reference, built, ResMlp::forward, &ResMlpNames::new(&folder))
        }
        _ => {
            let (folder, config) = vit::open(&path)?;
            let load = |model, plan: &Plan| Ok(vit::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init_split(at))?.try_map(load)?;
            errors(&epl, &reference, built, ViT::forward, &ViTNames::new(&folder))
        }
    });
    let mut compared = std::collections::BTreeSet::new();
    for (rank, errors) in all.unwrap_or_else(|error| panic!("{error}")).into_iter().enumerate() {
        for (what, error) in errors {
            assert!(
                error <= TOLERANCE,
                "{}, mesh {mesh:?}, {stages} stages, split {split}, rank {rank}: error {error:e} in {what}",
                case.name
            );
            compared.insert(what);
        }
    }
    assert_eq!(compared.len(), case.gradients + if stages == 1 { 2 } else { 1 });
}

#[test]
fn on_one_rank() {
    check(&RESNET, (1, 1, 1), 1, false);
    check(&RESNET, (1, 1, 1), 1, true);
    check(&VIT, (1, 1, 1), 1, true);
    check(&RESMLP, (1, 1, 1), 1, true);
}

#[test]
fn classes_over_the_tensor_axis() {
    check(&RESNET, (1, 2, 1), 1, true);
    check(&RESNET, (1, 3, 1), 1, true);
    check(&RESNET, (1, 2, 1), 1, false);
    check(&VIT, (1, 2, 1), 1, true);
    check(&VIT, (1, 4, 1), 1, true);
    check(&RESMLP, (1, 3, 1), 1, true);
}

#[test]
fn rows_over_the_data_axis_and_layers_over_stages() {
    check(&RESNET, (2, 1, 1), 1, false);
    check(&RESNET, (2, 2, 1), 1, true);
    check(&VIT, (2, 1, 1), 1, true);
    check(&VIT, (1, 1, 1), 2, true);
    check(&VIT, (1, 2, 1), 3, true);
    check(&RESMLP, (2, 1, 1), 1, true);
    check(&RESMLP, (1, 2, 1), 3, true);
}

#[test]
fn windows_of_one_rank_and_of_several() {
    for case in &SWINS {
        check(case, (1, 1, 1), 1, true);
        check(case, (2, 2, 1), 1, true);
        check(case, (1, 1, 1), 2, true);
    }
    check(&SWINS[3], (1, 2, 1), 3, true);
}

#[test]
fn running_statistics_are_read() {
    let (folder, config) = resnet::open(folder("resnet")).unwrap();
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
    let (_, config) = resnet::open(folder("resnet")).unwrap();
    let expected = ResNetConfig::new(10)
        .with_embedding_size(8)
        .with_hidden_sizes(vec![16, 32, 48, 64])
        .with_depths(vec![1, 2, 1, 1])
        .with_layer(ResNetLayer::Bottleneck);
    assert_eq!(config, expected);
    let error = resnet::open(folder("t5")).unwrap_err().to_string();
    assert!(error.contains("is a `t5`, which is not supported; supported are resnet"), "{error}");
}

/// What remains of a ViT's folder without its class layer, as `ViTModel` saves it: with a pooler.
fn headless(prefix: &str) -> tempfile::TempDir {
    let headless = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(folder("vit").join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = stored.tensors().into_iter().filter(|(name, _)| !name.starts_with("classifier."));
    let mut tensors: Vec<_> = tensors.map(|(name, view)| (name.replacen("vit.", prefix, 1), view)).collect();
    let pooler = TensorView::new(Dtype::F32, vec![32], &[0; 4 * 32]).unwrap();
    tensors.push((format!("{prefix}pooler.dense.bias"), pooler));
    serialize_to_file(tensors, None, &headless.path().join("model.safetensors")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder("vit").join("config.json")).unwrap()).unwrap();
    let keys = config.as_object_mut().unwrap();
    keys.retain(|key, _| !["id2label", "label2id", "num_labels"].contains(&key.as_str()));
    std::fs::write(headless.path().join("config.json"), config.to_string()).unwrap();
    headless
}

#[test]
fn a_vit_without_a_class_layer_keeps_that_of_the_model() {
    for prefix in ["", "vit."] {
        let saved = headless(prefix);
        let (weights, mut shape) = vit::open(saved.path()).unwrap();
        assert_eq!(shape.classes, 2, "as nobody says");
        shape.classes = 5;
        let parameters = |read: bool| {
            run((1, 1, 1), |epl| {
                let load = |model, plan: &Plan| match read {
                    true => Ok(vit::load(model, plan.records(), &weights)?),
                    false => Ok(model),
                };
                let built = epl.build(|at| shape.init(at))?.try_map(load)?;
                Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()
            })
            .remove(0)
        };
        let (read, drawn) = (parameters(true), parameters(false));
        let (whole, names) = (Folder::open(folder("vit")).unwrap(), ViTNames::written());
        for (path, values) in &read {
            if path.starts_with("class_layer.") {
                assert_eq!(values, &drawn[path], "{path}");
                continue;
            }
            let ranges: Vec<_> = values.shape().iter().map(|extent| 0..*extent).collect();
            let stored = names.source(path).unwrap().read(&whole, &ranges).unwrap();
            assert_eq!(relative_error(values, &stored), 0.0, "{path}");
        }
    }
}

#[test]
fn a_vit_has_the_shape_of_its_folder_and_refuses_other_images() {
    let (_, config) = vit::open(folder("vit")).unwrap();
    let expected = ViTConfig::new(10).with_image_size(32).with_patch_size(8).with_d_model(32).with_d_ff(64);
    assert_eq!(config, expected.with_heads(4).with_layers(2));
    let refused = run((1, 1, 1), |epl| {
        let batch = ImageBatch::new(Tensor::zeros([1, 3, 16, 32], epl.place().device()), vec![0]);
        let built = epl.build(|at| config.init(at))?;
        Ok(epl_comm::catch(|| built.model().forward(&batch)).unwrap_err().to_string())
    });
    assert!(
        refused[0].contains("images of 3 channels and 16×32 pixels, for a model of 3 channels and 32×32"),
        "{}",
        refused[0]
    );
}

#[test]
fn a_resmlp_has_the_shape_of_its_weights() {
    let (path, copy) = (folder("resmlp"), tempfile::tempdir().unwrap());
    let (_, config) = resmlp::open(&path).unwrap();
    let expected = ResMlpConfig::new(10).with_image_size(32).with_patch_size(8).with_d_model(24).with_d_ff(60);
    assert_eq!(config, expected.with_layers(2));
    std::fs::copy(path.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let open = |keys: &str| {
        std::fs::write(copy.path().join("config.json"), keys).unwrap();
        resmlp::open(copy.path()).map(|(_, config)| config)
    };
    let deep = open(r#"{"architecture": "resmlp_36_224", "model_args": {"drop_path_rate": 0.2}}"#).unwrap();
    assert_eq!(deep, config.with_layer_scale(1e-6).with_drop_path(0.2));
    let error = open(r#"{"architecture": "mixer_b16_224"}"#).unwrap_err().to_string();
    assert!(error.contains("is a `mixer_b16_224`, which is not supported; supported are timm's resmlp_*"), "{error}");
    let error = resmlp::open(folder("vit")).unwrap_err().to_string();
    assert!(error.contains("is a `vit`, which is not supported"), "{error}");
    std::fs::copy(folder("vit").join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let error = open(r#"{"architecture": "resmlp_12_224"}"#).unwrap_err().to_string();
    assert!(error.contains("there is no `stem.proj.weight` among the weights"), "{error}");
}
