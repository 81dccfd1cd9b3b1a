//! What a run is told.

use std::path::PathBuf;

use burn::config::Config;
use epl_comm::Launch;

use crate::config::ResumeMode;
use crate::data::PrefetchConfig;
use crate::error::{Error, Result};

/// Which checkpoint of a run is the best one.
#[derive(Config, Debug, PartialEq)]
pub struct Best {
    /// The evaluated value that decides, such as `valid_loss`.
    pub metric: String,
    /// Whether a larger value is better.
    pub larger: bool,
}

impl Best {
    /// The smallest value, such as that of `valid_loss`.
    pub fn smallest(metric: &str) -> Self {
        Self { metric: metric.to_string(), larger: false }
    }

    /// The largest value, such as that of `bleu`.
    pub fn largest(metric: &str) -> Self {
        Self { metric: metric.to_string(), larger: true }
    }

    /// Whether `value` is better than the best so far. What is not finite never is.
    pub fn improves(&self, value: f64, best: Option<f64>) -> bool {
        value.is_finite()
            && match best {
                None => true,
                Some(best) if self.larger => value > best,
                Some(best) => value < best,
            }
    }
}

/// Settings of a [`Trainer`](super::Trainer), the same on every rank.
#[derive(Config, Debug)]
pub struct TrainerConfig {
    /// The run ends after this many steps, those before a resume included, or before, where its data ends. The schedule
    /// has a length of its own.
    pub steps: u64,
    /// The micro-batches that each replica runs a step.
    #[config(default = 1)]
    pub micro_batches: usize,
    /// The loss term whose weight counts the tokens of a step; if the model has no such term, its first one.
    #[config(default = "String::from(\"cross_entropy\")")]
    pub tokens: String,
    /// Without a terminal, one line of progress every this many steps; 0: none.
    #[config(default = 10)]
    pub log_every: u64,
    /// Evaluation every this many steps, and at the end; none: only at the end.
    pub eval_every: Option<u64>,
    /// A checkpoint every this many steps, and at the end; none: only at the end.
    pub save_every: Option<u64>,
    /// Threads of each rank that load the steps.
    #[config(default = 1)]
    pub num_workers: usize,
    /// Steps that each of them may load ahead, the one included that it is at.
    #[config(default = 2)]
    pub prefetch: usize,
    /// Whether checkpoints are written into `out`.
    #[config(default = true)]
    pub save: bool,
    /// Whether checkpoints are written while training goes on, from a copy of the state in host memory.
    #[config(default = true)]
    pub async_save: bool,
    /// How many of the last checkpoints are kept, up to the one just saved.
    #[config(default = 2)]
    pub keep_last: usize,
    /// A check that all replicas hold the same parameters, to the bit, every this many steps; none: never.
    pub check_replicas_every: Option<u64>,
    /// Which checkpoint is kept beside the last ones. An evaluation that finds a better one saves it at once.
    pub keep_best: Option<Best>,
    /// Whether the first rank also writes `metrics.jsonl`'s numbers as events of TensorBoard, into `tensorboard/` in `out`.
    #[config(default = false)]
    pub tensorboard: bool,
    /// The folder of the run: `metrics.jsonl`, `loss.svg`, `checkpoints/`, `lock`, and `launch` where `epl-launch` has
    /// started it. None: nothing is written.
    pub out: Option<PathBuf>,
    /// Whether to go on from the latest checkpoint in `out`; without one it is an error.
    #[config(default = false)]
    pub resume: bool,
    /// Whether to go on from the latest checkpoint in `out` if there is one, and to begin if not: for a job that a scheduler
    /// starts again by the same command.
    #[config(default = false)]
    pub auto_resume: bool,
    /// What names the launch that the run belongs to; `out` then bears it.
    pub launch: Option<String>,
    /// Whether to go on from the latest checkpoint in `out` if `out` bears this launch and there is one, and to begin as
    /// before if not: so a run goes on that has been restarted, however far it had come, and no other.
    #[config(default = false)]
    pub resume_restarted: bool,
    /// With `resume`: the step whose checkpoint is taken, in place of the latest, which it is from then on. Later ones are removed as
    /// the run comes by. A launch that is [restarted](Self::resume_restarted) goes on from its latest.
    pub resume_step: Option<u64>,
    /// Whether a new run may remove the checkpoints, the log and the events of an earlier one from `out`. Otherwise, where there are
    /// checkpoints, that is an error; where there are none, the log is kept aside.
    #[config(default = false)]
    pub replace: bool,
}

