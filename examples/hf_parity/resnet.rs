//! ResNet under a layout, its classes split over the tensor axis.

use std::ops::Range;
use std::path::Path;

use burn::optim::SgdConfig;
use burn::tensor::Device;
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
        let count = resnet::reference_batch(&reference, engine.device())?.host_labels.len();
        let batch = |rows: Range<usize>, device: &Device| {
            let whole = resnet::reference_batch(&reference, device)?;
            Ok(ImageBatch::new(whole.pixels.slice([rows.clone()]), whole.host_labels[rows].to_vec()))
        };
        compute(engine, count, batch, ResNet::logits_of, export.is_some())
    })?;
    // Of the last stage.
    let computed = ranks.last().ok_or("no rank ran")?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        resnet::export(&model, &trained.parameters, to)?;
        write_io(folder, to, trained.logits.as_ref())?;
    }
    compare(computed, &reference, &ResNetNames, |_| None)
}
