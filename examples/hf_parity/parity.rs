//! Compares what the engine computes with what is stored, whatever the architecture.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use epl::comm::shard_range;
use epl::config::{Config, ConfigError};
use epl::models::decoder::Architecture;
use epl::models::huggingface::{Folder, Names, Reference, TensorFile};
use epl::tensors::save_safetensors;
use epl::testing::{error_on_scale, relative_error};
use epl::{Engine, MicroBatch, Model, ModelOutput};

use crate::{bert, decoder, images, t5};

/// The rate of the step before an export.
const RATE: f64 = 0.1;

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
    /// See [`Computed::flops`].
    pub flops: Option<f64>,
}

/// What one rank computed, the same on all ranks that have it.
pub struct Computed {
    /// On the last stage.
    pub logits: Option<TensorData>,
    pub loss: f64,
    pub gradients: BTreeMap<String, TensorData>,
    /// Floating-point operations of forward and backward, of all rows.
    pub flops: Option<f64>,
    /// What it has after a step more, if that was asked for.
    pub trained: Option<Trained>,
}

/// What a model is after a step.
pub struct Trained {
    pub parameters: BTreeMap<String, TensorData>,
    /// On the last stage.
    pub logits: Option<TensorData>,
}

pub type Failure = Box<dyn std::error::Error>;

/// Compares the model in a folder with its stored outputs; then makes a step and exports it to another one, if given.
pub fn check(folder: &Path, layout: &Layout, export: Option<&Path>) -> Result<Errors, Failure> {
    match Folder::open(folder)?.model_type()? {
        known if Architecture::named(known).is_some() => decoder::check(folder, layout, export),
        "bert" | "roberta" => bert::check(folder, layout, export),
        "resnet" => images::resnet(folder, layout, export),
        "vit" => images::vit(folder, layout, export),
        "swin" | "swinv2" => images::swin(folder, layout, export),
        "vit_mae" => images::mae(folder, layout, export),
        // timm says which size, too.
        name if name.starts_with("resmlp_") => images::resmlp(folder, layout, export),
        _ => t5::check(folder, layout, export),
    }
}

/// Runs so many rows, each replica its share; after a step once more, if the model is to be `trained`. `batch` makes a
/// batch of some rows on a device, `logits_of` the logits from what the last segment returned.
pub fn compute<M: Model, const D: usize>(
    mut engine: Engine<M>,
    rows: usize,
    batch: impl Fn(Range<usize>, &Device) -> epl::Result<M::Batch>,
    logits_of: impl Fn(&M, ModelOutput<M>) -> Tensor<D>,
    trained: bool,
) -> epl::Result<Computed> {
    let (data, device) = (engine.context().data().clone(), engine.device().clone());
    let mine = shard_range(rows, data.size(), data.rank());
    // A replica without a row runs a stand-in, of which no logits are taken.
    let micro_batch = |device: &Device| -> epl::Result<_> {
        Ok(match mine.is_empty() {
            true => MicroBatch::stand_in(batch(0..1, device)?, [0]),
            false => {
                MicroBatch::new(batch(mine.clone(), device)?, mine.clone().map(|row| row as u64).collect::<Vec<_>>())
            }
        })
    };
    let sizes: Vec<usize> = (0..data.size()).map(|rank| shard_range(rows, data.size(), rank).len()).collect();
    let logits = |engine: &Engine<M>| -> epl::Result<Option<TensorData>> {
        let mut own = None;
        engine.forward([micro_batch(&device.clone().without_autodiff())], |model, carry, _| {
            own = Some(logits_of(model, carry).slice([0..mine.len()]));
            Ok(())
        })?;
        own.map(|own| Ok(data.all_gather_uneven(own, 0, &sizes)?.into_data())).transpose()
    };
    let before = logits(&engine)?;
    let (report, gradients) = engine.gradients(vec![micro_batch(&device)?])?;
    let trained = match trained {
        false => None,
        true => {
            engine.step(vec![micro_batch(&device)?], RATE)?;
            Some(Trained { parameters: engine.parameters()?, logits: logits(&engine)? })
        }
    };
    Ok(Computed { logits: before, loss: report.loss, gradients, flops: report.flops, trained })
}

/// Writes inputs and logits beside an exported model, as `io.safetensors`, for `tools/check_export.py`.
pub fn write_io(from: &Path, to: &Path, logits: Option<&TensorData>) -> Result<(), Failure> {
    let stored = TensorFile::open(from.join("io.safetensors"))?;
    let mut tensors: BTreeMap<String, TensorData> = BTreeMap::new();
    for name in stored.names().into_iter().filter(|name| name.starts_with("input.")) {
        tensors.insert(name.clone(), stored.read(&name)?);
    }
    tensors.extend(logits.map(|logits| ("logits".to_string(), logits.clone())));
    Ok(save_safetensors(&tensors, to.join("io.safetensors"))?)
}

/// Compares what a rank computed with what is stored. A gradient that is zero up to rounding is measured by the
/// largest element of another one, which `beside` names.
pub fn compare(
    computed: &Computed,
    reference: &Reference,
    names: &impl Names,
    beside: impl Fn(&str) -> Option<String>,
) -> Result<Errors, Failure> {
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
        logits: relative_error(computed.logits.as_ref().ok_or("no rank has the logits")?, &reference.logits()?),
        loss: (computed.loss - expected).abs() / expected.abs(),
        gradient: worst,
        compared: computed.gradients.len(),
        flops: computed.flops,
    })
}
