//! What is exported is what `transformers` had saved, to the bit; and what was trained on two ranks is imported again with
//! the same logits. `tools/check_export.py` has `transformers` itself load such folders.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::tensors::{TensorInfo, WholeTensors};
use epl_core::testing::{relative_error, run};
use epl_core::{Epl, Error, LaidOutModel, Model, Plan, Result};
use epl_models::bert::{self, BertBatcher, ExportedHead, MaskedLanguage, Pretraining, QuestionAnswering};
use epl_models::decoder::{self, Architecture, DecoderBatcher};
use epl_models::huggingface::{self, Folder, read_io};
use epl_models::resmlp;
use epl_models::resnet::{self, ResNetConfig};
use epl_models::t5::{self, T5Batcher};
use epl_models::vision::{ImageBatch, reference_batch};
use epl_models::{swin, vit};
use serde_json::Value;
use tempfile::TempDir;

type Tensors = BTreeMap<String, TensorData>;

const FIXTURES: [&str; 20] = [
    "t5",
    "t5-v1_1",
    "switch",
    "bert-qa",
    "bert-mlm",
    "bert-pretraining",
    "roberta",
    "resnet",
    "vit",
    "swin",
    "swinv2-filled",
    "resmlp",
    "gpt2",
    "llama",
    "llama3",
    "qwen3",
    "mixtral",
    "qwen3-moe",
    "qwen3-moe-dense",
    "gemma2",
];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

fn is_decoder(name: &str) -> bool {
    let folder = Folder::open(fixture(name)).unwrap();
    Architecture::named(folder.model_type().unwrap()).is_some()
}

/// What a rank has after so many steps: the whole parameters, and the logits of all stored rows.
fn trained<M: Model, const D: usize>(
    built: LaidOutModel<M>,
    steps: usize,
    rows: usize,
    batch: impl Fn(Range<usize>, &Device) -> M::Batch,
    logits: impl Fn(&M, &M::Batch) -> Tensor<D>,
) -> Result<(Tensors, TensorData)> {
    let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
    let data = engine.context().data().clone();
    let mine = shard_range(rows, data.size(), data.rank());
    for _ in 0..steps {
        let samples = mine.clone().map(|row| row as u64);
        let own = MicroBatch::new(batch(mine.clone(), engine.device()), samples.collect::<Vec<_>>());
        engine.step(vec![own], 0.1)?;
    }
    let whole = batch(0..rows, engine.device());
    let logits = epl_comm::catch(|| engine.inference().map(|model| logits(&model, &whole)))??.into_data();
    Ok((engine.parameters()?, logits))
}