impl TrainerConfig {
    /// What the options `train.*`, `schedule.steps`, `pipeline.num_micro_batch` and `io.*` say, for this many replicas. A
    /// run that `epl-launch` has restarted goes on from its latest checkpoint, if it came to one, whatever `train.resume` says.
    ///
    /// # Errors
    ///
    /// When no option says how many steps to run, the batch sizes disagree, or the launcher's word cannot be read.
    pub fn from_config(config: &crate::config::Config, replicas: usize) -> Result<Self> {
        let (train, launch) = (&config.train, Launch::from_environment()?);
        Ok(Self::new(config.steps()? as u64)
            .with_micro_batches(config.num_micro_batch(replicas)?)
            .with_eval_every(train.eval_every.map(|steps| steps as u64))
            .with_save_every(train.save_every.map(|steps| steps as u64))
            .with_keep_last(train.keep_last)
            .with_out((!train.out.is_empty()).then(|| PathBuf::from(&train.out)))
            .with_resume(train.resume == ResumeMode::Latest)
            .with_auto_resume(train.resume == ResumeMode::Auto)
            .with_resume_step(train.resume_step.map(|step| step as u64))
            .with_tensorboard(train.tensorboard)
            .with_num_workers(config.io.num_workers)
            .with_prefetch(config.io.prefetch)
            .with_resume_restarted(launch.as_ref().is_some_and(|launch| launch.restarts > 0))
            .with_launch(launch.map(|launch| launch.id)))
    }

    /// How far data is loaded ahead.
    pub(super) fn ahead(&self) -> Result<PrefetchConfig> {
        PrefetchConfig::new(self.num_workers, self.prefetch)
    }

