//! BERT under a layout, with the head that its folder names.

use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use epl::comm::shard_range;
use epl::models::BertConfig;
use epl::models::bert::{self, Bert, BertBatcher, BertHead, BertItem, BertNames, measured_beside};
use epl::models::huggingface::{Folder, read_io};
use epl::{Engine, EngineSettings, Epl, MicroBatch, Place, Plan};

use crate::parity::{Computed, Errors, Failure, Layout, compare};

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
        compute(&epl, &engine, model, &items)
    })?;
    compare(computed, &reference, &BertNames::new(weights), |path| measured_beside::<H>(model, path))
}

fn compute<H: BertHead>(
    epl: &Epl,
    engine: &Engine<Bert<H>>,
    model: &BertConfig,
    items: &[BertItem<H::Label>],
) -> epl::Result<Computed> {
    let data = epl.context().data().clone();
    let rows = shard_range(items.len(), data.size(), data.rank());
    // A replica without a row runs a stand-in, of which no logits are taken.
    let mine = if rows.is_empty() { items[..1].to_vec() } else { items[rows.clone()].to_vec() };
    let batch = BertBatcher::<H>::new(model).batch(mine, engine.device());
    let samples: Vec<u64> = rows.clone().map(|row| row as u64).collect();
    let micro_batch = match rows.is_empty() {
        true => MicroBatch::stand_in(batch.clone(), [0]),
        false => MicroBatch::new(batch.clone(), samples),
    };
    let logits =
        epl::comm::catch(|| engine.inference().map(|model| model.forward(&batch).inner()))??.slice([0..rows.len()]);
    let sizes: Vec<usize> = (0..data.size()).map(|rank| shard_range(items.len(), data.size(), rank).len()).collect();
    let logits = data.all_gather_uneven(logits, 0, &sizes)?.into_data();
    let (report, gradients) = engine.gradients(vec![micro_batch])?;
    Ok(Computed { logits, loss: report.loss, gradients })
}