/// The model of a folder after so many steps on the rows stored with the fixture `name`.
fn run_folder(epl: &Epl, name: &str, path: &Path, steps: usize) -> Result<(Tensors, TensorData)> {
    let reference = read_io(fixture(name))?;
    match name {
        "bert-qa" => run_bert::<QuestionAnswering>(epl, name, path, steps),
        "bert-mlm" | "roberta" => run_bert::<MaskedLanguage>(epl, name, path, steps),
        "bert-pretraining" => run_bert::<Pretraining>(epl, name, path, steps),
        "resnet" => {
            let (folder, config) = resnet::open(path)?;
            let load = |model, plan: &Plan| Ok(resnet::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init(at))?.try_map(load)?;
            let whole = reference_batch(&reference, epl.place())?;
            let rows = whole.host_labels.len();
            trained(built, steps, rows, images(whole), |model, batch| model.forward(batch.pixels.clone().inner()))
        }
        "vit" => {
            let (folder, config) = vit::open(path)?;
            let load = |model, plan: &Plan| Ok(vit::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init(at))?.try_map(load)?;
            let whole = reference_batch(&reference, epl.place())?;
            let rows = whole.host_labels.len();
            trained(built, steps, rows, images(whole), |model, batch| model.forward(&plain(batch)))
        }
        "resmlp" => {
            let (folder, config) = resmlp::open(path)?;
            let load = |model, plan: &Plan| Ok(resmlp::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init(at))?.try_map(load)?;
            let whole = reference_batch(&reference, epl.place())?;
            let rows = whole.host_labels.len();
            trained(built, steps, rows, images(whole), |model, batch| model.forward(&plain(batch)))
        }
        "swin" | "swinv2-filled" => {
            let (folder, config) = swin::open(path)?;
            let load = |model, plan: &Plan| Ok(swin::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init(at))?.try_map(load)?;
            let whole = reference_batch(&reference, epl.place())?;
            let rows = whole.host_labels.len();
            trained(built, steps, rows, images(whole), |model, batch| {
                model.forward(&ImageBatch { pixels: batch.pixels.clone().inner(), ..batch.clone() })
            })
        }
        _ if is_decoder(name) => {
            let (folder, config) = decoder::open(path)?;
            let load = |model, plan: &Plan| Ok(decoder::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init(at))?.try_map(load)?;
            let items = decoder::reference_items(&reference)?;
            let batch =
                |rows: Range<usize>, device: &Device| DecoderBatcher::new(&config).batch(items[rows].to_vec(), device);
            trained(built, steps, items.len(), batch, |model, batch| model.forward(batch))
        }
        _ => {
            let (folder, config) = t5::open(path)?;
            let load = |model, plan: &Plan| Ok(t5::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| config.init(at))?.try_map(load)?;
            let pairs = t5::reference_pairs(&reference)?;
            let batch =
                |rows: Range<usize>, device: &Device| T5Batcher::new(&config).batch(pairs[rows].to_vec(), device);
            trained(built, steps, pairs.len(), batch, |model, batch| model.forward(batch))
        }
    }
}

/// A batch without a graph.
fn plain(batch: &ImageBatch) -> ImageBatch {
    ImageBatch { pixels: batch.pixels.clone().inner(), ..batch.clone() }
}

/// Some of the images of a batch.
fn images(whole: ImageBatch) -> impl Fn(Range<usize>, &Device) -> ImageBatch {
    move |rows, _| ImageBatch::new(whole.pixels.clone().slice([rows.clone()]), whole.host_labels[rows].to_vec())
}

fn run_bert<H: ExportedHead>(epl: &Epl, name: &str, path: &Path, steps: usize) -> Result<(Tensors, TensorData)> {
    let (folder, config) = bert::open(path)?;
    let load = |model, plan: &Plan| Ok(bert::load(model, plan.records(), &folder)?);
    let built = epl.build(|at| H::model(&config, at))?.try_map(load)?;
    let items = bert::reference_items::<H>(&read_io(fixture(name))?)?;
    let batch =
        |rows: Range<usize>, device: &Device| BertBatcher::<H>::new(&config).batch(items[rows].to_vec(), device);
    trained(built, steps, items.len(), batch, |model, batch| model.forward(batch))
}

fn export(name: &str, tensors: &impl WholeTensors, to: &Path) -> huggingface::Result<()> {
    match name {
        "bert-qa" => bert::export::<QuestionAnswering>(&bert::open(fixture(name))?.1, tensors, to),
        "bert-mlm" | "roberta" => bert::export::<MaskedLanguage>(&bert::open(fixture(name))?.1, tensors, to),
        "bert-pretraining" => bert::export::<Pretraining>(&bert::open(fixture(name))?.1, tensors, to),
        _ if is_decoder(name) => decoder::export(&decoder::open(fixture(name))?.1, tensors, to),
        "resnet" => resnet::export(&resnet::open(fixture(name))?.1, tensors, to),
        "swin" | "swinv2-filled" => swin::export(&swin::open(fixture(name))?.1, tensors, to),
        "vit" => vit::export(&vit::open(fixture(name))?.1, tensors, to),
        "resmlp" => resmlp::export(&resmlp::open(fixture(name))?.1, tensors, to),
        _ => t5::export(&t5::open(fixture(name))?.1, tensors, to),
    }
}

