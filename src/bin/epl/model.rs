//! A known model as a program of its own, of which `epl plan --model` makes the plan.

use std::error::Error;
use std::path::PathBuf;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::optim::AdamWConfig;
use clap::Args;
use epl::comm::CountingAllocator;
use epl::data::{ShuffledSampler, TrainData};
use epl::models::huggingface::Folder;
use epl::models::t5::{T5Batcher, T5Config};
use epl::models::text::TokenPair;
use epl::models::{DecoderBatcher, DecoderConfig, DecoderItem};
use epl::prelude::*;

/// So that it is known what segments store.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[derive(Args)]
pub(crate) struct KnownModel {
    /// A folder that `transformers` saved, of a decoder or a T5, or a name such as llama3-8b or hf_t5_base.
    pub name: PathBuf,
    /// Rows of a step, over all replicas.
    #[arg(long, value_name = "N")]
    pub rows: usize,
    /// Tokens of a row; of a T5, of its source and of its target.
    #[arg(long, value_name = "N")]
    pub tokens: usize,
}

impl KnownModel {
    /// Builds its engine, with AdamW, under the options of the environment.
    pub(crate) fn build(&self) -> Result<(), Box<dyn Error>> {
        if self.name.is_dir() {
            let folder = Folder::open(&self.name)?;
            return match folder.model_type()? {
                "t5" | "switch_transformers" => self.t5(&T5Config::from_huggingface(&folder)?),
                _ => self.decoder(&DecoderConfig::from_huggingface(&folder)?),
            };
        }
        let name = self.name.to_string_lossy();
        if let Ok(shape) = T5Config::preset(&name) {
            return self.t5(&shape);
        }
        let known = [DecoderConfig::presets(), T5Config::presets()].concat().join(", ");
        let unknown = |_| format!("{name} is no folder, and no model of that name is known; there are {known}");
        self.decoder(&DecoderConfig::preset(&name).map_err(unknown)?)
    }

    fn decoder(&self, shape: &DecoderConfig) -> Result<(), Box<dyn Error>> {
        check_vocabulary(shape.vocab)?;
        let row = |row: usize| DecoderItem::new(sentence(row, self.tokens, shape.vocab));
        build((0..self.rows).map(row).collect(), &DecoderBatcher::new(shape), |at| shape.init(at))
    }

    fn t5(&self, shape: &T5Config) -> Result<(), Box<dyn Error>> {
        check_vocabulary(shape.vocab)?;
        let pair = |row: usize| {
            let [source, target] = [2 * row, 2 * row + 1].map(|row| sentence(row, self.tokens, shape.vocab));
            TokenPair { source, target }
        };
        build((0..self.rows).map(pair).collect(), &T5Batcher::new(shape), |at| shape.init(at))
    }
}

/// The least vocabulary that a row can be made of.
const LEAST_VOCABULARY: usize = 3;

fn check_vocabulary(vocabulary: usize) -> Result<(), String> {
    if vocabulary >= LEAST_VOCABULARY {
        return Ok(());
    }
    Err(format!(
        "the model's vocabulary has {vocabulary} tokens, and a plan is made with at least {LEAST_VOCABULARY}, of which the first two \
         have a meaning of their own; set its `vocab_size`"
    ))
}

/// Tokens of a vocabulary, of which the first two have a meaning of their own.
fn sentence(row: usize, tokens: usize, vocabulary: usize) -> Vec<i64> {
    (row * tokens..(row + 1) * tokens).map(|at| 2 + (at * 7919 % (vocabulary - 2)) as i64).collect()
}

fn build<M, I>(
    items: Vec<I>,
    batcher: &(impl Batcher<I, M::Batch> + Clone + 'static),
    model: impl Fn(&Place) -> M + Sync,
) -> Result<(), Box<dyn Error>>
where
    M: Model<Batch: 'static>,
    I: Clone + Send + Sync + 'static,
{
    let config = Config::load(None, [""; 0])?;
    let built = epl::launch(&config, |epl| {
        let sampler = ShuffledSampler::new(items.len(), items.len(), config.train.seed)?;
        let data = TrainData::new(InMemDataset::new(items.clone()), batcher.clone(), sampler)?;
        let optimizer = AdamWConfig::new();
        let (epl, _) = epl.auto_parallel(|at| model(at), &optimizer, &data)?;
        Engine::build(&epl, |at| model(at), &optimizer).map(drop)
    });
    match built {
        Ok(_) | Err(epl::Error::PlanOnly) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_without_a_token_to_draw_is_refused() {
        for vocabulary in 0..LEAST_VOCABULARY {
            let error = check_vocabulary(vocabulary).unwrap_err();
            assert!(error.contains(&format!("has {vocabulary} tokens")), "{error}");
        }
        check_vocabulary(LEAST_VOCABULARY).unwrap();
        assert_eq!(sentence(1, 2, LEAST_VOCABULARY), [2, 2]);
    }
}
