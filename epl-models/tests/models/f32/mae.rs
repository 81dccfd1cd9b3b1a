//! MAE equals what `transformers` computed: pixels, loss and every gradient; and what is learned goes on as a ViT.

use std::path::PathBuf;

use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::data::Rows;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{config, error_on_scale, relative_error, run};
use epl_core::{Epl, Plan, Result, launch};
use epl_models::huggingface::{Folder, Names, read_io};
use epl_models::mae::{self, MaeBatch, MaeNames};
use epl_models::vision::ImageBatch;
use epl_models::vit::{self, measured_beside};
use epl_models::{MaeConfig, ViTConfig};
use tempfile::TempDir;

const TOLERANCE: f64 = 1e-5;
/// Each, with its number of gradients: of each layer 16; two products, the class and the mask token, two norms and the last product.
const FIXTURES: [(&str, usize); 2] = [("vit-mae", 3 * 16 + 12), ("vit-mae-normalised", 4 * 16 + 12)];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

/// This rank's rows of a batch.
fn own(whole: &MaeBatch, epl: &Epl) -> (MaeBatch, Vec<u64>) {
    let data = epl.context().data();
    let mine = shard_range(whole.pixels.dims()[0], data.size(), data.rank());
    (whole.narrow(mine.clone()), mine.map(|row| row as u64).collect())
}

fn errors(epl: &Epl, name: &str) -> Result<Vec<(String, f64)>> {
    let (folder, config) = mae::open(folder(name))?;
    let reference = read_io(folder.path())?;
    let load = |model, plan: &Plan| Ok(mae::load(model, plan.records(), &folder)?);
    let engine =
        Engine::new(epl.build(|at| config.init(at))?.try_map(load)?, &SgdConfig::new(), EngineSettings::default())?;
    let (batch, samples) = own(&mae::reference_batch(&reference, engine.device())?, epl);
    let mut errors = Vec::new();
    let rows = samples[0] as usize..samples[0] as usize + samples.len();
    let expected = Tensor::<3>::from_data(reference.logits()?, &Device::default()).slice([rows]).into_data();
    engine.forward([Ok(MicroBatch::new(batch.clone(), samples.clone()))], |_, carry, _| {
        errors.push(("pixels".to_string(), relative_error(&carry.into_data(), &expected)));
        Ok(())
    })?;
    // The mask that is stored is that of the whole batch.
    let hidden = engine.model().masking(&mae::reference_batch(&reference, engine.device())?);
    let hidden = hidden.hidden(engine.device(), DType::F32).into_data();
    assert_eq!(hidden, reference.output("mask")?, "{name}: other patches stay");
    let (report, gradients) = engine.gradients(vec![MicroBatch::new(batch, samples)])?;
    errors.push(("loss".to_string(), (report.loss / reference.loss()? - 1.0).abs()));
    let names = MaeNames::new(&folder);
    let stored = |path: &str| reference.gradient(&names.source(path).expect("every parameter stands in the folder"));
    for (name, gradient) in gradients {
        let expected = stored(&name)?;
        let error = match measured_beside(&name) {
            Some(other) => error_on_scale(&gradient, &expected, &stored(&other)?),
            None => relative_error(&gradient, &expected),
        };
        errors.push((name, error));
    }
    Ok(errors)
}