/// The parameters of a fixture, unchanged.
fn stored(name: &str) -> Tensors {
    run((1, 1, 1), |epl| run_folder(&epl, name, &fixture(name), 0)).remove(0).0
}

fn keys(folder: &Path) -> serde_json::Map<String, Value> {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

#[test]
fn the_tensors_of_a_fixture_come_back_to_the_bit() {
    for name in FIXTURES {
        let out = TempDir::new().unwrap();
        export(name, &stored(name), out.path()).unwrap();
        let (found, expected) = (Folder::open(out.path()).unwrap(), Folder::open(fixture(name)).unwrap());
        let names = |folder: &Folder| {
            let mut names: Vec<String> = folder.names().map(String::from).collect();
            names.sort();
            names
        };
        assert_eq!(names(&found), names(&expected), "{name}");
        for tensor in found.names() {
            let (found, expected) = (found.read(tensor).unwrap(), expected.read(tensor).unwrap());
            assert_eq!(found.dtype(), expected.dtype(), "{name}: {tensor}");
            assert_eq!(found.shape(), expected.shape(), "{name}: {tensor}");
            assert_eq!(found.as_bytes(), expected.as_bytes(), "{name}: {tensor}");
        }
        let bytes = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
        assert_eq!(bytes(out.path()), bytes(&fixture(name)), "{name}: header and order too");
    }
}

/// Keys of the fixtures that no model here reads: how `transformers` generates, starts and names things.
const UNREAD: [&str; 15] = [
    "is_decoder",
    "add_cross_attention",
    "classifier_dropout",
    "reorder_and_upcast_attn",
    "pretraining_tp",
    "max_window_layers",
    "transformers_version",
    "use_cache",
    "bos_token_id",
    "initializer_factor",
    "add_router_probs",
    "eos_token_id",
    "encoder_stride",
    "pooler_act",
    "pooler_output_size",
];

/// Keys of the Switch fixture that follow from others, or, without `output_router_logits`, do not count.
const FOLLOWS: [&str; 4] = ["encoder_sparse_step", "decoder_sparse_step", "router_aux_loss_coef", "router_z_loss_coef"];

/// Keys that only versions of `transformers` before those of the fixtures read.
const OLDER: [&str; 3] = ["rope_theta", "rope_scaling", "num_experts"];

#[test]
fn the_configuration_of_a_fixture_comes_back() {
    for name in FIXTURES {
        let out = TempDir::new().unwrap();
        export(name, &stored(name), out.path()).unwrap();
        let (found, expected) = (keys(out.path()), keys(&fixture(name)));
        for (key, value) in &expected {
            match found.get(key) {
                None => {
                    let unread = UNREAD.contains(&&**key) || key.starts_with("summary_");
                    assert!(unread || FOLLOWS.contains(&&**key), "{name}: no `{key}`");
                }
                Some(found) => assert_eq!(found, value, "{name}: `{key}`"),
            }
        }
        let is_new = |key: &&String| !expected.contains_key(*key) && !OLDER.contains(&&***key);
        let other: Vec<&String> = found.keys().filter(is_new).collect();
        assert!(other.is_empty(), "{name}: {other:?}");
    }
    let configs = |folder: &Path| t5::open(folder).unwrap().1;
    for name in ["t5", "t5-v1_1", "switch"] {
        let out = TempDir::new().unwrap();
        export(name, &stored(name), out.path()).unwrap();
        assert_eq!(configs(out.path()), configs(&fixture(name)), "{name}");
    }
}

/// Trains on a mesh, exports, imports on one rank: the largest error of the logits.
fn through_export(name: &str, mesh: (usize, usize, usize)) -> f64 {
    let ranks = run(mesh, |epl| run_folder(&epl, name, &fixture(name), 1));
    let (parameters, logits) = &ranks[0];
    let out = TempDir::new().unwrap();
    export(name, parameters, out.path()).unwrap();
    let (again, imported) = run((1, 1, 1), |epl| run_folder(&epl, name, out.path(), 0)).remove(0);
    assert_eq!(again.keys().collect::<Vec<_>>(), parameters.keys().collect::<Vec<_>>());
    for (path, values) in parameters {
        assert_eq!(again[path].as_bytes(), values.as_bytes(), "{name} on {mesh:?}: `{path}`");
    }
    let untrained = run((1, 1, 1), |epl| run_folder(&epl, name, &fixture(name), 0)).remove(0);
    assert!(relative_error(&untrained.1, logits) > 1e-3, "{name} on {mesh:?}: the step changed nothing");
    relative_error(&imported, logits)
}

#[test]
fn what_two_replicas_trained_has_the_same_logits_on_one_rank() {
    for name in FIXTURES {
        let error = through_export(name, (2, 1, 1));
        assert!(error <= 1e-6, "{name}: {error:e}");
    }
    for name in ["switch", "mixtral", "qwen3-moe", "qwen3-moe-dense"] {
        let error = through_export(name, (2, 1, 2));
        assert!(error <= 1e-6, "{name}, its experts over two ranks: {error:e}");
    }
}

#[test]
fn what_two_slices_trained_has_the_same_logits_on_one_rank() {
    for name in FIXTURES {
        let error = through_export(name, (1, 2, 1));
        assert!(error <= 1e-5, "{name}: {error:e}");
    }
}

/// The error of an export that must leave an empty folder.
fn refused(name: &str, tensors: &impl WholeTensors) -> String {
    let out = TempDir::new().unwrap();
    let error = export(name, tensors, out.path()).unwrap_err().to_string();
    let left: Vec<_> = fs::read_dir(out.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    error
}

#[test]
fn tensors_that_are_not_the_models_are_named() {
    let whole = stored("t5");
    let path = "encoder.blocks.1.feed_forward.norm.gamma";
    let mut tensors = whole.clone();
    tensors.remove(path);
    assert!(refused("t5", &tensors).contains(&format!("1 missing: {path}")));

    let mut tensors = whole.clone();
    tensors.insert(path.into(), TensorData::new(vec![1.0_f32; 16], [16]));
    let error = refused("t5", &tensors);
    assert!(error.contains(&format!("1 of another shape: {path} is [16] where the model has [32]")), "{error}");

    let mut tensors = whole;
    tensors.insert("encoder.spare".into(), TensorData::new(vec![1.0_f32], [1]));
    tensors.insert("head.weight".into(), TensorData::new(vec![1.0_f32], [1]));
    let error = refused("t5", &tensors);
    assert!(error.contains("2 not in the model: encoder.spare, head.weight"), "{error}");
}

/// Tensors of which one cannot be read.
struct Unreadable(Tensors, &'static str);

impl WholeTensors for Unreadable {
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.0.info(name)
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
        match name == self.1 {
            true => Err(Error::file("shard-3", "is damaged")),
            false => self.0.read(name, ranges),
        }
    }
}

/// Remembers what is read.
struct Watched(Tensors, Mutex<Vec<(String, Vec<Range<usize>>)>>);

impl WholeTensors for Watched {
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.0.info(name)
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
        self.1.lock().unwrap().push((name.into(), ranges.to_vec()));
        self.0.read(name, ranges)
    }
}

#[test]
fn every_tensor_is_read_once_and_experts_one_by_one() {
    let watched = Watched(stored("switch"), Mutex::default());
    export("switch", &watched, TempDir::new().unwrap().path()).unwrap();
    let Watched(tensors, read) = watched;
    let read = read.into_inner().unwrap();
    for (name, data) in &tensors {
        let of: Vec<&Vec<Range<usize>>> =
            read.iter().filter(|(read, _)| read == name).map(|(_, ranges)| ranges).collect();
        let whole: Vec<Range<usize>> = data.shape().iter().map(|extent| 0..*extent).collect();
        match name.contains("experts") {
            false => assert_eq!(of, [&whole], "{name}"),
            true => {
                let expert = |expert| [&[expert..expert + 1], &whole[1..]].concat();
                assert_eq!(of, (0..4).map(expert).collect::<Vec<_>>().iter().collect::<Vec<_>>(), "{name}");
            }
        }
    }
}

#[test]
fn what_is_there_stays_when_a_tensor_cannot_be_read() {
    let unreadable = Unreadable(stored("bert-qa"), "layers.1.feed_forward.norm.gamma");
    assert!(refused("bert-qa", &unreadable).contains("shard-3: is damaged"));
    let out = TempDir::new().unwrap();
    export("bert-qa", &stored("bert-qa"), out.path()).unwrap();
    let files = || ["config.json", "model.safetensors"].map(|file| fs::read(out.path().join(file)).unwrap());
    let before = files();
    export("bert-qa", &unreadable, out.path()).unwrap_err();
    assert_eq!(files(), before);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 2);
    // And is replaced by another one.
    export("bert-mlm", &stored("bert-mlm"), out.path()).unwrap();
    assert_eq!(keys(out.path())["architectures"][0], "BertForMaskedLM");
}

