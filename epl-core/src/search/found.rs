//! What a search found, in words.

use std::cmp::Ordering;
use std::fmt;

use toml::Value;

use super::candidate::{Candidate, SEARCH};
use super::judge::{Judged, KnownCosts};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::{Amount, MemoryEstimate, Tier, Tiers};
use crate::probe::measure::NOT_COUNTED;
use crate::simulate::StepTime;

/// Runners-up that are told.
const TOLD: usize = 5;

/// A layout, with what it is predicted to take.
#[derive(Clone, Debug)]
pub struct Choice {
    pub(super) words: String,
    pub(super) sizes: [usize; 4],
    pub(super) settings: Vec<(&'static str, Value)>,
    /// Options of a search that are given: without one they are refused.
    of_search: Vec<&'static str>,
    pub(super) config: Config,
    pub(super) seconds: f64,
    pub(super) time: StepTime,
    /// Of which that is.
    rank: usize,
    pub(super) memory: Vec<MemoryEstimate>,
    /// Where it was run.
    measured: Option<f64>,
    known: KnownCosts,
}

impl Choice {
    /// Of a search under what is given.
    pub(super) fn found(candidate: &Candidate, judged: Judged, given: &Config) -> Result<Self> {
        let default = Config::default();
        let of_search = SEARCH.into_iter().filter(|key| given.get(key) != default.get(key)).collect();
        let found = Self::new(candidate, judged, candidate.config(given)?);
        Ok(Self { settings: candidate.settings(given), of_search, ..found })
    }

    /// Of a configuration of which nothing was chosen.
    pub(super) fn new(candidate: &Candidate, judged: Judged, config: Config) -> Self {
        let Judged { seconds, time, rank, memory, known, .. } = judged;
        Self {
            words: candidate.words(),
            sizes: candidate.shape.sizes,
            settings: Vec::new(),
            of_search: Vec::new(),
            config,
            seconds,
            time,
            rank,
            memory,
            measured: None,
            known,
        }
    }

    /// The configuration: what was given, and what was chosen.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it is called.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Seconds of a step, until the last rank is done, as predicted.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Seconds of a step that was measured, where `auto.measure` has it run.
    pub fn measured(&self) -> Option<f64> {
        self.measured
    }

    /// Where the predicted ones go, on the stage that computes longest.
    pub fn time(&self) -> &StepTime {
        &self.time
    }

    /// The rank of which that is: the first one of this stage that shares its layers.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Its sizes along data, stages, tensor and expert.
    pub(crate) fn sizes(&self) -> [usize; 4] {
        self.sizes
    }

    /// What the rank of each stage needs that needs most.
    pub fn memory(&self) -> &[MemoryEstimate] {
        &self.memory
    }

    /// The options that were chosen, as lines of a configuration's file that gives what was given, too; of that, a comment names the
    /// options that say something of a search, and are to be left out.
    pub fn settings(&self) -> String {
        let chosen = self.settings.iter().map(|(key, value)| format!("{key} = {value}\n"));
        let left_out = self.of_search.iter().map(|key| format!("# without {key}, which is of a search\n"));
        ["auto.auto_parallel = false\n".to_string()].into_iter().chain(chosen).chain(left_out).collect()
    }

