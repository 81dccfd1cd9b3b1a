//! What every rank does: build, train, translate.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use burn::data::dataset::InMemDataset;
use burn::optim::AdamWConfig;
use epl::data::{TrainData, ValidData};
use epl::evaluate::Evaluator;
use epl::models::t5::{T5, T5Batcher, T5Config};
use epl::models::text::{Judged, Pair, PairBatcher};
use epl::trainer::hooks::CheckPrediction;
use epl::trainer::{Best, CheckpointId, Hook, Run, StopHandle, Trainer, TrainerConfig};
use epl::{Engine, EngineSettings, Epl, Error, Result};

use crate::out::Folder;
use crate::task::Task;

/// Pairs that one replica translates at a time.
const BATCH: usize = 250;
/// Translations that are printed at the end.
const SHOWN: usize = 5;

/// What the command line says beside the configuration.
pub struct Settings {
    pub folder: Folder,
    pub plan_only: bool,
    /// Every how many steps replicas are compared.
    pub check_replicas: Option<u64>,
    /// Ends the run on Ctrl-C.
    pub stop: StopHandle,
}

/// The last line of the run, on the first rank, and the exit code of the program.
pub type Ended = (Option<String>, ExitCode);

/// Trains on one rank.
pub fn rank(epl: &Epl, task: &Task, model: &T5Config, settings: &Settings) -> Result<Ended> {
    let first = epl.context().world().rank() == 0;
    let optimizer = AdamWConfig::new().with_beta_2(0.98).with_epsilon(1e-9).with_weight_decay(0.01);
    let batcher = T5Batcher::new(model);
    let data_for = |epl: &Epl| {
        let sampler = task.sampler(epl.config(), epl.context().replicas())?;
        TrainData::new(task.train.clone(), batcher.clone(), sampler)
    };
    let begin = Instant::now();
    let (epl, found) = epl.auto_parallel(|place| model.init(place), &optimizer, &data_for(epl)?)?;
    let check = found.as_ref().map(|found| CheckPrediction::new(found.best()));
    if let (Some(found), true) = (found, first) {
        println!("{found}\nmeasured and searched in {:.1} s", begin.elapsed().as_secs_f64());
    }
    let built = epl.build(|place| model.init(place))?;
    if settings.plan_only {
        return Ok((first.then(|| built.plan().to_string()), ExitCode::SUCCESS));
    }
    let data = data_for(&epl)?;
    let engine = Engine::new(built, &optimizer, EngineSettings::from_config(epl.config()))?;
    // A checkpoint keeps all that it depends on; a resume with something else is refused.
    let mut trainer = Trainer::from_config(engine, epl.config())?
        .with_settings(|trainer| told(trainer, task, settings))
        .with_stop(settings.stop.clone())
        .with_invariant("model", model)?
        .with_invariant("tokenizer", &task.fingerprint()?)?
        .with_invariant("corpus", &task.train.fingerprint())?
        .with_hook(KeepTokenizer { task, out: &settings.folder.path });
    if let Some(check) = check {
        trainer = trainer.with_hook(check);
    }
    if let Some(valid) = &task.valid {
        let valid = ValidData::new(valid.clone(), batcher, BATCH)?;
        trainer = trainer.with_valid(valid).with_evaluator(judge(task, &task.judged)?);
    }
    let mut trained = trainer.fit(&data)?;
    if trained.summary.interrupted {
        let line = first.then(|| format!("`--out {} --resume` goes on", settings.folder.path.display()));
        return Ok((line, trained.summary.exit_code()));
    }
    let mut result = trained.summary.evaluation.as_ref().and_then(|evaluation| evaluation.get(task.score_name()));
    if !task.test.is_empty() {
        trained.load(CheckpointId::Best)?;
        result = judge(task, &task.test)?.measure(&trained.engine)?.first().map(|(_, score)| *score);
    }
    show(&trained.engine, task, first)?;
    Ok((result.filter(|_| first).map(|score| task.show_score(score)), ExitCode::SUCCESS))
}

/// Writes the tokenizer once the folder is this run's: a command that cannot run leaves that of an earlier one.
struct KeepTokenizer<'a> {
    task: &'a Task,
    out: &'a Path,
}

impl Hook<T5> for KeepTokenizer<'_> {
    fn before_run(&mut self, run: &mut Run<T5>) -> Result<()> {
        if run.is_first_rank() { self.task.keep_tokenizer(self.out) } else { Ok(()) }
    }
}

/// What the command line says of a run.
fn told(trainer: TrainerConfig, task: &Task, settings: &Settings) -> TrainerConfig {
    trainer
        .with_replace(settings.folder.replaces)
        .with_check_replicas_every(settings.check_replicas)
        .with_keep_best(task.valid.is_some().then(|| Best::largest(task.score_name())))
}

/// What translates `pairs`, each replica its share, and scores them together.
fn judge<'a>(task: &'a Task, pairs: &[Pair]) -> Result<Evaluator<'a, T5, Vec<Judged>>> {
    let longest = longest(&encode(pairs, task)?);
    let data = ValidData::new(InMemDataset::new(pairs.to_vec()), PairBatcher, BATCH)?;
    let judged = move |engine: &Engine<T5>, pairs: &Vec<Pair>| {
        let translations = translate(engine, &encode(pairs, task)?, longest, task)?;
        let judged = translations.into_iter().zip(pairs);
        Ok(judged.map(|(translation, pair)| Judged::new(translation, &pair.target)).collect())
    };
    Ok(Evaluator::by(data, judged).with(task.measure()))
}

/// The sources as tokens.
fn encode(pairs: &[Pair], task: &Task) -> Result<Vec<Vec<i64>>> {
    pairs.iter().map(|pair| task.tokenizer().encode(&pair.source).map_err(wrong)).collect()
}

/// The most tokens of a translation: the same for all sources of a set, however they are divided.
fn longest(sources: &[Vec<i64>]) -> usize {
    sources.iter().map(Vec::len).max().unwrap_or(0) * 2 + 10
}

/// Translates by greedy search. Collective.
fn translate(engine: &Engine<T5>, sources: &[Vec<i64>], longest: usize, task: &Task) -> Result<Vec<String>> {
    let translated = T5::generate(engine, sources, longest)?;
    translated.iter().map(|tokens| task.tokenizer().decode(tokens).map_err(wrong)).collect()
}

fn wrong(error: epl::models::text::Error) -> Error {
    Error::invalid(error.to_string())
}

/// Prints a few translations. Collective.
fn show(engine: &Engine<T5>, task: &Task, first: bool) -> Result<()> {
    let pairs = &task.judged[..task.judged.len().min(SHOWN)];
    let sources = encode(pairs, task)?;
    let translations = translate(engine, &sources, longest(&sources), task)?;
    for (pair, translation) in pairs.iter().zip(translations).filter(|_| first) {
        println!("  {}\n    -> {translation}", pair.source);
    }
    Ok(())
}
