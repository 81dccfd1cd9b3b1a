//! Runs that are saved under one layout and go on under another, in f64.
//!
//! Each makes two steps, is saved, and makes a third one; under each layout that loads it, the third step is made, too.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use burn::optim::AdamWConfig;
use burn::tensor::TensorData;
use epl::models::t5::T5;
use epl::optim::OptimizerConfig;
use epl::testing::largest_error;
use epl::{Config, Engine, EngineSettings, Epl, Model, Result};

use crate::parity::{Case, Layout, micro_batches};

pub const RATE: f64 = 0.02;

/// A model, its data, and a layout of both.
pub trait Run: fmt::Debug + Sync {
    type Model: Model;

    fn config(&self) -> Config;

    fn engine<O: OptimizerConfig>(&self, epl: &Epl, optimizer: &O) -> Result<Engine<Self::Model>>;

    fn step(&self, epl: &Epl, engine: &mut Engine<Self::Model>, number: u64) -> Result<()>;
}

/// A T5 under a layout.
pub struct T5Run<'a> {
    pub case: &'a Case,
    pub layout: Layout,
}

impl fmt::Debug for T5Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layout.fmt(f)
    }
}

impl Run for T5Run<'_> {
    type Model = T5;

    fn config(&self) -> Config {
        self.layout.config()
    }

    fn engine<O: OptimizerConfig>(&self, epl: &Epl, optimizer: &O) -> Result<Engine<T5>> {
        let settings = EngineSettings { clip_norm: self.case.clip_norm, ..EngineSettings::from_config(epl.config()) };
        Engine::new(epl.build(|place| self.case.init(place))?, optimizer, settings)
    }

    fn step(&self, epl: &Epl, engine: &mut Engine<T5>, number: u64) -> Result<()> {
        engine.step(micro_batches(epl, self.case, number, self.layout.accumulation), RATE).map(|_| ())
    }
}

/// A case under each of these layouts.
pub fn t5<'a>(case: &'a Case, layouts: &[Layout]) -> Vec<T5Run<'a>> {
    layouts.iter().map(|layout| T5Run { case, layout: *layout }).collect()
}

/// What a run has, gathered.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub steps: u64,
    pub parameters: BTreeMap<String, TensorData>,
    pub state: BTreeMap<String, TensorData>,
}

impl State {
    /// Collective.
    pub fn of<M: Model>(engine: &Engine<M>) -> Result<Self> {
        Ok(Self { steps: engine.steps(), parameters: engine.parameters()?, state: engine.optimizer_state()? })
    }

    /// The largest error of a tensor.
    pub fn error(&self, other: &Self) -> f64 {
        let parameters = largest_error(&self.parameters, &other.parameters).1;
        parameters.max(largest_error(&self.state, &other.state).1)
    }
}

/// Runs on every rank; what the first one returns.
pub fn on_ranks<R: Run, T: Send>(run: &R, f: impl Fn(&Epl) -> Result<T> + Sync) -> T {
    let ran = epl::launch(&run.config(), |epl| f(&epl));
    ran.unwrap_or_else(|error| panic!("{run:?}: {error}")).remove(0)
}

/// Two steps, a checkpoint, a third step: the state when it was saved, and at the end.
pub fn saved<R: Run, O: OptimizerConfig + Sync>(run: &R, optimizer: &O, folder: &Path) -> (State, State) {
    on_ranks(run, |epl| {
        let mut engine = run.engine(epl, optimizer)?;
        (0..2).try_for_each(|number| run.step(epl, &mut engine, number))?;
        engine.save(folder)?;
        let then = State::of(&engine)?;
        run.step(epl, &mut engine, 2)?;
        Ok((then, State::of(&engine)?))
    })
}

/// The state when it was loaded, and after the third step.
pub fn loaded<R: Run, O: OptimizerConfig + Sync>(run: &R, optimizer: &O, folder: &Path) -> (State, State) {
    on_ranks(run, |epl| {
        let mut engine = run.engine(epl, optimizer)?;
        engine.load(folder)?;
        engine.check_replicas()?;
        let then = State::of(&engine)?;
        run.step(epl, &mut engine, 2)?;
        Ok((then, State::of(&engine)?))
    })
}

/// Saves under each layout, and loads what it saved under itself and under others, which are so many further on in the list;
/// how many pairs that were.
pub fn matrix<R: Run, O: OptimizerConfig + Sync>(runs: &[R], optimizer: &O, others: &[usize]) -> usize {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    for (number, from) in runs.iter().enumerate() {
        let checkpoint = folder.path().join(number.to_string());
        let (then, end) = saved(from, optimizer, &checkpoint);
        // What has other shapes than its parameter is seen by the third step.
        assert!(then.state.len() >= then.parameters.len() || !O::ELEMENT_WISE, "every parameter has state");
        for other in [0].iter().chain(others) {
            let to = &runs[(number + other) % runs.len()];
            let (found, found_end) = loaded(to, optimizer, &checkpoint);
            assert_same(&found, &then, 0.0, &format!("{from:?} to {to:?}, when it was loaded"));
            let bound = if *other == 0 { 0.0 } else { 1e-10 };
            assert_same(&found_end, &end, bound, &format!("{from:?} to {to:?}, after another step"));
        }
    }
    runs.len() * (others.len() + 1)
}

/// To the bit where the bound is zero.
pub fn assert_same(found: &State, expected: &State, bound: f64, what: &str) {
    let is_same = if bound == 0.0 { found == expected } else { found.error(expected) <= bound };
    assert!(is_same, "{what}: off by {:e}, and not by {bound:e}", found.error(expected));
}

pub fn adam_w() -> AdamWConfig {
    AdamWConfig::new().with_epsilon(1e-4)
}