    /// What it loses against a better one: as a part of the step, and where most.
    fn loss(&self, best: &Self) -> String {
        let more = 100.0 * (self.seconds / best.seconds - 1.0);
        let parts = self.time.parts().into_iter().zip(best.time.parts());
        let gain = |((what, seconds), (_, before)): ((&'static str, f64), (&str, f64))| {
            (what, 100.0 * (seconds - before) / best.seconds)
        };
        let most = parts.map(gain).max_by(|one, other| one.1.total_cmp(&other.1));
        let told = match most.filter(|(_, percent)| *percent >= 0.1) {
            Some((what, percent)) => format!("{more:+.1} %, of it {percent:.1} in {what}"),
            None => format!("{more:+.1} %"),
        };
        match self.measured {
            Some(seconds) => format!("{told}; measured {:.1} ms", seconds * 1e3),
            None => told,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\npredicted step {}", self.words, self.time)?;
        if let Some(seconds) = self.measured {
            write!(f, "\nmeasured step {:.1} ms", seconds * 1e3)?;
        }
        for (stage, memory) in self.memory.iter().enumerate() {
            let least = if memory.unknown().any(|line| line.tier == Tier::Device) { "at least " } else { "" };
            write!(f, "\nstage {stage}: {least}{} of the device", Amount(memory.peak(Tier::Device)))?;
        }
        let tiers = Tiers::from_config(&self.config);
        if [Tier::Host, Tier::Disk].into_iter().any(|tier| tiers.any(tier)) {
            let update = match (tiers.state, self.known.host_update) {
                (Tier::Device, _) => "",
                (_, true) => ", but for what an update there brings over and back",
                (_, false) => ", and that an update there takes another time than on the device",
            };
            write!(f, "\nnot counted: what moves between the device and where state is put away{update}")?;
        }
        if !self.known.calls {
            write!(
                f,
                "\nnot counted: collectives, as a world that is only thought of sends nothing; describe its links \
                 (`CostTable::over_links`), or let the ranks be there"
            )?;
        }
        if self.memory.iter().flat_map(MemoryEstimate::unknown).any(|line| line.tier == Tier::Device) {
            write!(f, "\nnot counted: activations, {NOT_COUNTED}")?;
        }
        Ok(())
    }
}

/// What a search found. Printed: the best layout with its reasons, and options to paste that give it again.
#[derive(Clone, Debug)]
pub struct Found {
    /// From the best on.
    choices: Vec<Choice>,
    refused: Vec<(String, String)>,
    kept: Vec<String>,
    layouts: usize,
    tried: usize,
    least: f64,
    /// Devices that are better left out, by rank, and the layout of the others.
    without: Option<(Vec<usize>, Box<Choice>)>,
}

impl Found {
    /// Of at least one choice, the best first.
    pub(super) fn new(
        choices: Vec<Choice>,
        (refused, kept): (Vec<(String, String)>, Vec<String>),
        [layouts, tried]: [usize; 2],
        least: f64,
    ) -> Self {
        Self { choices, refused, kept, layouts, tried, least, without: None }
    }

    /// With devices that may be left out, by rank, and the best layout of the others: told where its step is shorter.
    pub(super) fn with_fewer(mut self, left_out: Vec<usize>, choice: Choice) -> Self {
        self.without = (choice.seconds < self.best().seconds).then(|| (left_out, Box::new(choice)));
        self
    }

    /// Slower or smaller devices without which a step is predicted to be shorter, by rank, and the layout of the others, which are
    /// numbered anew.
    pub fn without(&self) -> Option<(&[usize], &Choice)> {
        self.without.as_ref().map(|(ranks, choice)| (&ranks[..], &**choice))
    }

    /// The best ones in the order of what they were measured to take: the seconds that `measure` says, or why the layout cannot be
    /// built, which leaves it out.
    ///
    /// # Errors
    ///
    /// When a run fails, or none of these layouts can be built: which.
    pub(crate) fn measured(
        mut self,
        best: usize,
        mut measure: impl FnMut(&Config) -> Result<Result<f64, String>>,
    ) -> Result<Self> {
        let rest = self.choices.split_off(best.min(self.choices.len()));
        let mut run = Vec::new();
        for mut choice in std::mem::take(&mut self.choices) {
            let failed = |error: Error| {
                Error::invalid(format!("auto.measure = {best} runs {}, and that failed: {error}", choice.words))
            };
            match measure(&choice.config).map_err(failed)? {
                Ok(seconds) => {
                    choice.measured = Some(seconds);
                    run.push(choice);
                }
                Err(reason) => self.refused.push((choice.words, format!("auto.measure could not run it: {reason}"))),
            }
        }
        run.sort_by(|one, other| one.measured.partial_cmp(&other.measured).unwrap_or(Ordering::Equal));
        match run.is_empty() && best > 0 {
            true => {
                let reasons = self.refused.iter().map(|(words, reason)| format!("\n{words}: {reason}"));
                let reasons: String = reasons.collect();
                Err(Error::invalid(format!("auto.measure = {best}: none of the best layouts can be built{reasons}")))
            }
            false => Ok(Self { choices: run.into_iter().chain(rest).collect(), ..self }),
        }
    }

    /// The layout that takes least: as predicted, or as measured.
    pub fn best(&self) -> &Choice {
        &self.choices[0]
    }

    /// The others that were simulated: first those that were run, from the faster to the slower, then the rest as predicted.
    pub fn next(&self) -> &[Choice] {
        &self.choices[1..]
    }

    /// Layouts that are not possible, and why.
    pub fn refused(&self) -> &[(String, String)] {
        &self.refused
    }

    /// What no layout was allowed to change, though it is not given: with another number of replicas or micro-batches some layers
    /// compute something else. With the reason, and the option that says another.
    pub fn kept(&self) -> &[String] {
        &self.kept
    }

    /// Seconds that no layout of those that were looked at can be below, within what is simulated.
    pub fn bound(&self) -> f64 {
        self.least
    }

    /// All that were run, the best of each other division of the ranks, and the best of all with other micro-batches or levels.
    fn runners_up(&self) -> Vec<&Choice> {
        let mut told: Vec<&Choice> = vec![self.best()];
        let (run, rest) = self.next().split_at(self.next().partition_point(|choice| choice.measured.is_some()));
        for choice in rest {
            if told.iter().all(|known| known.sizes != choice.sizes) {
                told.push(choice);
            }
        }
        told.truncate(TOLD);
        told.extend(rest.iter().find(|choice| choice.sizes == self.best().sizes));
        run.iter().chain(told.split_off(1)).collect()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let best = self.best();
        writeln!(f, "{best}")?;
        writeln!(
            f,
            "none of the {} layouts that were looked at is predicted to take less than {:.1} ms; {} steps were simulated",
            self.layouts,
            self.least * 1e3,
            self.tried
        )?;
        let runners = self.runners_up();
        if !runners.is_empty() {
            writeln!(f, "next:")?;
        }
        for choice in runners {
            writeln!(f, "  {}: {}", choice.words, choice.loss(best))?;
        }
        if let Some((ranks, choice)) = self.without() {
            writeln!(f, "without ranks {ranks:?}, start the others alone: {}: {}", choice.words, choice.loss(best))?;
        }
        for reason in &self.kept {
            writeln!(f, "kept: {reason}")?;
        }
        for (words, reason) in &self.refused {
            writeln!(f, "not possible, {words}: {reason}")?;
        }
        write!(f, "settings:\n{}", best.settings())
    }
}
