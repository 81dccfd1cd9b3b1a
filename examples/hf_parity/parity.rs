//! Loads a folder under a layout and compares what the engine computes with what is stored.

use std::collections::BTreeMap;
use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::TensorData;
use epl::comm::shard_range;
use epl::config::Config;
use epl::models::huggingface::{Names, Reference, read_io};
use epl::models::t5::{self, T5Batcher, T5Config, T5Names};
use epl::models::text::TokenPair;
use epl::testing::relative_error;
use epl::{Engine, EngineSettings, Epl, Error, MicroBatch};

/// The sizes of the mesh.
pub struct Layout {
    pub data: usize,
    pub tensor: usize,
    pub expert: usize,
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
struct Computed {
    logits: TensorData,
    loss: f64,
    gradients: BTreeMap<String, TensorData>,
}

type Failure = Box<dyn std::error::Error>;

/// Compares the model in a folder with its stored outputs.
pub fn check(folder: &Path, layout: &Layout) -> Result<Errors, Failure> {
    let (weights, model) = t5::open(folder)?;
    let reference = read_io(folder)?;
    let names = T5Names::new(&weights)?;
    let pairs = t5::reference_pairs(&reference)?;
    let config = Config::new()
        .with("dist.data_parallel_size", layout.data)?
        .with("dist.tensor_parallel_size", layout.tensor)?
        .with("dist.expert_parallel_size", layout.expert)?;
    config.validate()?;
    let computed = epl::launch(&config, |epl| {
        let load = |model, plan: &epl::Plan| {
            t5::load(model, &plan.records, &weights).map_err(|error| Error::invalid(error.to_string()))
        };
        compute(&epl, epl.build(|place| model.init(place))?.try_map(load)?, &model, &pairs)
    })?;
    let computed = computed.into_iter().next().ok_or("no rank ran")?;
    compare(&computed, &reference, &names)
}

fn compute(epl: &Epl, built: epl::Built<t5::T5>, model: &T5Config, pairs: &[TokenPair]) -> epl::Result<Computed> {
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
    let data = epl.context().data().clone();
    let rows = shard_range(pairs.len(), data.size(), data.rank());
    // A replica without a row runs a stand-in, of which no logits are taken.
    let mine = if rows.is_empty() { pairs[..1].to_vec() } else { pairs[rows.clone()].to_vec() };
    let batch = T5Batcher::new(model).batch(mine, engine.device());
    let samples: Vec<u64> = rows.clone().map(|row| row as u64).collect();
    let micro_batch = match rows.is_empty() {
        true => MicroBatch::stand_in(batch.clone(), [0]),
        false => MicroBatch::new(batch.clone(), samples),
    };
    let logits = epl::comm::catch(|| engine.inference().forward(&batch).inner())?.slice([0..rows.len()]);
    let sizes: Vec<usize> = (0..data.size()).map(|rank| shard_range(pairs.len(), data.size(), rank).len()).collect();
    let logits = data.all_gather_uneven(logits, 0, &sizes)?.into_data();
    let (report, gradients) = engine.gradients(vec![micro_batch])?;
    Ok(Computed { logits, loss: report.loss, gradients })
}

fn compare(computed: &Computed, reference: &Reference, names: &T5Names) -> Result<Errors, Failure> {
    let expected = reference.loss()?;
    let mut worst = (String::new(), 0.0_f64);
    for (path, gradient) in &computed.gradients {
        let source = names.source(path).ok_or_else(|| format!("`{path}` has no name in the folder"))?;
        let error = relative_error(gradient, &reference.gradient(&source)?);
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
