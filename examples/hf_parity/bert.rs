//! BERT under a layout, with the head that its folder names.

use std::ops::Range;
use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::Device;
use epl::models::BertConfig;
use epl::models::bert::{
    self, Bert, BertBatcher, BertNames, ExportedHead, MaskedLanguage, Pretraining, QuestionAnswering,
    SequenceClassification, measured_beside,
};
use epl::models::huggingface::{Folder, read_io};
use epl::{Engine, EngineSettings, Plan};

use crate::parity::{Errors, Failure, Layout, compare, compute, write_io};

pub fn check(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = bert::open(folder)?;
    // What is stored was computed over all positions of a padded row.
    let model = model.with_answers_in_padding(true);
    let architectures = weights.config().texts("architectures")?;
    let class = |head: &str| architectures == [format!("{}{head}", model.architecture.class())];
    match () {
        () if class(QuestionAnswering::CLASS) => with_head::<QuestionAnswering>(&weights, &model, layout, export),
        () if class(MaskedLanguage::CLASS) => with_head::<MaskedLanguage>(&weights, &model, layout, export),
        () if class(Pretraining::CLASS) => with_head::<Pretraining>(&weights, &model, layout, export),
        () if class(SequenceClassification::CLASS) => {
            with_head::<SequenceClassification>(&weights, &model, layout, export)
        }
        () => Err(format!("{architectures:?} is not one of the heads that BERT has here").into()),
    }
}

fn with_head<H: ExportedHead>(
    weights: &Folder,
    model: &BertConfig,
    layout: &Layout,
    export: Option<&Path>,
) -> Result<Errors, Failure> {
    let reference = read_io(weights.path())?;
    let items = bert::reference_items::<H>(&reference)?;
    let ranks = epl::launch(&layout.config()?, |epl| {
        let load = |built, plan: &Plan| Ok(bert::load(built, plan.records(), weights)?);
        let built = epl.build(|place| H::model(model, place))?.try_map(load)?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let batch =
            |rows: Range<usize>, device: &Device| Ok(BertBatcher::<H>::new(model).batch(items[rows].to_vec(), device));
        compute(engine, items.len(), batch, Bert::logits_of, export.is_some())
    })?;
    // Of the last stage.
    let computed = ranks.last().ok_or("no rank ran")?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        bert::export::<H>(model, &trained.parameters, to)?;
        write_io(weights.path(), to, trained.logits.as_ref())?;
    }
    compare(computed, &reference, &BertNames::new::<H>(weights)?, |path| measured_beside::<H>(model, path))
}
