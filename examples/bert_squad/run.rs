//! What every rank does: build, train, predict.

use std::process::ExitCode;

use burn::data::dataset::InMemDataset;
use burn::optim::AdamWConfig;
use epl::data::{BatchShard, EvaluationLoader, ShuffledSampler, TrainData, ValidData};
use epl::models::bert::question_answering::{ANSWER_LOGITS, AnswerLabels, QuestionAnswering};
use epl::models::bert::{self, BertBatch, BertBatcher, BertForQuestionAnswering};
use epl::models::huggingface::Names;
use epl::models::squad::{Predictions, SquadScore};
use epl::trainer::{StopHandle, Trainer};
use epl::{Engine, EngineSettings, Epl, Error, Result};

use crate::args::{Start, scheduled};
use crate::out::Folder;
use crate::task::{Row, Task};

/// Rows that one replica predicts at a time.
const BATCH: usize = 16;

/// The last line of the run, on the first rank, and the exit code of the program.
pub type Ended = (Option<String>, ExitCode);

/// What the command line says beside the configuration.
pub struct Settings {
    pub folder: Folder,
    pub plan: bool,
    /// Ends the run on Ctrl-C.
    pub stop: StopHandle,
}

/// Trains on one rank.
pub fn rank(epl: &Epl, task: &Task, start: &Start, settings: &Settings) -> Result<Ended> {
    let first = epl.context().world().rank() == 0;
    let built = epl.build(|place| start.model.init_question_answering(place))?.try_map(|model, plan| {
        let Some(folder) = &start.weights else { return Ok(model) };
        let names = bert::BertNames::new::<QuestionAnswering>(folder)?;
        for record in plan.records().iter().filter(|record| first && names.keeps(&record.name)) {
            println!("`{}` is not in the folder; it starts from the seed", record.name);
        }
        Ok(bert::load(model, plan.records(), folder)?)
    })?;
    if settings.plan {
        return Ok((first.then(|| built.plan().to_string()), ExitCode::SUCCESS));
    }
    // BERT's own optimizer corrects no bias, and decays neither norms nor biases; Burn's does both.
    let optimizer = AdamWConfig::new().with_epsilon(1e-6).with_weight_decay(0.01);
    let engine = Engine::new(built, &optimizer, EngineSettings::from_config(epl.config()))?;
    let batch = epl.config().batch(engine.context().replicas())?.global_batch_size;
    let config = scheduled(epl.config().clone(), task.train.rows.len().div_ceil(batch))?;
    let sampler = ShuffledSampler::new(task.train.rows.len(), batch, config.train.seed)?;
    let batcher = BertBatcher::<QuestionAnswering>::new(&start.model);
    let data = TrainData::new(InMemDataset::new(task.train.rows.clone()), batcher.clone(), sampler)?;
    let predicted = ValidData::new(InMemDataset::new(task.predicted().rows.clone()), batcher, BATCH)?;
    let trained = Trainer::from_config(engine, &config)?
        .with_settings(|trainer| trainer.with_replace(settings.folder.replaces))
        .with_stop(settings.stop.clone())
        .with_invariant("model", &start.model)?
        .with_invariant("vocabulary", &task.vocabulary.pieces())?
        .with_invariant("file of questions", &task.train.fingerprint())?
        .with_evaluation(|engine| {
            let (_, score) = predict(engine, task, &predicted)?;
            Ok(vec![("f1".to_string(), score.mean_f1()), ("exact_match".to_string(), score.exact_match())])
        })
        .fit(&data)?;
    let out = &settings.folder.path;
    if trained.summary.interrupted {
        let line = first.then(|| format!("`--out {} --resume` goes on", out.display()));
        return Ok((line, trained.summary.exit_code()));
    }
    let (predictions, score) = predict(&trained.engine, task, &predicted)?;
    if !first {
        return Ok((None, ExitCode::SUCCESS));
    }
    predictions.save(out).map_err(wrong)?;
    task.vocabulary.save(out.join("vocab.txt")).map_err(wrong)?;
    Ok((Some(score.to_string()), ExitCode::SUCCESS))
}

/// The answers to all questions: the last stage has the logits, and every rank learns them. Collective.
fn predict(
    engine: &Engine<BertForQuestionAnswering>,
    task: &Task,
    predicted: &ValidData<Row, BertBatch<AnswerLabels>>,
) -> Result<(Predictions, SquadScore)> {
    let share = BatchShard::of(engine.context(), 1)?;
    let report = engine.evaluate(EvaluationLoader::start(predicted, share, engine.device())?)?;
    let logits = report.outputs.get(ANSWER_LOGITS).ok_or_else(|| Error::invalid("no rank has the logits"))?;
    task.predicted().answered(logits).map_err(wrong)
}

fn wrong(error: epl::models::squad::Error) -> Error {
    Error::invalid(error.to_string())
}
