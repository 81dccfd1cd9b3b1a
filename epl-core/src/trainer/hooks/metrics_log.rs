//! `metrics.jsonl`: one JSON object a step.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::checkpoint::durable::{FileSystem, rename, replace};
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::hook::Hook;
use crate::trainer::json_lines;
use crate::trainer::record::{Evaluation, STEP, StepRecord, StepValue, is_of_step};
use crate::trainer::run::Run;

/// Writes one JSON object a step, numbers in full precision; not a number is `null`.
///
/// | key | value |
/// |---|---|
/// | `step` | steps done, from 1 |
/// | `loss`, `grad_norm`, `lr` | the loss, the norm before clipping, the learning rate |
/// | `tokens_per_second`, `tokens`, `samples` | of all ranks |
/// | `flops` | floating-point operations of the step, of all ranks ([`StepReport::flops`](crate::StepReport::flops)); null where not known |
/// | `seconds`, `data_wait` | of the step, and of these, waiting for data |
/// | `data_ahead` | steps that were loaded when this one was asked for, itself included; with 0 it waited |
/// | `bubble` | the fraction in which pipeline stages waited for each other; null with one stage |
/// | `loss_scale` | what the loss was multiplied by; null without mixed precision |
/// | `skipped` | the steps of the run that were skipped so far, as a gradient was not finite; null without mixed precision |
/// | `terms`, `weights`, `metrics` | objects: the loss terms, their weights, the layers' metrics |
/// | `valid_loss`, … | if an evaluation followed the step: its values |
///
/// A resumed run drops the lines beyond the step it resumes from, then appends. Where a run begins anew, the log of an earlier
/// one is kept aside: `metrics.1.jsonl`, `metrics.2.jsonl` and on.
///
/// ```
/// # use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, nn::{Linear, LinearConfig}, optim::SgdConfig};
/// # use burn::tensor::{Device, Tensor};
/// # use epl_core::{Config, Trainer, WithLoss, data::{ShuffledSampler, TrainData}, launch, trainer::MetricsLog};
/// # #[derive(Clone)]
/// # struct Column;
/// # impl Batcher<f32, Tensor<2>> for Column {
/// #     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<2> {
/// #         Tensor::<1>::from_floats(items.as_slice(), device).unsqueeze_dim(1)
/// #     }
/// # }
/// # let data = TrainData::new(InMemDataset::new(vec![1.0, 2.0, 3.0, 4.0]), Column, ShuffledSampler::new(4, 2, 7)?)?;
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// let path = folder.path().join("metrics.jsonl"); // which a trainer with `train.out` writes without being asked
/// launch(&Config::new().with("train.steps", 3)?, |epl| {
///     let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
///     let trainer = Trainer::build(&epl, |at| WithLoss::new(LinearConfig::new(1, 1).init(at), loss), &SgdConfig::new())?;
///     trainer.with_hook(MetricsLog::new(&path)).quiet().fit(&data).map(drop)
/// })?;
/// let text = std::fs::read_to_string(&path).expect("it is written");
/// let steps = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object"));
/// assert_eq!(steps.map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    /// Whether a run that begins anew takes the place of an earlier one.
    replaces: bool,
    file: Option<File>,
    /// The line of the last step. It is written before the next step or a checkpoint.
    pending: Map<String, Value>,
    /// Where it stands in the file, once written: an evaluation that follows replaces it.
    written_at: Option<u64>,
    /// Where the file is to end before more is written: what stands there has more by now.
    cut_at: Option<u64>,
    /// Lines before it that could not be written, such as on a full disk: they are written as soon as they can be.
    waiting: Vec<String>,
}

