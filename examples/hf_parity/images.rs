//! Models of images under a layout, their classes split over the tensor axis.

use std::ops::Range;
use std::path::Path;

use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use epl::data::Rows;
use epl::models::huggingface::{Names, Reference, read_io};
use epl::models::mae::{self, MaeBatch, MaeNames};
use epl::models::resmlp::{self, ResMlp, ResMlpNames};
use epl::models::resnet::{self, ResNet, ResNetNames};
use epl::models::swin::{self, Swin, SwinNames};
use epl::models::vision::{ImageBatch, reference_batch};
use epl::models::vit::{self, ViT, ViTNames};
use epl::{Engine, EngineSettings, Epl, LaidOutModel, Model, ModelOutput, Plan};

use crate::parity::{Computed, Errors, Failure, Layout, compare, compute, write_io};

pub fn resnet(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = resnet::open(folder)?;
    // What is stored was computed in evaluation mode, gradients too.
    let model = model.with_fixed_statistics(true);
    let build = |epl: &Epl| {
        let load = |model, plan: &Plan| Ok(resnet::load(model, plan.records(), &weights)?);
        epl.build(|place| model.init_split(place))?.try_map(load)
    };
    let computed = run((folder, layout), export.is_some(), build, classified, ResNet::logits_of)?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        resnet::export(&model, &trained.parameters, to)?;
    }
    compared(folder, export, &computed, &ResNetNames, |_| None)
}

pub fn vit(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = vit::open(folder)?;
    let build = |epl: &Epl| {
        let load = |model, plan: &Plan| Ok(vit::load(model, plan.records(), &weights)?);
        epl.build(|place| model.init_split(place))?.try_map(load)
    };
    let computed = run((folder, layout), export.is_some(), build, classified, ViT::logits_of)?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        vit::export(&model, &trained.parameters, to)?;
    }
    compared(folder, export, &computed, &ViTNames::new(&weights), vit::measured_beside)
}

pub fn swin(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = swin::open(folder)?;
    let build = |epl: &Epl| {
        let load = |model, plan: &Plan| Ok(swin::load(model, plan.records(), &weights)?);
        epl.build(|place| model.init_split(place))?.try_map(load)
    };
    let computed = run((folder, layout), export.is_some(), build, classified, Swin::logits_of)?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        swin::export(&model, &trained.parameters, to)?;
    }
    compared(folder, export, &computed, &SwinNames::new(model.version, &weights), vit::measured_beside)
}

pub fn resmlp(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = resmlp::open(folder)?;
    let build = |epl: &Epl| {
        let load = |model, plan: &Plan| Ok(resmlp::load(model, plan.records(), &weights)?);
        epl.build(|place| model.init_split(place))?.try_map(load)
    };
    let computed = run((folder, layout), export.is_some(), build, classified, ResMlp::logits_of)?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        resmlp::export(&model, &trained.parameters, to)?;
    }
    compared(folder, export, &computed, &ResMlpNames::new(&weights), |_| None)
}

pub fn mae(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    let (weights, model) = mae::open(folder)?;
    let build = |epl: &Epl| {
        let load = |model, plan: &Plan| Ok(mae::load(model, plan.records(), &weights)?);
        epl.build(|place| model.init(place))?.try_map(load)
    };
    let computed = run((folder, layout), export.is_some(), build, noisy, |_, pixels| pixels)?;
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        mae::export(&model, &trained.parameters, to)?;
    }
    compared(folder, export, &computed, &MaeNames::new(&weights), vit::measured_beside)
}

/// Some of the stored images, with their classes.
fn classified(reference: &Reference, rows: Range<usize>, device: &Device) -> epl::Result<ImageBatch> {
    let whole = reference_batch(reference, device)?;
    Ok(ImageBatch::new(whole.pixels.slice([rows.clone()]), whole.host_labels[rows].to_vec()))
}

/// Some of the stored images, with the numbers that say which patches stay.
fn noisy(reference: &Reference, rows: Range<usize>, device: &Device) -> epl::Result<MaeBatch> {
    Ok(mae::reference_batch(reference, device)?.narrow(rows))
}

/// What the last stage has of the stored images.
fn run<M: Model, const D: usize>(
    (folder, layout): (&Path, &Layout),
    is_trained: bool,
    build: impl Fn(&Epl) -> epl::Result<LaidOutModel<M>> + Sync,
    batch: fn(&Reference, Range<usize>, &Device) -> epl::Result<M::Batch>,
    logits: impl Fn(&M, ModelOutput<M>) -> Tensor<D> + Sync,
) -> Result<Computed, Failure> {
    let reference = read_io(folder)?;
    let count = reference.input("pixel_values")?.shape()[0];
    let mut ranks = epl::launch(&layout.config()?, |epl| {
        let engine = Engine::new(build(&epl)?, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        compute(engine, count, |rows, device| batch(&reference, rows, device), &logits, is_trained)
    })?;
    Ok(ranks.pop().ok_or("no rank ran")?)
}

fn compared(
    folder: &Path,
    export: Option<&Path>,
    computed: &Computed,
    names: &impl Names,
    beside: impl Fn(&str) -> Option<String>,
) -> Result<Errors, Failure> {
    if let (Some(to), Some(trained)) = (export, &computed.trained) {
        write_io(folder, to, trained.logits.as_ref())?;
    }
    compare(computed, &read_io(folder)?, names, beside)
}