#[test]
fn on_any_mesh_it_is_what_transformers_computed() {
    for (data, tensor, stages) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4), (2, 2, 2)] {
        let mut options = config(data, tensor, 1);
        options.dist.pipeline_parallel_size = stages;
        for (name, gradients) in FIXTURES {
            let ranks = launch(&options, |epl| errors(&epl, name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            for errors in ranks {
                assert_eq!(errors.iter().filter(|(what, _)| what.contains('.')).count(), gradients, "{errors:?}");
                for (what, error) in errors {
                    let mesh = (data, tensor, stages);
                    assert!(error <= TOLERANCE, "{name}, data, tensor, stages {mesh:?}: error {error:e} in {what}");
                }
            }
        }
    }
}

/// The whole parameters of a model from a folder.
fn parameters(epl: &Epl, path: &std::path::Path) -> Result<std::collections::BTreeMap<String, TensorData>> {
    let (folder, config) = mae::open(path)?;
    let load = |model, plan: &Plan| Ok(mae::load(model, plan.records(), &folder)?);
    let built = epl.build(|at| config.init(at))?.try_map(load)?;
    Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()
}

#[test]
fn what_is_exported_is_what_transformers_had_saved() {
    for (name, _) in FIXTURES {
        let out = TempDir::new().unwrap();
        let stored = run((1, 2, 1), |epl| parameters(&epl, &folder(name))).remove(0);
        let (_, config) = mae::open(folder(name)).unwrap();
        mae::export(&config, &stored, out.path()).unwrap();
        let (found, expected) = (Folder::open(out.path()).unwrap(), Folder::open(folder(name)).unwrap());
        let names = |folder: &Folder| folder.names().map(String::from).collect::<std::collections::BTreeSet<_>>();
        // Version 5 saves the decoder's layers under a name that versions before it do not read.
        let renamed = |name: &String| name.replace("decoder_encoder.layer", "decoder_layers");
        assert_eq!(names(&found), names(&expected).iter().map(renamed).collect());
        for name in names(&expected) {
            assert_eq!(found.read(&renamed(&name)).unwrap(), expected.read(&name).unwrap(), "{name}");
        }
        let keys = |folder: &std::path::Path| -> serde_json::Map<String, serde_json::Value> {
            serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
        };
        let mut expected = keys(&folder(name));
        expected.remove("transformers_version");
        assert_eq!(keys(out.path()), expected);
        assert_eq!(mae::open(out.path()).unwrap().1, config);
        assert_eq!(run((1, 1, 1), |epl| parameters(&epl, out.path())).remove(0), stored);
    }
}

#[test]
fn a_vit_goes_on_from_it_with_positions_that_are_learned_or_not() {
    for is_fixed in [false, true] {
        run((1, 1, 1), |epl| {
            let (folder, config) = vit::open(folder("vit-mae"))?;
            let config = ViTConfig { classes: 5, ..config }.with_fixed_positions(is_fixed);
            let load = |model, plan: &Plan| Ok(vit::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init(at))?.try_map(load)?;
            let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
            let found = engine.parameters()?;
            for (ours, stored) in [
                ("embeddings.class_token", "vit.embeddings.cls_token"),
                ("embeddings.positions", "vit.embeddings.position_embeddings"),
                ("norm.gamma", "vit.layernorm.weight"),
            ] {
                assert_eq!(found[ours].as_bytes(), folder.read(stored)?.as_bytes(), "{ours}");
            }
            assert_eq!(found["class_layer.weight"].shape().to_vec(), [32, 5]);
            let batch = ImageBatch::new(Tensor::ones([1, 3, 32, 32], engine.device()), vec![3]);
            let (_, gradients) = engine.gradients(vec![MicroBatch::new(batch, vec![0])])?;
            assert_eq!(gradients.contains_key("embeddings.positions"), !is_fixed);
            Ok(())
        });
    }
}

/// As `build_2d_sinusoidal_position_embedding` of `transformers` has them, its halves exchanged, as for ViT-MAE.
#[test]
fn positions_are_sines_and_cosines() {
    let config = MaeConfig::new(ViTConfig::shapes(2).with_image_size(8)).with_decoder_d_model(16).with_decoder_heads(2);
    let positions = run((1, 1, 1), |epl| {
        let built = epl.build(|at| config.clone().with_decoder_layers(1).init(at))?;
        Ok(Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()?["decoder.positions"].clone())
    });
    assert_eq!(positions[0].shape().to_vec(), [1, 5, 16]);
    let (of_transformers, config) = mae::open(folder("vit-mae-normalised")).unwrap();
    let drawn = run((1, 1, 1), |epl| {
        let built = epl.build(|at| config.init(at))?;
        Ok(Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()?["decoder.positions"].clone())
    });
    let error = relative_error(&drawn[0], &of_transformers.read("decoder.decoder_pos_embed").unwrap());
    assert!(error < 1e-6, "{error:e}");
    let found: Vec<f64> = positions[0].iter().collect();
    let waves = [1.0, 0.1, 0.01, 0.001];
    let of = |coordinate: f64| {
        let angles = waves.map(|wave| wave * coordinate);
        [angles.map(f64::sin), angles.map(f64::cos)].concat()
    };
    assert_eq!(found[..16], [0.0; 16], "the class token");
    // The second patch of the second row.
    let expected = [of(1.0), of(1.0)].concat();
    assert!(found[64..80].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    // The second patch of the first row: the column counts first.
    let expected = [of(1.0), of(0.0)].concat();
    assert!(found[32..48].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
}

/// A batch is cut by its rows, noise with it.
#[test]
fn a_batch_with_noise_is_cut_over_the_replicas() {
    let (folder, config) = mae::open(folder("vit-mae")).unwrap();
    let reference = read_io(folder.path()).unwrap();
    let losses = run((2, 1, 1), |epl| {
        let load = |model, plan: &Plan| Ok(mae::load(model, plan.records(), &folder)?);
        let built = epl.build(|at| config.init(at))?.try_map(load)?;
        let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
        Ok(engine.train_batch(&mae::reference_batch(&reference, epl.place())?, 0.0)?.loss)
    });
    for loss in losses {
        assert!((loss / reference.loss().unwrap() - 1.0).abs() < 1e-5, "{loss}");
    }
}

/// Whatever step it is made at; and outside an engine's pass there are no samples to draw for.
#[test]
fn an_evaluation_hides_the_same_patches_whenever_it_is_made() {
    let config =
        MaeConfig::new(ViTConfig::shapes(2)).with_decoder_d_model(32).with_decoder_heads(2).with_decoder_layers(1);
    run((1, 1, 1), |epl| {
        let mut engine = Engine::new(epl.build(|at| config.init(at))?, &SgdConfig::new(), EngineSettings::default())?;
        let pixels = epl_testing::tensor(0, [4, 3, 32, 32], epl.place().device());
        let batch = MaeBatch { pixels, noise: None };
        let micro_batch = || MicroBatch::new(batch.clone(), (0..4).collect::<Vec<u64>>());
        let evaluated = |engine: &Engine<_>| -> Result<f64> { Ok(engine.evaluate([Ok(micro_batch())])?.loss) };
        let (before, first) = (evaluated(&engine)?, engine.step(vec![micro_batch()], 0.0)?.loss);
        let second = engine.step(vec![micro_batch()], 0.0)?.loss;
        assert_eq!(evaluated(&engine)?, before);
        assert!(first != second, "each step hides others: {first}");
        let refused =
            epl_comm::catch(|| engine.inference().map(|model| model.forward(&batch))).unwrap_err().to_string();
        assert!(refused.contains("a batch of 4 images, and the pass has the samples of 0: give `noise`"), "{refused}");
        Ok(())
    });
}

/// Which patches stay is drawn from seed, step and sample: other ones in each step, the same on each layout.
#[test]
fn other_patches_stay_in_each_step() {
    let model =
        MaeConfig::new(ViTConfig::shapes(2)).with_decoder_d_model(32).with_decoder_heads(2).with_decoder_layers(1);
    let masks = |layout: (usize, usize, usize), step: u64| {
        let ranks = run(layout, |epl| {
            let model = epl.build(|at| model.init(at))?.into_inner();
            let data = epl.context().data();
            let mine = shard_range(4, data.size(), data.rank());
            let samples = mine.clone().map(|row| row as u64).collect::<Vec<_>>();
            epl.context().begin(epl_core::Pass { step, training: true, samples: samples.into(), empty: false });
            let pixels = Tensor::zeros([mine.len(), 3, 32, 32], epl.place().device());
            let masking = model.masking(&MaeBatch { pixels, noise: None });
            let hidden = masking.hidden(epl.place().device(), DType::F32);
            Ok((data.rank(), hidden.into_data().iter::<f32>().collect::<Vec<f32>>()))
        });
        let mut parts: Vec<_> = ranks;
        parts.sort_by_key(|(rank, _)| *rank);
        parts.dedup_by_key(|(rank, _)| *rank);
        parts.into_iter().flat_map(|(_, hidden)| hidden).collect::<Vec<f32>>()
    };
    let whole = masks((1, 1, 1), 3);
    assert_eq!(whole.iter().sum::<f32>(), 4.0 * 48.0, "a quarter of 64 patches stays");
    assert!(whole[..64] != whole[64..128], "of each image others");
    assert_eq!(masks((2, 2, 1), 3), whole);
    assert_ne!(masks((1, 1, 1), 4), whole);
}