impl MetricsLog {
    /// A log in this file. Nothing is touched until the run begins.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            replaces: false,
            file: None,
            pending: Map::new(),
            written_at: None,
            cut_at: None,
            waiting: Vec::new(),
        }
    }

    /// Whether a run that begins anew writes over the log of an earlier one, which is otherwise kept aside.
    #[must_use]
    pub fn replacing(mut self, replaces: bool) -> Self {
        self.replaces = replaces;
        self
    }

    /// Opens the file; of a run that was resumed after `done` steps, it keeps their lines.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written, or is none of ours.
    pub fn open(&mut self, done: u64) -> Result<()> {
        (self.pending, self.written_at, self.cut_at) = (Map::new(), None, None);
        if done > 0 {
            self.cut(done)?;
        } else if !self.replaces {
            self.keep_aside()?;
        }
        let error = |error| Error::file(&self.path, error);
        if done == 0 {
            File::create(&self.path).map_err(error)?;
        }
        // Not to append alone: Windows would not let such a file be cut.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        self.file = Some(options.open(&self.path).map_err(error)?);
        Ok(())
    }

    /// Keeps the lines of the first `done` steps. An evaluation of the last of them joins its line.
    fn cut(&mut self, done: u64) -> Result<()> {
        let mut kept = Vec::new();
        let step_of = |object: &Map<String, Value>| object.get(STEP).and_then(Value::as_u64);
        // Lines are in the order of steps: what follows is of none that is kept, and may be damaged.
        for object in json_lines::read_to(&self.path, |object| step_of(object).is_some_and(|step| step >= done))? {
            let Some(step) = step_of(&object).filter(|step| *step <= done) else { continue };
            if step == done {
                (self.pending, self.written_at) = (object.clone(), Some(kept.len() as u64));
            }
            kept.extend_from_slice(Value::Object(object).to_string().as_bytes());
            kept.push(b'\n');
        }
        replace(&self.path, &kept)
    }

    /// Gives the log of an earlier run, such as one that came to no checkpoint, a name of its own.
    fn keep_aside(&self) -> Result<()> {
        if !std::fs::metadata(&self.path).is_ok_and(|file| file.len() > 0) {
            return Ok(());
        }
        let end = self.path.extension().map_or(String::new(), |end| format!(".{}", end.to_string_lossy()));
        let mut names = (1_u64..).map(|number| self.path.with_extension(format!("{number}{end}")));
        let aside = names.find(|name| !name.exists()).unwrap_or_default();
        rename(&FileSystem, &self.path, &aside)
    }

    /// Takes a step; its line is written before the next step or a checkpoint.
    pub fn add_step(&mut self, record: &StepRecord) {
        let values = record.values().map(|(name, value)| (name.to_string(), json_value(value)));
        let line = [(STEP.to_string(), Value::from(record.step))].into_iter().chain(values).collect();
        let before = std::mem::replace(&mut self.pending, line);
        if !before.is_empty() && self.written_at.is_none() {
            self.waiting.push(Value::Object(before).to_string());
        }
        self.written_at = None;
    }

    /// Adds an evaluation to the line of its step; an earlier one of the same step is replaced.
    ///
    /// # Errors
    ///
    /// When a value has the name of something else in the line.
    pub fn add_evaluation(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.pending.entry(STEP).or_insert(evaluation.step.into());
        for (name, value) in &evaluation.values {
            if is_of_step(name) {
                return Err(Error::invalid(format!(
                    "an evaluation returned a value called `{name}`, which metrics.jsonl already has for the step; \
                     give it another name"
                )));
            }
            self.pending.insert(name.clone(), (*value).into());
        }
        self.cut_at = self.written_at.take().or(self.cut_at);
        Ok(())
    }

    /// Writes the line of the last step, and those before it that could not be written.
    ///
    /// # Errors
    ///
    /// When the file cannot be written: nothing is lost, and it is tried again.
    pub fn flush(&mut self) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| !self.pending.is_empty() && self.written_at.is_none()) else {
            return Ok(());
        };
        let is_replaced = self.cut_at.is_some();
        if let Some(end) = self.cut_at {
            file.set_len(end).map_err(|error| Error::file(&self.path, error))?;
            self.cut_at = None;
        }
        while let Some(line) = self.waiting.first().cloned() {
            self.append(&line)?;
            self.waiting.remove(0);
        }
        let line = Value::Object(self.pending.clone()).to_string();
        self.written_at = Some(self.append(&line)?);
        match &self.file {
            // What stood there may have been durable.
            Some(file) if is_replaced => file.sync_data().map_err(|error| Error::file(&self.path, error)),
            _ => Ok(()),
        }
    }

    /// Writes a line; where it begins. What was written of one that does not fit is taken back.
    fn append(&mut self, line: &str) -> Result<u64> {
        let error = |error| Error::file(&self.path, error);
        let Some(file) = &mut self.file else { return Ok(0) };
        let start = file.seek(SeekFrom::End(0)).map_err(error)?;
        // One write a line, so that a reader never sees half of one.
        if let Err(cause) = file.write_all(format!("{line}\n").as_bytes()) {
            file.set_len(start).map_err(error)?;
            return Err(error(cause));
        }
        Ok(start)
    }
}

fn json_value(value: StepValue<'_>) -> Value {
    match value {
        StepValue::Number(number) => number.into(),
        StepValue::Count(count) => count.into(),
        StepValue::Named(numbers) => numbers.iter().cloned().collect(),
        StepValue::Lists(lists) => json!(lists),
        StepValue::Unknown => Value::Null,
    }
}

impl<M: Model> Hook<M> for MetricsLog {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.open(run.step())
    }

    fn before_step(&mut self, run: &mut Run<M>) -> Result<()> {
        run.forgive(self.flush());
        Ok(())
    }

    fn after_step(&mut self, _run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        self.add_step(record);
        Ok(())
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        self.add_evaluation(evaluation)?;
        run.forgive(self.flush());
        Ok(())
    }

    fn before_save(&mut self, run: &mut Run<M>) -> Result<()> {
        run.forgive(self.flush());
        // After a power failure the log must not end before the checkpoint.
        let synced = self.file.as_ref().map_or(Ok(()), File::sync_data);
        run.forgive(synced.map_err(|error| Error::file(&self.path, error)));
        Ok(())
    }

    fn after_run(&mut self, _run: &mut Run<M>) -> Result<()> {
        self.flush()
    }
}