/// Whether the head is tied, and whether it is scaled, as `transformers` reads it: see `T5Config::to_huggingface`.
#[test]
fn every_head_of_a_t5_comes_back() {
    let (_, config) = t5::open(fixture("t5-v1_1")).unwrap();
    for (tied, scaled, says_tied) in
        [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
    {
        let config = config.clone().with_tied_head(tied).with_scaled_head(scaled);
        let build = |epl: &Epl| epl.build(|at| config.init(at));
        let parameters = |built| Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters();
        let drawn: Tensors = run((1, 1, 1), |epl| parameters(build(&epl)?)).remove(0);
        let out = TempDir::new().unwrap();
        t5::export(&config, &drawn, out.path()).unwrap();
        assert_eq!(keys(out.path())["tie_word_embeddings"], says_tied);
        let (folder, found) = t5::open(out.path()).unwrap();
        assert_eq!(found, config, "tied {tied}, scaled {scaled}");
        assert_eq!(folder.shape("lm_head.weight").is_some(), !tied);
        let load = |model, plan: &Plan| Ok(t5::load(model, plan.records(), &folder)?);
        let again = run((1, 1, 1), |epl| parameters(build(&epl)?.try_map(load)?)).remove(0);
        assert_eq!(again, drawn);
    }
}

/// `transformers` would draw the embeddings of encoder and decoder anew.
#[test]
fn a_switch_with_a_head_of_its_own_has_its_embedding_three_times() {
    let (_, config) = t5::open(fixture("switch")).unwrap();
    let config = config.with_tied_head(false).with_scaled_head(false);
    let parameters = run((1, 1, 1), |epl| {
        let built = epl.build(|at| config.init(at))?;
        Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()
    });
    let out = TempDir::new().unwrap();
    t5::export(&config, &parameters[0], out.path()).unwrap();
    let (folder, found) = t5::open(out.path()).unwrap();
    assert_eq!(found, config);
    for name in ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] {
        assert_eq!(folder.read(name).unwrap(), parameters[0]["embedding.weight"], "{name}");
    }
}

/// A class layer that is split is exported as a whole one.
#[test]
fn a_divided_class_layer_is_whole_in_the_folder() {
    let config = ResNetConfig::tiny(7);
    let parameters = run((1, 2, 1), |epl| {
        let built = epl.build(|at| config.init_split(at))?;
        Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()
    });
    let out = TempDir::new().unwrap();
    resnet::export(&config, &parameters[0], out.path()).unwrap();
    let (folder, found) = resnet::open(out.path()).unwrap();
    assert_eq!(found, config);
    assert_eq!(folder.shape("classifier.1.weight"), Some(&[7, 64][..]));
}
