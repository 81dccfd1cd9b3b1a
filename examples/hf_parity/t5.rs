//! T5 under a layout.

use std::ops::Range;
use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::Device;
use epl::models::huggingface::read_io;
use epl::models::t5::{self, T5, T5Batcher, T5Names};
use epl::{Engine, EngineSettings, Plan};

use crate::parity::{Errors, Failure, Layout, compare, compute, write_io};

pub fn check(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = t5::open(folder)?;
    let reference = read_io(folder)?;
    let names = T5Names::new(&weights)?;
    let pairs = t5::reference_pairs(&reference)?;
    let ranks = epl::launch(&layout.config()?, |epl| {
        let load = |model, plan: &Plan| Ok(t5::load(model, plan.records(), &weights)?);
        let built = epl.build(|place| model.init(place))?.try_map(load)?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let batch =
            |rows: Range<usize>, device: &Device| Ok(T5Batcher::new(&model).batch(pairs[rows].to_vec(), device));
        compute(engine, pairs.len(), batch, T5::logits_of, export.is_some())
    })?;
    // Of the last stage.
    let computed = ranks.last().ok_or("no rank ran")?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        t5::export(&model, &trained.parameters, to)?;
        write_io(folder, to, trained.logits.as_ref())?;
    }
    compare(computed, &reference, &names, |_| None)
}
