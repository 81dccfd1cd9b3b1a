//! BERT under a layout, with the head that its folder names.

use std::ops::Range;
use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use epl::models::BertConfig;
use epl::models::bert::{self, Bert, BertBatcher, BertHead, BertNames, measured_beside};
use epl::models::huggingface::{Folder, read_io};
use epl::{Engine, EngineSettings, Place, Plan};

use crate::parity::{Errors, Failure, Layout, compare, compute};

pub fn check(folder: &Path, layout: &Layout) -> Result<Errors, Failure> {
    let (weights, model) = bert::open(folder)?;
    // What is stored was computed over all positions of a padded row.
    let model = model.with_answers_in_padding(true);
    match weights.config().texts("architectures")?[..] {
        ["BertForQuestionAnswering"] => with_head(&weights, &model, layout, BertConfig::init_question_answering),
        ["BertForMaskedLM"] => with_head(&weights, &model, layout, BertConfig::init_masked_language),
        ["BertForSequenceClassification"] => with_head(&weights, &model, layout, BertConfig::init_classification),
        ref others => Err(format!("{others:?} is not one of the heads that BERT has here").into()),
    }
}

fn with_head<H: BertHead>(
    weights: &Folder,
    model: &BertConfig,
    layout: &Layout,
    init: fn(&BertConfig, &Place) -> Bert<H>,
) -> Result<Errors, Failure> {
    let reference = read_io(weights.path())?;
    let items = bert::reference_items::<H>(&reference)?;
    let computed = epl::launch(&layout.config()?, |epl| {
        let load = |built, plan: &Plan| Ok(bert::load(built, &plan.records, weights)?);
        let built = epl.build(|place| init(model, place))?.try_map(load)?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let batch = |rows: Range<usize>| BertBatcher::<H>::new(model).batch(items[rows].to_vec(), engine.device());
        compute(&engine, items.len(), batch, |model, batch| model.forward(batch).inner())
    })?;
    compare(computed, &reference, &BertNames::new(weights), |path| measured_beside::<H>(model, path))
}
