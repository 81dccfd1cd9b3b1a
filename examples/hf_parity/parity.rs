//! Compares what the engine computes with what is stored, whatever the architecture.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use burn::tensor::{Tensor, TensorData};
use epl::comm::shard_range;
use epl::config::{Config, ConfigError};
use epl::models::huggingface::{Folder, Names, Reference};
use epl::testing::{error_on_scale, relative_error};
use epl::{Engine, MicroBatch, Segmented};

use crate::{bert, resnet, t5};

/// The sizes of the mesh.
pub struct Layout {
    pub data: usize,
    pub tensor: usize,
    pub expert: usize,
    pub stages: usize,
}

impl Layout {
    pub fn config(&self) -> Result<Config, ConfigError> {
        let config = Config::new()
            .with("dist.data_parallel_size", self.data)?
            .with("dist.tensor_parallel_size", self.tensor)?
            .with("dist.expert_parallel_size", self.expert)?
            .with("auto.auto_parallel", true)?
            .with("pipeline.num_stages", self.stages)?;
        config.validate()?;
        Ok(config)
    }
}

/// The errors of an imported model.
pub struct Errors {
    pub logits: f64,
    pub loss: f64,
    /// The parameter whose gradient has the largest error, and that error.
    pub gradient: (String, f64),
    /// How many gradients were compared.
    pub compared: usize,
}

/// What one rank computed, the same on all ranks.
pub struct Computed {
    pub logits: TensorData,
    pub loss: f64,
    pub gradients: BTreeMap<String, TensorData>,
}

pub type Failure = Box<dyn std::error::Error>;

/// Compares the model in a folder with its stored outputs.
pub fn check(folder: &Path, layout: &Layout) -> Result<Errors, Failure> {
    match Folder::open(folder)?.model_type()? {
        "bert" => bert::check(folder, layout),
        "resnet" => resnet::check(folder, layout),
        _ => t5::check(folder, layout),
    }
}

/// Runs so many rows, each replica its share. `batch` makes a batch of some of them, `forward` its logits, without a
/// graph.
pub fn compute<M: Segmented, const D: usize>(
    engine: &Engine<M>,
    rows: usize,
    batch: impl FnOnce(Range<usize>) -> M::Batch,
    forward: impl FnOnce(&M, &M::Batch) -> Tensor<D>,
) -> epl::Result<Computed> {
    let data = engine.context().data().clone();
    let mine = shard_range(rows, data.size(), data.rank());
    // A replica without a row runs a stand-in, of which no logits are taken.
    let batch = batch(if mine.is_empty() { 0..1 } else { mine.clone() });
    let logits = epl::comm::catch(|| engine.inference().map(|model| forward(&model, &batch)))??.slice([0..mine.len()]);
    let sizes: Vec<usize> = (0..data.size()).map(|rank| shard_range(rows, data.size(), rank).len()).collect();
    let logits = data.all_gather_uneven(logits, 0, &sizes)?.into_data();
    let samples: Vec<u64> = mine.clone().map(|row| row as u64).collect();
    let micro_batch = match mine.is_empty() {
        true => MicroBatch::stand_in(batch, [0]),
        false => MicroBatch::new(batch, samples),
    };
    let (report, gradients) = engine.gradients(vec![micro_batch])?;
    Ok(Computed { logits, loss: report.loss, gradients })
}

/// Compares what the first rank computed with what is stored. A gradient that is zero up to rounding is measured by the
/// largest element of another one, which `beside` names.
pub fn compare(
    ranks: Vec<Computed>,
    reference: &Reference,
    names: &impl Names,
    beside: impl Fn(&str) -> Option<String>,
) -> Result<Errors, Failure> {
    let computed = ranks.into_iter().next().ok_or("no rank ran")?;
    let expected = reference.loss()?;
    let mut worst = (String::new(), 0.0_f64);
    for (path, gradient) in &computed.gradients {
        let stored = |path: &str| -> Result<TensorData, Failure> {
            let source = names.source(path).ok_or_else(|| format!("`{path}` has no name in the folder"))?;
            Ok(reference.gradient(&source)?)
        };
        let expected = stored(path)?;
        let scale = beside(path).map(|other| stored(&other)).transpose()?;
        let error = error_on_scale(gradient, &expected, scale.as_ref().unwrap_or(&expected));
        if error >= worst.1 {
            worst = (path.clone(), error);
        }
    }
    Ok(Errors {
        logits: relative_error(&computed.logits, &reference.logits()?),
        loss: (computed.loss - expected).abs() / expected.abs(),
        gradient: worst,
        compared: computed.gradients.len(),
    })
}
