//! What a run tells: of a step, of an evaluation, of its end.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::engine::StepReport;
use crate::evaluate::Values;

/// What one step did. All but the times, and what was ready in time, is the same on every rank.
#[derive(Clone, Debug)]
pub struct StepRecord {
    /// How many steps are done, this one included: the first is 1.
    pub step: u64,
    /// What the engine reports.
    pub report: StepReport,
    /// The learning rate.
    pub rate: f64,
    /// How many samples the step had.
    pub samples: usize,
    /// How many samples have been drawn since the start of the run.
    pub position: u64,
    /// How many tokens the step had, over all ranks: the weight of a loss term.
    pub tokens: f64,
    /// How long the step took from the end of the last one, waiting for data included, evaluation and saving not.
    pub time: Duration,
    /// How long it waited for data.
    pub data_wait: Duration,
    /// How many steps were loaded when this one was asked for, itself included: with none it waited.
    pub data_ahead: usize,
    /// The fraction in which pipeline stages waited for each other: see [`Engine::bubble`](crate::Engine::bubble).
    pub bubble: Option<f64>,
    /// How many steps of the run were skipped so far; none without mixed precision.
    pub skipped: Option<u64>,
}

impl StepRecord {
    /// Tokens of all ranks in a second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens / self.time.as_secs_f64().max(1e-9)
    }

    /// Floating-point operations of all ranks in a second, where the step's are known: see [`StepReport::flops`].
    pub fn flops_per_second(&self) -> Option<f64> {
        self.report.flops.map(|flops| flops / self.time.as_secs_f64().max(1e-9))
    }

    /// Samples of all ranks in a second.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// What logs write of the step, by name, but for its number.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, StepValue<'_>)> {
        VALUES.iter().map(|(name, value)| (*name, value(self)))
    }

    /// The numbers among [`values`](Self::values) that are known, each with a name of its own: `loss`, `terms/NAME`,
    /// `metrics/NAME`; of several under one name `metrics/NAME/0` and on.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        self.values().flat_map(|(name, value)| value.scalars(name)).collect()
    }
}

/// What a step tells under a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepValue<'a> {
    /// A number.
    Number(f64),
    /// How many of something.
    Count(u64),
    /// Numbers with names, one of each.
    Named(&'a [(String, f64)]),
    /// Numbers with names, several of each.
    Lists(&'a BTreeMap<String, Vec<f64>>),
    /// Not known of this step, or of no step of this run.
    Unknown,
}

impl StepValue<'_> {
    fn scalars(self, name: &str) -> Vec<(String, f64)> {
        match self {
            Self::Number(number) => vec![(name.to_string(), number)],
            Self::Count(count) => vec![(name.to_string(), count as f64)],
            Self::Named(numbers) => numbers.iter().map(|(of, number)| (format!("{name}/{of}"), *number)).collect(),
            Self::Lists(lists) => {
                let list = |(of, numbers): (&String, &Vec<f64>)| match numbers[..] {
                    [number] => vec![(format!("{name}/{of}"), number)],
                    _ => {
                        numbers.iter().enumerate().map(|(at, number)| (format!("{name}/{of}/{at}"), *number)).collect()
                    }
                };
                lists.iter().flat_map(list).collect()
            }
            Self::Unknown => Vec::new(),
        }
    }
}

impl From<f64> for StepValue<'_> {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for StepValue<'_> {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl<T: Into<Self>> From<Option<T>> for StepValue<'_> {
    fn from(known: Option<T>) -> Self {
        known.map_or(Self::Unknown, Into::into)
    }
}

type Read = for<'a> fn(&'a StepRecord) -> StepValue<'a>;

/// What a step tells, by name.
const VALUES: [(&str, Read); 16] = [
    ("loss", |step| step.report.loss.into()),
    ("grad_norm", |step| step.report.grad_norm.into()),
    ("lr", |step| step.rate.into()),
    ("tokens_per_second", |step| step.tokens_per_second().into()),
    ("tokens", |step| step.tokens.into()),
    ("samples", |step| (step.samples as u64).into()),
    ("flops", |step| step.report.flops.into()),
    ("seconds", |step| step.time.as_secs_f64().into()),
    ("data_wait", |step| step.data_wait.as_secs_f64().into()),
    ("data_ahead", |step| (step.data_ahead as u64).into()),
    ("bubble", |step| step.bubble.into()),
    ("loss_scale", |step| step.report.loss_scale.into()),
    ("skipped", |step| step.skipped.into()),
    ("terms", |step| StepValue::Named(&step.report.terms)),
    ("weights", |step| StepValue::Named(&step.report.weights)),
    ("metrics", |step| StepValue::Lists(&step.report.metrics)),
];

