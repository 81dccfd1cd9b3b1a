//! BERT and RoBERTa equal what `transformers` computed: logits, loss and every gradient.
//!
//! With pipeline stages no rank has the whole model. There the logits of answers are those that an evaluation hands
//! out, of the tokens that are no padding; those of a masked language model are compared without stages only.

use std::path::PathBuf;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{config, error_on_scale, relative_error};
use epl_core::{Epl, Model, Place, Result, launch};
use epl_models::bert::{
    self, ANSWER_LOGITS, Bert, BertArchitecture, BertBatcher, BertConfig, BertHead, BertNames, MaskedLanguage,
    Pretraining, QuestionAnswering, measured_beside,
};
use epl_models::huggingface::{Names, read_io};
use safetensors::tensor::{SafeTensors, serialize_to_file};

const TOLERANCE: f64 = 1e-4;

/// Of embeddings 5, of 2 layers 16 each; and those of the head.
const GRADIENTS: usize = 5 + 2 * 16;

/// Data, tensor and pipeline ranks.
type Mesh = (usize, usize, usize);

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

/// The largest errors of one rank, by what they are errors of.
fn errors<H: BertHead>(
    epl: &Epl,
    name: &str,
    init: impl Fn(&BertConfig, &Place) -> Bert<H>,
) -> Result<Vec<(String, f64)>> {
    let (folder, config) = bert::open(folder(name))?;
    // What is stored was computed over all positions of a padded row.
    let config = config.with_answers_in_padding(true);
    let reference = read_io(folder.path())?;
    let built = epl.build(|at| init(&config, at))?;
    let built = built.try_map(|model, plan| Ok(bert::load(model, plan.records(), &folder)?))?;
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;

    let items = bert::reference_items::<H>(&reference)?;
    let data = epl.context().data();
    let mine = shard_range(items.len(), data.size(), data.rank());
    let batch = BertBatcher::<H>::new(&config).batch(items[mine.clone()].to_vec(), engine.device());
    let samples: Vec<u64> = mine.clone().map(|sample| sample as u64).collect();
    let mut errors = Vec::new();

    if engine.plan().stages.count() == 1 {
        let logits = epl_comm::catch(|| engine.inference().map(|model| model.forward(&batch)))??.into_data();
        errors.push(("logits".to_string(), relative_error(&logits, &rows(reference.logits()?, mine))));
    }
    let evaluation = engine.evaluate([Ok(MicroBatch::new(batch.clone(), samples.clone()))])?;
    if let Some(handed_out) = evaluation.outputs.get(ANSWER_LOGITS) {
        let lengths: Vec<usize> = items.iter().map(|item| item.tokens).collect();
        let expected = real_tokens(&reference.logits()?, &lengths);
        errors.push(("logits of real tokens".to_string(), relative_error(handed_out, &expected)));
    }

    let (report, gradients) = engine.gradients(vec![MicroBatch::new(batch, samples)])?;
    for loss in [report.loss, evaluation.loss] {
        errors.push(("loss".to_string(), (loss / reference.loss()? - 1.0).abs()));
    }
    assert_eq!(gradients.len(), engine.plan().records().len());
    let names = BertNames::new::<H>(&folder)?;
    let stored = |path: &str| reference.gradient(&names.source(path).expect("every parameter stands in the folder"));
    for (name, gradient) in gradients {
        let expected = stored(&name)?;
        let error = match measured_beside::<H>(&config, &name) {
            Some(other) => error_on_scale(&gradient, &expected, &stored(&other)?),
            None => relative_error(&gradient, &expected),
        };
        errors.push((name, error));
    }
    Ok(errors)
}

fn rows(data: TensorData, range: core::ops::Range<usize>) -> TensorData {
    Tensor::<3>::from_data(data, &Default::default()).slice([range]).into_data()
}

/// `[rows, length, 2]` to `[tokens, 2]`, without padding.
fn real_tokens(logits: &TensorData, lengths: &[usize]) -> TensorData {
    let (values, length) = (logits.iter::<f32>().collect::<Vec<_>>(), logits.shape()[1]);
    let of_row = |(row, real): (&[f32], &usize)| row[..2 * real].to_vec();
    let kept: Vec<f32> = values.chunks(2 * length).zip(lengths).flat_map(of_row).collect();
    TensorData::new(kept, [lengths.iter().sum::<usize>(), 2])
}

fn check<H: BertHead>(name: &str, (data, tensor, stages): Mesh, init: fn(&BertConfig, &Place) -> Bert<H>, head: usize) {
    let mut config = config(data, tensor, 1);
    config.dist.pipeline_parallel_size = stages;
    let all = launch(&config, |epl| errors(&epl, name, init)).unwrap_or_else(|error| panic!("{error}"));
    let mesh = (data, tensor, stages);
    let mut worst = ("", 0.0);
    for (rank, errors) in all.iter().enumerate() {
        let gradients = errors.iter().filter(|(what, _)| what.contains('.')).count();
        assert_eq!(gradients, GRADIENTS + head, "{name} on mesh {mesh:?}, rank {rank}: {errors:?}");
        assert_eq!(errors.iter().any(|(what, _)| what.starts_with("logits")), stages == 1 || name == "bert-qa");
        for (what, error) in errors {
            assert!(*error <= TOLERANCE, "{name} on mesh {mesh:?}, rank {rank}: error {error:e} in {what}");
            worst = if *error > worst.1 { (what, *error) } else { worst };
        }
    }
    println!("{name} on mesh {mesh:?}: largest error {:.1e}, in {}", worst.1, worst.0);
}

