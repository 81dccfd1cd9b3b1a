//! A run as its hooks see it: where it stands, and what they may ask of it.

use std::collections::{BTreeSet, VecDeque};

use epl_comm::ReduceOp;
use serde::Serialize;
use serde_json::Value;

use super::checkpoint::{FailedSave, RunState};
use super::record::{Evaluation, StepRecord, Summary};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::json::json;
use crate::model::context::Context;
use crate::model::segment::Model;

/// A run of the trainer: what every [`Hook`](super::Hook) is given.
///
/// A hook asks: the run is saved, evaluated or ended between two steps, not at once. What was asked for is asked for
/// on every rank alike, except the end, on which the ranks agree.
pub struct Run<M: Model> {
    engine: Engine<M>,
    /// Step and position move; the rest is how the run is set up.
    saved: RunState,
    steps: u64,
    begun_at: u64,
    changes: Vec<String>,
    last: Option<StepRecord>,
    evaluation: Option<Evaluation>,
    saved_at: Option<u64>,
    /// The last one that could not be written, and whether that is still to be told.
    failed_save: (Option<FailedSave>, bool),
    /// All warnings, told or not.
    warnings: BTreeSet<String>,
    /// Those that are still to be told.
    untold: VecDeque<String>,
    /// The position at which the data ends.
    data_end: Option<u64>,
    asked: Asked,
    /// What the ranks agreed on.
    ending: Ending,
    signal: Option<i32>,
}

/// What hooks have asked for.
#[derive(Default)]
struct Asked {
    save: bool,
    evaluation: bool,
    end: Ending,
    /// Because of which it is to end.
    signal: Option<i32>,
}

/// Whether a run is to end before its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    #[default]
    No,
    /// With what falls due at the end.
    Whole,
    /// Saved, and no more.
    AtOnce,
}

impl<M: Model> Run<M> {
    /// A run of `steps` steps that begins where `saved` stands.
    pub fn new(engine: Engine<M>, steps: u64, saved: RunState) -> Self {
        Self {
            engine,
            steps,
            begun_at: saved.step,
            saved,
            changes: Vec::new(),
            last: None,
            evaluation: None,
            saved_at: None,
            failed_save: (None, false),
            warnings: BTreeSet::new(),
            untold: VecDeque::new(),
            data_end: None,
            asked: Asked::default(),
            ending: Ending::No,
            signal: None,
        }
    }

    /// Says at which position the data ends, and with it the run.
    #[must_use]
    pub fn with_data_end(mut self, end: Option<u64>) -> Self {
        self.data_end = end;
        self
    }

    /// The engine, and with it the model and the groups of ranks.
    pub fn engine(&self) -> &Engine<M> {
        &self.engine
    }

    /// The engine, to make steps or to load a checkpoint.
    pub fn engine_mut(&mut self) -> &mut Engine<M> {
        &mut self.engine
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        self.engine.context()
    }

    /// Whether this is the first rank of the world, the one that writes.
    pub fn is_first_rank(&self) -> bool {
        self.context().world().rank() == 0
    }

    /// How many steps are done, those before a resume included.
    pub fn step(&self) -> u64 {
        self.saved.step
    }

    /// After how many steps the run is over.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How many steps were done when it began: 0, or that of the checkpoint it resumed from.
    pub fn begun_at(&self) -> u64 {
        self.begun_at
    }

    /// How many samples were drawn.
    pub fn position(&self) -> u64 {
        self.saved.position
    }

    /// Whether no step follows: all are done, the data has ended, or the ranks agreed to end.
    pub fn is_over(&self) -> bool {
        let is_drawn = self.data_end.is_some_and(|end| self.position() >= end);
        self.ending > Ending::No || is_drawn || self.step() >= self.steps
    }

    /// Whether the ranks agreed to end before the last step.
    pub fn is_ended(&self) -> bool {
        self.ending > Ending::No && self.step() < self.steps
    }

    /// Whether they agreed to end at once: after a checkpoint, and without an evaluation, which the run that goes on
    /// makes where it is due.
    pub fn is_interrupted(&self) -> bool {
        self.ending == Ending::AtOnce
    }

    /// The signal that interrupted it, on any rank.
    pub fn signal(&self) -> Option<i32> {
        self.signal
    }

    /// Whether something falls due after this step: every so many steps, and at the end.
    pub fn is_due(&self, every: Option<u64>) -> bool {
        self.is_over() || every.is_some_and(|every| self.step().is_multiple_of(every))
    }

    /// The last step that was made; none before the first.
    pub fn last(&self) -> Option<&StepRecord> {
        self.last.as_ref()
    }

    /// The last evaluation.
    pub fn evaluation(&self) -> Option<&Evaluation> {
        self.evaluation.as_ref()
    }

    /// Takes over an evaluation, such as one that was made before a resume.
    pub fn set_evaluation(&mut self, evaluation: Evaluation) {
        self.evaluation = Some(evaluation);
    }

    /// What a checkpoint of this moment says, and what one to resume from must agree with.
    pub fn saved(&self) -> &RunState {
        &self.saved
    }

    /// The step after which the run was last saved, or from which it was resumed.
    pub fn saved_at(&self) -> Option<u64> {
        self.saved_at
    }

    /// What its configuration says otherwise than that of the checkpoint: "`train.steps` 800, now 1000".
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Goes on where a checkpoint stands that the engine has loaded.
    pub fn resume(&mut self, saved: RunState) {
        self.changes = saved.changes(&self.saved);
        self.begun_at = saved.step;
        self.saved_at = Some(saved.step);
        (self.saved.step, self.saved.position, self.saved.kept) = (saved.step, saved.position, saved.kept);
    }

