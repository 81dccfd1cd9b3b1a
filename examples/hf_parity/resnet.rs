//! ResNet under a layout, its classes split over the tensor axis.

use std::ops::Range;
use std::path::Path;

use burn::optim::SgdConfig;
use epl::models::huggingface::read_io;
use epl::models::resnet::{self, ResNetNames};
use epl::models::vision::ImageBatch;
use epl::{Engine, EngineSettings, Plan};

use crate::parity::{Errors, Failure, Layout, compare, compute};

pub fn check(folder: &Path, layout: &Layout) -> Result<Errors, Failure> {
    let (weights, model) = resnet::open(folder)?;
    let reference = read_io(folder)?;
    // What is stored was computed in evaluation mode, gradients too.
    let model = model.with_fixed_statistics(true);
    let computed = epl::launch(&layout.config()?, |epl| {
        let load = |model, plan: &Plan| Ok(resnet::load(model, &plan.records, &weights)?);
        let built = epl.build(|place| model.init_split(place))?.try_map(load)?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let whole = resnet::reference_batch(&reference, engine.device())?;
        let batch = |rows: Range<usize>| {
            ImageBatch::new(whole.pixels.clone().slice([rows.clone()]), whole.host_labels[rows].to_vec())
        };
        compute(&engine, whole.host_labels.len(), batch, |model, batch| model.forward(batch.pixels.clone().inner()))
    })?;
    compare(computed, &reference, &ResNetNames, |_| None)
}