fn question_answering(mesh: Mesh) {
    check::<QuestionAnswering>("bert-qa", mesh, BertConfig::init_question_answering, 2);
}

fn masked_language(mesh: Mesh) {
    check::<MaskedLanguage>("bert-mlm", mesh, BertConfig::init_masked_language, 5);
    check::<MaskedLanguage>("roberta", mesh, BertConfig::init_masked_language, 5);
}

fn pretraining(mesh: Mesh) {
    check::<Pretraining>("bert-pretraining", mesh, BertConfig::init_pretraining, 9);
}

#[test]
fn on_one_rank() {
    question_answering((1, 1, 1));
    masked_language((1, 1, 1));
    pretraining((1, 1, 1));
}

#[test]
fn split_over_the_tensor_axis() {
    question_answering((1, 2, 1));
    masked_language((1, 2, 1));
    pretraining((1, 2, 1));
}

#[test]
fn over_two_stages() {
    question_answering((1, 1, 2));
    masked_language((1, 1, 2));
    pretraining((1, 1, 2));
}

#[test]
fn over_two_stages_and_two_replicas() {
    question_answering((2, 1, 2));
    masked_language((2, 1, 2));
    pretraining((2, 1, 2));
}

#[test]
fn over_two_stages_and_the_tensor_axis() {
    question_answering((1, 2, 2));
    masked_language((1, 2, 2));
    pretraining((1, 2, 2));
}

#[test]
fn the_shape_is_that_of_the_folder() {
    let (_, config) = bert::open(folder("bert-qa")).expect("the fixture is there");
    let expected = BertConfig::new(96).with_d_model(32).with_d_ff(64).with_heads(4).with_layers(2).with_positions(40);
    assert_eq!(config, expected.with_dropout(0.0).with_attention_dropout(0.0));
    let error = bert::open(folder("t5")).expect_err("it is a T5").to_string();
    assert!(error.contains("is a `t5`, which is not supported; supported are bert and roberta"), "{error}");
    let (_, roberta) = bert::open(folder("roberta")).expect("the fixture is there");
    assert_eq!((roberta.architecture, roberta.longest_row(), roberta.pad), (BertArchitecture::Roberta, 38, 1));
}

/// Of each head all parts are there, or none.
#[test]
fn half_a_head_is_refused() {
    for (name, lost) in [
        ("bert-mlm", "cls.predictions.bias"),
        ("roberta", "lm_head.dense.weight"),
        ("roberta", "lm_head.layer_norm.bias"),
    ] {
        let without = tempfile::TempDir::new().expect("a folder");
        std::fs::copy(folder(name).join("config.json"), without.path().join("config.json")).expect("it is there");
        let bytes = std::fs::read(folder(name).join("model.safetensors")).expect("it is there");
        let stored = SafeTensors::deserialize(&bytes).expect("it is one");
        let left: Vec<_> = stored.tensors().into_iter().filter(|(name, _)| name != lost).collect();
        serialize_to_file(left, None, &without.path().join("model.safetensors")).expect("it can be written");
        let loaded = launch(&config(1, 1, 1), |epl| {
            let (folder, config) = bert::open(without.path())?;
            let built = epl.build(|at| config.init_masked_language(at))?;
            built.try_map(|model, plan| Ok(bert::load(model, plan.records(), &folder)?)).map(|_| ())
        });
        let error = loaded.expect_err("a part is missing").to_string();
        assert!(error.contains(&format!("1 missing: {lost}")), "{name}: {error}");
    }
}

/// The logits of the next sentence stand beside those of the tokens.
#[test]
fn the_logits_of_sentences_are_those_stored() {
    let ranks = launch(&config(1, 2, 1), |epl| {
        let (folder, config) = bert::open(folder("bert-pretraining"))?;
        let reference = read_io(folder.path())?;
        let built = epl.build(|at| config.init_pretraining(at))?;
        let built = built.try_map(|model, plan| Ok(bert::load(model, plan.records(), &folder)?))?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
        let items = bert::reference_items::<Pretraining>(&reference)?;
        let batch = BertBatcher::<Pretraining>::new(&config).batch(items, engine.device());
        let carry = epl_comm::catch(|| engine.inference().map(|model| model.forward_all(&batch)))??;
        let found = carry.sentence.expect("the head makes them").squeeze_dim::<2>(1).into_data();
        Ok(relative_error(&found, &reference.output("seq_relationship_logits")?))
    });
    for error in ranks.unwrap_or_else(|error| panic!("{error}")) {
        assert!(error <= TOLERANCE, "{error:e}");
    }
}

#[test]
fn a_head_that_the_folder_lacks_keeps_its_first_values() {
    let drawn_and_read = |read: bool| {
        let (folder, shape) = bert::open(folder("bert-mlm")).expect("the fixture is there");
        let parameters = launch(&config(1, 1, 1), |epl| {
            let built = epl.build(|at| shape.init_classification(at))?;
            let load = |model, plan: &epl_core::Plan| match read {
                true => Ok(bert::load(model, plan.records(), &folder)?),
                false => Ok(model),
            };
            Engine::new(built.try_map(load)?, &SgdConfig::new(), EngineSettings::default())?.parameters()
        });
        parameters.expect("the rest fits").remove(0)
    };
    let (read, drawn) = (drawn_and_read(true), drawn_and_read(false));
    for name in ["head.pooler.weight", "head.classifier.weight", "head.classifier.bias"] {
        assert_eq!(read[name], drawn[name], "{name}");
    }
    for name in ["embeddings.words.weight", "layers.1.feed_forward.dense.output.weight"] {
        assert_ne!(read[name], drawn[name], "{name}");
    }
}