/// The name of a step's number.
pub(super) const STEP: &str = "step";

/// Whether a step tells something under this name.
pub(super) fn is_of_step(name: &str) -> bool {
    name == STEP || VALUES.iter().any(|(known, _)| *known == name)
}

/// What one evaluation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The step after which it ran.
    pub step: u64,
    /// Named values: `valid_loss`, and what else the hooks measured on this rank.
    pub values: Values,
    /// How long it took.
    pub time: Duration,
}

impl Evaluation {
    /// A value by its name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many steps are done, those before a resume included.
    pub steps: u64,
    /// How many samples were drawn.
    pub position: u64,
    /// Whether it was asked to stop before its last step.
    pub stopped: bool,
    /// Whether it was to end at once: what is left to be done is left to the run that goes on.
    pub interrupted: bool,
    /// The signal that was the reason, on any rank.
    pub signal: Option<i32>,
    /// The last step; none if there was nothing left to do.
    pub last: Option<StepRecord>,
    /// The last evaluation.
    pub evaluation: Option<Evaluation>,
}

impl Summary {
    /// With what a program ends that made this run: 128 + the signal that interrupted it, as a shell shows it; else 0.
    pub fn exit_code(&self) -> ExitCode {
        let signal = self.signal.and_then(|signal| u8::try_from(signal).ok());
        signal.and_then(|signal| signal.checked_add(128)).map_or(ExitCode::SUCCESS, ExitCode::from)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A step whose loss falls with its number.
    pub(crate) fn record(step: u64) -> StepRecord {
        let loss = 10.0 / (2.0 + step as f64);
        let report = StepReport {
            loss,
            terms: vec![("cross_entropy".into(), loss * 0.9), ("auxiliary".into(), 0.1)],
            grad_norm: 1.0 / 3.0,
            weights: vec![("cross_entropy".into(), 500.0), ("auxiliary".into(), 8.0)],
            metrics: [("tokens_per_expert".to_string(), vec![3.0, 5.0])].into(),
            outputs: Default::default(),
            loss_scale: None,
            flops: None,
            skipped: false,
        };
        StepRecord {
            step,
            report,
            rate: 1e-3,
            samples: 16,
            position: 16 * step,
            tokens: 500.0,
            time: Duration::from_millis(250),
            data_wait: Duration::from_micros(125),
            data_ahead: 2,
            bubble: None,
            skipped: None,
        }
    }

    pub(crate) fn evaluation(step: u64) -> Evaluation {
        let values = vec![("valid_loss".to_string(), 11.0 / (2.0 + step as f64)), ("bleu".to_string(), step as f64)];
        Evaluation { step, values, time: Duration::from_secs(1) }
    }

    #[test]
    fn all_numbers_of_a_step_have_names() {
        let record = StepRecord { skipped: Some(3), ..record(2) };
        let found = record.scalars();
        let of = |name: &str| found.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        assert_eq!(of("loss"), Some(record.report.loss));
        assert_eq!(of("lr"), Some(record.rate));
        assert_eq!(of("terms/cross_entropy"), Some(record.report.terms[0].1));
        assert_eq!(of("weights/auxiliary"), Some(8.0));
        assert_eq!(of("metrics/tokens_per_expert/1"), Some(5.0));
        assert_eq!([of("skipped"), of("samples")], [Some(3.0), Some(16.0)]);
        assert_eq!([of("loss_scale"), of("flops")], [None, None], "they are not known");
        assert!(["step", "loss", "metrics"].iter().all(|name| is_of_step(name)) && !is_of_step("valid_loss"));
    }

    #[test]
    fn tokens_per_second_is_tokens_over_time() {
        assert_eq!(record(1).tokens_per_second(), 2000.0);
        assert!(StepRecord { time: Duration::ZERO, ..record(1) }.tokens_per_second().is_finite());
    }
}
