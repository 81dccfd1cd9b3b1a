//! T5 under a layout.

use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use epl::comm::shard_range;
use epl::models::huggingface::read_io;
use epl::models::t5::{self, T5, T5Batcher, T5Config, T5Names};
use epl::models::text::TokenPair;
use epl::{Built, Engine, EngineSettings, Epl, MicroBatch, Plan};

use crate::parity::{Computed, Errors, Failure, Layout, compare};

pub fn check(folder: &Path, layout: &Layout) -> Result<Errors, Failure> {
    let (weights, model) = t5::open(folder)?;
    let reference = read_io(folder)?;
    let names = T5Names::new(&weights)?;
    let pairs = t5::reference_pairs(&reference)?;
    let computed = epl::launch(&layout.config()?, |epl| {
        let load = |model, plan: &Plan| Ok(t5::load(model, &plan.records, &weights)?);
        compute(&epl, epl.build(|place| model.init(place))?.try_map(load)?, &model, &pairs)
    })?;
    compare(computed, &reference, &names, |_| None)
}

fn compute(epl: &Epl, built: Built<T5>, model: &T5Config, pairs: &[TokenPair]) -> epl::Result<Computed> {
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
    let logits =
        epl::comm::catch(|| engine.inference().map(|model| model.forward(&batch).inner()))??.slice([0..rows.len()]);
    let sizes: Vec<usize> = (0..data.size()).map(|rank| shard_range(pairs.len(), data.size(), rank).len()).collect();
    let logits = data.all_gather_uneven(logits, 0, &sizes)?.into_data();
    let (report, gradients) = engine.gradients(vec![micro_batch])?;
    Ok(Computed { logits, loss: report.loss, gradients })
}
