//! What every rank does: build, train, write.

use std::process::ExitCode;

use burn::data::dataset::Dataset;
use burn::optim::AdamWConfig;
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::evaluate::{Evaluator, Perplexity};
use epl::models::decoder::Decoder;
use epl::models::{DecoderBatcher, DecoderConfig, GenerationConfig, generate};
use epl::prelude::*;
use epl::trainer::{Best, Evaluation, Hook, Run, StopHandle};

use crate::corpora::out::Folder;
use crate::data::Data;

/// Blocks that one replica judges at a time.
const JUDGED: usize = 32;
/// Tokens that are written behind a prompt.
pub const WRITTEN: usize = 24;

/// What the command line says beside the configuration.
pub struct Settings {
    pub folder: Folder,
    pub plan_only: bool,
    /// What the model goes on with at each evaluation.
    pub prompts: Vec<Vec<i64>>,
    /// Ends the run on Ctrl-C.
    pub stop: StopHandle,
}

/// The last line of the run, on the first rank, and the exit code of the program.
pub type Ended = (Option<String>, ExitCode);

/// Trains on one rank.
pub fn rank(epl: &Epl, data: &Data, model: &DecoderConfig, settings: &Settings) -> epl::Result<Ended> {
    let first = epl.context().world().rank() == 0;
    let optimizer = AdamWConfig::new().with_beta_2(0.95).with_weight_decay(0.1);
    let batcher = DecoderBatcher::new(model);
    let blocks = |epl: &Epl| {
        let batch = epl.config().batch(epl.context().replicas())?.global_batch_size;
        let sampler = ShuffledSampler::new(data.train.len(), batch, epl.config().train.seed)?;
        TrainData::new(data.train.clone(), batcher.clone(), sampler)
    };
    let (epl, found) = epl.auto_parallel(|at| model.init(at), &optimizer, &blocks(epl)?)?;
    if let (Some(found), true) = (found, first) {
        println!("{found}");
    }
    let built = epl.build(|at| model.init(at))?;
    if settings.plan_only {
        return Ok((first.then(|| built.plan().to_string()), ExitCode::SUCCESS));
    }
    let engine = Engine::new(built, &optimizer, EngineSettings::from_config(epl.config()))?;
    let valid = ValidData::new(data.valid.clone(), batcher.clone(), JUDGED)?;
    let trained = Trainer::from_config(engine, epl.config())?
        .with_settings(|trainer| {
            trainer.with_replace(settings.folder.replaces).with_keep_best(Some(Best::smallest("perplexity")))
        })
        .with_stop(settings.stop.clone())
        .with_invariant("model", model)?
        .with_invariant("corpus", &data.fingerprint)?
        .with_evaluator(Evaluator::of_loss(valid).with(Perplexity::of("cross_entropy")))
        .with_hook(Samples { data, prompts: &settings.prompts })
        .fit(&blocks(&epl)?)?;
    if trained.summary.interrupted {
        let line = first.then(|| format!("`--out {} --resume` goes on", settings.folder.path.display()));
        return Ok((line, trained.summary.exit_code()));
    }
    let perplexity = trained.summary.evaluation.as_ref().and_then(|found| found.get("perplexity"));
    let line = perplexity.filter(|_| first).map(|perplexity| match data.of_rule {
        Some(rule) => format!("perplexity: {perplexity:.3}; of who knows the rule and whole texts: {rule:.3}"),
        None => format!("perplexity: {perplexity:.3}"),
    });
    Ok((line, ExitCode::SUCCESS))
}

/// Goes on with the prompts after each evaluation.
struct Samples<'a> {
    data: &'a Data,
    prompts: &'a [Vec<i64>],
}

impl Hook<Decoder> for Samples<'_> {
    fn after_evaluation(&mut self, run: &mut Run<Decoder>, _: &Evaluation) -> epl::Result<()> {
        let config = GenerationConfig::new(WRITTEN).with_sample(true).with_temperature(0.8).with_seed(run.step());
        let written = generate(run.engine(), self.prompts, &config)?;
        for (prompt, written) in self.prompts.iter().zip(written).filter(|_| run.is_first_rank()) {
            let text = self.data.tokenizer.decode(&[&prompt[1..], &written].concat());
            println!("  {}", text.map_err(|error| Error::invalid(error.to_string()))?);
        }
        Ok(())
    }
}