    /// Keeps a value in the checkpoints from now on, such as what a hook has counted. That of the first rank is kept.
    ///
    /// # Errors
    ///
    /// When it is nothing that JSON can hold.
    pub fn keep(&mut self, name: &str, value: &impl Serialize) -> Result<()> {
        self.saved.kept.insert(name.to_string(), json(name, value)?);
        Ok(())
    }

    /// What was kept under this name, also before a resume.
    pub fn kept(&self, name: &str) -> Option<&Value> {
        self.saved.kept.get(name)
    }

    /// Asks for a checkpoint before the next step. On every rank.
    pub fn request_save(&mut self) {
        self.asked.save = true;
    }

    /// Asks for an evaluation before the next step, after a checkpoint if one is asked for. On every rank.
    pub fn request_evaluation(&mut self) {
        self.asked.evaluation = true;
    }

    /// Asks for the end of the run. One rank is enough: see [`agree_to_end`](Self::agree_to_end).
    pub fn request_end(&mut self) {
        self.asked.end = self.asked.end.max(Ending::Whole);
    }

    /// Asks for the end of the run at once: see [`is_interrupted`](Self::is_interrupted). One rank is enough.
    pub fn request_interruption(&mut self) {
        self.asked.end = Ending::AtOnce;
    }

    /// Asks for the same because of a signal to this process.
    pub(super) fn request_interruption_by(&mut self, signal: i32) {
        self.request_interruption();
        self.asked.signal = Some(signal);
    }

    /// Ends the run after this step if any rank has asked for it. Collective.
    ///
    /// # Errors
    ///
    /// When a peer failed.
    pub fn agree_to_end(&mut self) -> Result<()> {
        let [end, signal] = self.most([self.asked.end as i32, self.asked.signal.unwrap_or(0)])?;
        let agreed = [Ending::Whole, Ending::AtOnce].into_iter().find(|ending| *ending as i32 == end);
        self.ending = self.ending.max(agreed.unwrap_or_default());
        self.signal = Some(signal).filter(|signal| *signal > 0).or(self.signal);
        Ok(())
    }

    /// Whether a signal has come to any rank's process, though the run is over. Collective.
    pub(super) fn agree_on_signal(&mut self, own: Option<i32>) -> Result<()> {
        let [signal] = self.most([own.unwrap_or(0)])?;
        self.signal = self.signal.or(Some(signal).filter(|signal| *signal > 0));
        Ok(())
    }

    /// Whether any rank says yes. Collective.
    ///
    /// # Errors
    ///
    /// When a peer failed.
    pub fn any(&self, yes: bool) -> Result<bool> {
        Ok(self.most([i32::from(yes)])? > [0])
    }

    /// The largest of what the ranks say, number by number. Collective.
    fn most<const N: usize>(&self, mine: [i32; N]) -> Result<[i32; N]> {
        let world = self.context().world();
        if world.size() == 1 {
            return Ok(mine);
        }
        let most = world.all_reduce_values(&mine.map(f64::from), ReduceOp::Max)?;
        Ok(std::array::from_fn(|number| most[number] as i32))
    }

    /// How it stands, in one value.
    pub fn summary(&self) -> Summary {
        Summary {
            steps: self.step(),
            position: self.position(),
            stopped: self.is_ended(),
            interrupted: self.is_interrupted(),
            signal: self.signal,
            last: self.last.clone(),
            evaluation: self.evaluation.clone(),
        }
    }

    /// The engine; the run is over.
    pub fn into_engine(self) -> Engine<M> {
        self.engine
    }

    /// Moves on by one step, which drew samples up to `position`.
    pub(super) fn advance(&mut self, position: u64) {
        (self.saved.step, self.saved.position) = (self.saved.step + 1, position);
    }

    /// Goes on with other samples, from `position` on, after a step that was skipped.
    pub(super) fn skip(&mut self, position: u64) {
        self.saved.position = position;
    }

    pub(super) fn set_last(&mut self, record: StepRecord) {
        self.last = Some(record);
    }

    pub(super) fn take_save(&mut self) -> bool {
        std::mem::take(&mut self.asked.save)
    }

    pub(super) fn was_saved(&mut self) {
        self.saved_at = Some(self.step());
    }

    /// The last checkpoint that could not be written; none if all were.
    pub fn failed_save(&self) -> Option<&FailedSave> {
        self.failed_save.0.as_ref()
    }

    /// Notes that a checkpoint could not be written.
    pub(super) fn note_failed_save(&mut self, failed: Option<FailedSave>) {
        if let Some(failed) = failed {
            if self.saved_at == Some(failed.step) {
                self.saved_at = None;
            }
            self.failed_save = (Some(failed), true);
        }
    }

    /// Goes on where a file cannot be written, such as on a full disk: what is not lost by that is told as a warning. A
    /// fault that lasts is told once.
    pub fn forgive(&mut self, written: Result<()>) {
        let Err(error) = written else { return };
        let warning = error.to_string();
        if self.warnings.insert(warning.clone()) {
            self.untold.push_back(warning);
        }
    }

    /// The same of several.
    pub(super) fn forgive_all(&mut self, errors: Vec<Error>) {
        errors.into_iter().for_each(|error| self.forgive(Err(error)));
    }

    /// A warning that was not told yet.
    pub(super) fn take_warning(&mut self) -> Option<String> {
        self.untold.pop_front()
    }

    /// What was not told yet.
    pub(super) fn take_failed_save(&mut self) -> Option<FailedSave> {
        std::mem::take(&mut self.failed_save.1).then(|| self.failed_save.0.clone()).flatten()
    }

    pub(super) fn take_evaluation(&mut self) -> bool {
        std::mem::take(&mut self.asked.evaluation)
    }
}
