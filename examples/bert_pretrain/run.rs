//! What every rank does: build, train, judge.

use std::process::ExitCode;

use burn::data::dataset::Dataset;
use burn::optim::AdamWConfig;
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::evaluate::{Accuracy, Classified, Evaluator};
use epl::models::BertConfig;
use epl::models::bert::{BertBatch, BertBatcher, BertCarry, BertForPretraining, BertHead, IGNORED, Pretraining};
use epl::prelude::*;
use epl::trainer::{Best, StopHandle};

use crate::corpora::out::Folder;
use crate::data::{Data, Row};

/// Rows that one replica judges at a time.
const JUDGED: usize = 50;

/// What the command line says beside the configuration.
pub struct Settings {
    pub folder: Folder,
    pub plan: bool,
}

/// The last line of the run, on the first rank, and the exit code of the program.
pub type Ended = (Option<String>, ExitCode);

/// What the model said of hidden tokens, and of the order of texts.
struct Judged {
    tokens: Classified,
    sentences: Classified,
}

type Labels = <Pretraining as BertHead>::Labels;

fn judge(model: &BertForPretraining, carry: BertCarry, batch: &BertBatch<Labels>) -> epl::Result<Judged> {
    let (tokens, sentences) = &batch.labels;
    let said = carry.sentence.clone().ok_or_else(|| Error::invalid("the last segment says nothing of sentences"))?;
    let [rows, _, orders] = said.dims();
    let logits = model.logits_of(carry);
    let [_, length, vocab] = logits.dims();
    Ok(Judged {
        tokens: Classified::from_logits(
            logits.reshape([rows * length, vocab]),
            tokens.targets.clone().reshape([rows * length]),
            Some(IGNORED),
        )?,
        sentences: Classified::from_logits(said.reshape([rows, orders]), sentences.targets.clone(), Some(IGNORED))?,
    })
}

/// The share of what is right.
fn share(name: &str, of: fn(&Judged) -> &Classified) -> Accuracy<Judged> {
    Accuracy::counted(name, move |judged| {
        let Classified { targets, predicted, .. } = of(judged);
        (targets.iter().zip(predicted).filter(|(target, predicted)| target == predicted).count(), targets.len())
    })
}

/// Trains on one rank.
pub fn rank(epl: &Epl, data: &Data, model: &BertConfig, settings: &Settings, stop: &StopHandle) -> epl::Result<Ended> {
    let first = epl.context().world().rank() == 0;
    let optimizer = AdamWConfig::new().with_beta_2(0.98).with_weight_decay(0.01);
    let batcher = BertBatcher::<Pretraining>::new(model);
    let rows = |epl: &Epl| {
        let batch = epl.config().batch(epl.context().replicas())?.global_batch_size;
        let sampler = ShuffledSampler::new(Dataset::<Row>::len(&data.train), batch, epl.config().train.seed)?;
        TrainData::new(data.train.clone(), batcher.clone(), sampler)
    };
    let (epl, found) = epl.auto_parallel(|at| model.init_pretraining(at), &optimizer, &rows(epl)?)?;
    if let (Some(found), true) = (found, first) {
        println!("{found}");
    }
    let built = epl.build(|at| model.init_pretraining(at))?;
    if settings.plan {
        return Ok((first.then(|| built.plan().to_string()), ExitCode::SUCCESS));
    }
    let engine = Engine::new(built, &optimizer, EngineSettings::from_config(epl.config()))?;
    let valid = ValidData::new(data.valid.clone(), batcher.clone(), JUDGED)?;
    let evaluator = Evaluator::new(valid, judge)
        .with(share("masked_tokens", |judged| &judged.tokens))
        .with(share("sentences", |judged| &judged.sentences));
    let trained = Trainer::from_config(engine, epl.config())?
        .with_settings(|trainer| {
            trainer.with_replace(settings.folder.replaces).with_keep_best(Some(Best::largest("masked_tokens")))
        })
        .with_stop(stop.clone())
        .with_invariant("model", model)?
        .with_invariant("rows", &data.fingerprint)?
        .with_evaluator(evaluator)
        .fit(&rows(&epl)?)?;
    if trained.summary.interrupted {
        let line = first.then(|| format!("`--out {} --resume` goes on", settings.folder.path.display()));
        return Ok((line, trained.summary.exit_code()));
    }
    let found = |name: &str| trained.summary.evaluation.as_ref().and_then(|found| found.get(name)).unwrap_or(f64::NAN);
    let line = |what: &str, name: &str, known: Option<f64>| {
        let known = known.map(|known| format!("; of who knows the rule {:.1}%", 100.0 * known));
        format!("{what}: {:.1}%{}", 100.0 * found(name), known.unwrap_or_default())
    };
    let tokens = line("hidden tokens", "masked_tokens", data.of_rule.and_then(|reached| reached.tokens));
    let sentences = line("order of texts", "sentences", data.of_rule.and_then(|reached| reached.sentences));
    Ok((first.then(|| format!("{tokens}\n{sentences}")), ExitCode::SUCCESS))
}