    /// Refuses what contradicts itself. `evaluates`: whether the trainer has anything to evaluate.
    pub(super) fn check(&self, evaluates: bool) -> Result<()> {
        let refuse = |message: String| Err(Error::invalid(message));
        if self.steps == 0 || self.micro_batches == 0 || self.keep_last == 0 {
            return refuse(format!(
                "a run of {} steps of {} micro-batches whose last {} checkpoints are kept; all three numbers must be \
                 at least 1",
                self.steps, self.micro_batches, self.keep_last
            ));
        }
        self.ahead()?;
        for (what, every, without) in [
            ("evaluation", self.eval_every, "one at the end only"),
            ("a checkpoint", self.save_every, "one at the end only"),
            ("a check of the replicas", self.check_replicas_every, "none"),
        ] {
            if every == Some(0) {
                return refuse(format!("{what} every 0 steps; leave the number out for {without}"));
            }
        }
        if let (Some(every), false) = (self.eval_every, evaluates) {
            return refuse(format!(
                "evaluation every {every} steps, and nothing to evaluate; give the trainer validation data or an \
                 evaluation of its own"
            ));
        }
        if self.out.is_none() && self.tensorboard {
            let remedy = "set train.out = \"FOLDER\" (`with_out`), or train.tensorboard = false";
            return refuse(format!("events of TensorBoard, and no folder for them; {remedy}"));
        }
        let resumes = self.resume || self.auto_resume;
        if self.out.is_none() && (self.save_every.is_some() || self.keep_best.is_some() || resumes) {
            return refuse(
                "saving or resuming, and no folder for it; set train.out = \"FOLDER\" (`with_out`)".to_string(),
            );
        }
        if self.resume_restarted && self.launch.is_none() {
            return refuse("to resume what a launch has restarted, and no launch; set `launch`".to_string());
        }
        if let (Some(step), false) = (self.resume_step, self.resume) {
            let why = "auto would go back to it each time";
            let remedy = "set train.resume = latest (`with_resume`), too";
            return refuse(format!("to resume from step {step}, and not to resume; {remedy} ({why})"));
        }
        match &self.keep_best {
            Some(best) if !evaluates || !self.save => refuse(format!(
                "the best checkpoint by `{}` is to be kept, which needs an evaluation that returns `{}`, and `save`",
                best.metric, best.metric
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: TrainerConfig, evaluates: bool) -> String {
        config.check(evaluates).unwrap_err().to_string()
    }

    #[test]
    fn better_is_smaller_or_larger_and_never_nan() {
        let loss = Best::smallest("valid_loss");
        assert!(loss.improves(2.0, None) && loss.improves(1.0, Some(2.0)) && !loss.improves(2.0, Some(2.0)));
        assert!(!loss.improves(f64::NAN, None) && !loss.improves(f64::NAN, Some(1.0)));
        assert!(Best::largest("bleu").improves(3.0, Some(2.0)));
        for best in [None, Some(1.0)] {
            assert!(!loss.improves(f64::NEG_INFINITY, best) && !Best::largest("bleu").improves(f64::INFINITY, best));
        }
    }

    #[test]
    fn contradictions_are_refused_with_their_numbers() {
        let config = TrainerConfig::new(10);
        assert!(config.check(false).is_ok());
        assert!(refused(TrainerConfig::new(0), false).contains("0 steps"));
        assert!(refused(config.clone().with_keep_last(0), false).contains("last 0 checkpoints"));
        assert!(refused(config.clone().with_num_workers(0), false).contains("by 0 threads, 2 steps"));
        assert!(refused(config.clone().with_eval_every(Some(0)), true).contains("evaluation every 0"));
        assert!(refused(config.clone().with_check_replicas_every(Some(0)), false).contains("replicas every 0"));
        assert!(refused(config.clone().with_eval_every(Some(5)), false).contains("every 5 steps"));
        assert!(refused(config.clone().with_save_every(Some(5)), false).contains("no folder"));
        assert!(refused(config.clone().with_resume(true), false).contains("no folder"));
        assert!(refused(config.clone().with_auto_resume(true), false).contains("train.out"));
        assert!(refused(config.clone().with_tensorboard(true), false).contains("no folder for them"));
        let back = config.clone().with_resume_step(Some(7)).with_out(Some("out".into()));
        for back in [back.clone(), back.with_auto_resume(true)] {
            let refused = refused(back, false);
            assert!(refused.contains("from step 7") && refused.contains("train.resume = latest"), "{refused}");
        }
        assert!(refused(config.clone().with_resume_restarted(true), false).contains("no launch"));
        let kept = config.with_keep_best(Some(Best::largest("bleu"))).with_out(Some("out".into()));
        assert!(refused(kept.clone(), false).contains("`bleu`"));
        assert!(refused(kept.clone().with_save(false), true).contains("`bleu`"));
        assert!(kept.check(true).is_ok());
    }

    #[test]
    fn the_options_of_a_run_are_taken_over() {
        let mut config = crate::config::Config::default();
        config.train.steps = Some(70);
        config.train.eval_every = Some(20);
        config.pipeline.num_micro_batch = 3;
        (config.io.num_workers, config.io.prefetch) = (2, 5);
        let trainer = TrainerConfig::from_config(&config, 2).unwrap();
        assert_eq!((trainer.steps, trainer.micro_batches), (70, 3));
        assert_eq!((trainer.eval_every, trainer.save_every), (Some(20), None));
        assert_eq!((trainer.num_workers, trainer.prefetch), (2, 5));
        assert_eq!((trainer.out, trainer.resume, trainer.auto_resume, trainer.keep_last), (None, false, false, 2));
        config.train.resume_step = Some(7);
        assert_eq!(TrainerConfig::from_config(&config, 2).unwrap().resume_step, Some(7));
        config.train.out = "run".into();
        for (mode, resumes) in [(ResumeMode::Latest, [true, false]), (ResumeMode::Auto, [false, true])] {
            config.train.resume = mode;
            let trainer = TrainerConfig::from_config(&config, 2).unwrap();
            assert_eq!((trainer.out, [trainer.resume, trainer.auto_resume]), (Some("run".into()), resumes));
        }
    }
}
