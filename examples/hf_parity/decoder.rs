//! Decoders, from GPT-2 to Gemma 2, under a layout.

use std::ops::Range;
use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::Device;
use epl::models::decoder::{self, Decoder, DecoderBatcher, DecoderNames, measured_beside};
use epl::models::huggingface::read_io;
use epl::{Engine, EngineSettings, Plan};

use crate::parity::{Errors, Failure, Layout, compare, compute, write_io};

pub fn check(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = decoder::open(folder)?;
    let reference = read_io(folder)?;
    let items = decoder::reference_items(&reference)?;
    let ranks = epl::launch(&layout.config()?, |epl| {
        let load = |built, plan: &Plan| Ok(decoder::load(built, plan.records(), &weights)?);
        let built = epl.build(|place| model.init(place))?.try_map(load)?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let batch =
            |rows: Range<usize>, device: &Device| Ok(DecoderBatcher::new(&model).batch(items[rows].to_vec(), device));
        compute(engine, items.len(), batch, Decoder::logits_of, export.is_some())
    })?;
    // Of the last stage.
    let computed = ranks.last().ok_or("no rank ran")?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        decoder::export(&model, &trained.parameters, to)?;
        write_io(folder, to, trained.logits.as_ref())?;
    }
    compare(computed, &reference, &DecoderNames::new(&weights, &model)?, |path| measured_beside(&model, path))
}
