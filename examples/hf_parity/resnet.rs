//! ResNet under a layout, its classes split over the tensor axis.

use std::ops::Range;
use std::path::Path;

use burn::optim::SgdConfig;
use epl::models::huggingface::read_io;
use epl::models::resnet::{self, ResNet, ResNetNames};
use epl::models::vision::ImageBatch;
use epl::{Engine, EngineSettings, Plan};

use crate::parity::{Errors, Failure, Layout, compare, compute, write_io};

pub fn check(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = resnet::open(folder)?;
    let reference = read_io(folder)?;
    // What is stored was computed in evaluation mode, gradients too.
    let model = model.with_fixed_statistics(true);
    let ranks = epl::launch(&layout.config()?, |epl| {
        let load = |model, plan: &Plan| Ok(resnet::load(model, plan.records(), &weights)?);
        let built = epl.build(|place| model.init_split(place))?.try_map(load)?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let whole = resnet::reference_batch(&reference, engine.device())?;
        let batch = |rows: Range<usize>| {
            ImageBatch::new(whole.pixels.clone().slice([rows.clone()]), whole.host_labels[rows].to_vec())
        };
        let forward = |model: &ResNet<_>, batch: &ImageBatch| model.forward(batch.pixels.clone().inner());
        compute(engine, whole.host_labels.len(), batch, forward, export.is_some())
    })?;
    let computed = ranks.first().ok_or("no rank ran")?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        resnet::export(&model, &trained.parameters, to)?;
        write_io(folder, to, &trained.logits)?;
    }
    compare(computed, &reference, &ResNetNames, |_| None)
}