impl Drop for MetricsLog {
    fn drop(&mut self) {
        // The run failed after the step; if this fails too, there is nobody left to tell.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::record::tests::{evaluation, record};
    use std::path::Path;

    fn run(path: &Path, done: u64, to: u64) {
        let mut log = MetricsLog::new(path);
        log.open(done).unwrap();
        for step in done + 1..=to {
            log.flush().unwrap();
            log.add_step(&record(step));
            if step % 2 == 0 {
                log.add_evaluation(&evaluation(step)).unwrap();
            }
        }
    }

    #[test]
    fn a_step_is_an_object_in_full_precision_and_an_evaluation_joins_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        run(&path, 0, 3);
        let lines = json_lines::read(&path).unwrap();
        assert_eq!(lines.len(), 3);
        let (line, expected) = (&lines[1], record(2));
        assert_eq!(line["step"], 2);
        assert_eq!(line["loss"].as_f64().unwrap().to_bits(), expected.report.loss.to_bits());
        assert_eq!(line["tokens_per_second"].as_f64(), Some(expected.tokens_per_second()));
        assert_eq!(line["terms"]["cross_entropy"].as_f64(), Some(expected.report.terms[0].1));
        assert_eq!(line["data_ahead"], 2);
        assert_eq!(line["metrics"]["tokens_per_expert"][1], 5.0);
        assert_eq!(line["valid_loss"].as_f64(), evaluation(2).get("valid_loss"));
        for key in ["grad_norm", "lr", "data_wait", "weights"] {
            assert!(line.contains_key(key), "{key}");
        }
        assert!(!lines[2].contains_key("valid_loss"));
    }

    #[test]
    fn a_resumed_run_drops_what_lies_beyond_it_and_half_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        run(&path, 0, 7);
        let whole = std::fs::read(&path).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"step\": 8, \"lo").unwrap();
        run(&path, 4, 7);
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_new_run_begins_a_new_log_and_keeps_the_earlier_ones_but_where_it_replaces_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let lines = |name: &str| json_lines::read(&folder.path().join(name)).unwrap().len();
        for steps in [5, 3, 2] {
            run(&path, 0, steps);
        }
        assert_eq!(["metrics.jsonl", "metrics.1.jsonl", "metrics.2.jsonl"].map(lines), [2, 5, 3]);
        let mut log = MetricsLog::new(&path).replacing(true);
        log.open(0).unwrap();
        // What is empty is kept nowhere.
        MetricsLog::new(&path).open(0).unwrap();
        assert_eq!(["metrics.jsonl", "metrics.3.jsonl"].map(lines), [0, 0]);
    }

    #[test]
    fn a_broken_line_beyond_the_step_does_not_matter_and_one_before_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        run(&path, 0, 7);
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, whole.replace("\"step\":6", "\0")).unwrap();
        let broken = json_lines::read(&path).unwrap_err().to_string();
        assert!(broken.contains("line 6"), "{broken}");
        assert!(MetricsLog::new(&path).open(7).unwrap_err().to_string().contains("line 6"));
        run(&path, 5, 7);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
    }

    #[test]
    fn a_file_that_is_not_ours_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, "step,loss\n1,2.0\n").unwrap();
        let message = MetricsLog::new(&path).open(4).unwrap_err().to_string();
        assert!(message.contains("line 1 is not a JSON object"), "{message}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "step,loss\n1,2.0\n");
    }

    /// Every write to this file finds the disk full.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_does_not_fit_is_written_once_there_is_room() {
        let (folder, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, expected) = (folder.path().join("metrics.jsonl"), whole.path().join("metrics.jsonl"));
        run(&expected, 0, 5);
        let mut log = MetricsLog::new(&path);
        log.open(0).unwrap();
        let disk = log.file.take();
        log.file = Some(OpenOptions::new().append(true).open("/dev/full").unwrap());
        for step in 1..=4 {
            assert_eq!(log.flush().is_err(), step > 1);
            log.add_step(&record(step));
            if step % 2 == 0 {
                log.add_evaluation(&evaluation(step)).unwrap();
            }
        }
        log.file = disk;
        log.flush().unwrap();
        log.add_step(&record(5));
        drop(log);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), std::fs::read_to_string(&expected).unwrap());
    }

    #[test]
    fn a_value_cannot_take_the_name_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = MetricsLog::new(folder.path().join("metrics.jsonl"));
        log.open(0).unwrap();
        log.add_step(&record(1));
        let clash = Evaluation { values: vec![("loss".into(), 1.0)], ..evaluation(1) };
        assert!(log.add_evaluation(&clash).unwrap_err().to_string().contains("`loss`"));
    }
    #[test]
    fn an_evaluation_after_a_resume_joins_the_line_of_its_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        run(&path, 0, 3);
        let mut log = MetricsLog::new(&path);
        log.open(3).unwrap();
        log.add_evaluation(&evaluation(3)).unwrap();
        // Again, as after a run that died between this line and the note in the checkpoint.
        log.add_evaluation(&evaluation(3)).unwrap();
        log.add_step(&record(4));
        drop(log);
        let lines = json_lines::read(&path).unwrap();
        assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(lines[2]["valid_loss"].as_f64(), evaluation(3).get("valid_loss"));
        assert_eq!(lines[2]["loss"].as_f64(), Some(record(3).report.loss));
    }
}
