//! ResNet under a layout, its classes split over the tensor axis.

use std::path::Path;

use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl::comm::shard_range;
use epl::models::huggingface::{Reference, read_io};
use epl::models::resnet::{self, ClassLayer, ResNet, ResNetNames};
use epl::models::vision::ImageBatch;
use epl::{Built, Engine, EngineSettings, Epl, MicroBatch, Plan};

use crate::parity::{Computed, Errors, Failure, Layout, compare};

pub fn check(folder: &Path, layout: &Layout) -> Result<Errors, Failure> {
    let (weights, model) = resnet::open(folder)?;
    let reference = read_io(folder)?;
    // What is stored was computed in evaluation mode, gradients too.
    let model = model.with_fixed_statistics(true);
    let computed = epl::launch(&layout.config()?, |epl| {
        let load = |model, plan: &Plan| Ok(resnet::load(model, &plan.records, &weights)?);
        compute(&epl, epl.build(|place| model.init_split(place))?.try_map(load)?, &reference)
    })?;
    compare(computed, &reference, &ResNetNames, |_| None)
}

fn compute<C: ClassLayer>(epl: &Epl, built: Built<ResNet<C>>, reference: &Reference) -> epl::Result<Computed> {
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
    let whole = resnet::reference_batch(reference, engine.device())?;
    let (data, images) = (epl.context().data().clone(), whole.host_labels.len());
    let rows = shard_range(images, data.size(), data.rank());
    // A replica without a row runs a stand-in, of which no logits are taken.
    let mine = if rows.is_empty() { 0..1 } else { rows.clone() };
    let take = |of: Tensor<4>| of.slice([mine.clone()]);
    let batch = ImageBatch::new(take(whole.pixels), whole.host_labels[mine.clone()].to_vec());
    let pixels = batch.pixels.clone().inner();
    let logits = epl::comm::catch(|| engine.inference().map(|model| model.forward(pixels)))??.slice([0..rows.len()]);
    let sizes: Vec<usize> = (0..data.size()).map(|rank| shard_range(images, data.size(), rank).len()).collect();
    let logits = data.all_gather_uneven(logits, 0, &sizes)?.into_data();
    let samples: Vec<u64> = rows.clone().map(|row| row as u64).collect();
    let micro_batch = match rows.is_empty() {
        true => MicroBatch::stand_in(batch, [0]),
        false => MicroBatch::new(batch, samples),
    };
    let (report, gradients) = engine.gradients(vec![micro_batch])?;
    Ok(Computed { logits, loss: report.loss, gradients })
}
