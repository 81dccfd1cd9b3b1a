//! The search.

use std::cmp::Ordering;

use super::candidate::Candidate;
use super::column::SegmentCost;
use super::cuts::{CutChain, Recompute, StageLimit, cut};
use super::found::{Choice, Found};
use super::judge::{Judge, Judged};
use super::space::{self, Shape, bound, levels};
use crate::config::{Config, OffloadLevel, ZeroLevel};
use crate::error::{Error, Result};
use crate::memory::OptimizerState;
use crate::schedule::{Action, ActionKind};
use crate::topology::cluster::Mesh;

/// How many of the best choices are improved by moves of their cuts.
const IMPROVED: usize = 8;
/// How many moves are tried at most for each of them.
const MOVES: usize = 200;
/// How often memory that was taken to be free, and is not, is taken away before a level is given up.
const CORRECTIONS: usize = 4;

/// Finds the layout that takes least, of those that what is given allows.
///
/// # Errors
///
/// When none is possible, or none fits: why, with the one that comes nearest.
pub(crate) fn search(judge: &Judge<'_>, given: &Config, segments: usize) -> Result<Found> {
    let ranks = judge.cluster.world_size();
    let mut run = SearchRun { judge, given, choices: Vec::new(), over: None, refused: Vec::new(), tried: 0 };
    let mut shapes = Vec::new();
    for shape in space::shapes(given, ranks, judge.batch, segments) {
        match run.costs(&shape) {
            Ok(costs) => shapes.push((bound(&costs, &shape), shape, costs)),
            Err(error) => run.refuse(shape_words(&shape), error.to_string()),
        }
    }
    let least = shapes.iter().map(|(bound, ..)| *bound).fold(f64::INFINITY, f64::min);
    // Of equal bounds the one with fewer axes and micro-batches first.
    shapes.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| simpler(&one.1, &other.1)));
    let count = shapes.len();
    for (bound, shape, costs) in shapes {
        if bound < run.best() {
            run.shape(&shape, &costs);
        }
    }
    run.choices.sort_by(better);
    for index in 0..run.choices.len().min(IMPROVED) {
        run.improve(index);
    }
    run.choices.sort_by(better);
    run.found(count, least)
}

/// What was found so far.
struct SearchRun<'a> {
    judge: &'a Judge<'a>,
    given: &'a Config,
    choices: Vec<(Candidate, Judged)>,
    /// The one that is least over the budget.
    over: Option<(Candidate, Judged)>,
    refused: Vec<(String, String)>,
    tried: usize,
}

fn better((one, judged): &(Candidate, Judged), (other, second): &(Candidate, Judged)) -> Ordering {
    let axes = |candidate: &Candidate| candidate.sizes.iter().filter(|size| **size > 1).count();
    judged.seconds.total_cmp(&second.seconds).then_with(|| axes(one).cmp(&axes(other)))
}

fn simpler(one: &Shape, other: &Shape) -> Ordering {
    let axes = |shape: &Shape| shape.sizes.iter().filter(|size| **size > 1).count();
    (axes(one), one.micro_batches, one.chunks).cmp(&(axes(other), other.micro_batches, other.chunks))
}

fn shape_words(shape: &Shape) -> String {
    candidate(shape, (ZeroLevel::Off, OffloadLevel::Off), CutChain::default()).words()
}

fn candidate(shape: &Shape, (zero, offload): (ZeroLevel, OffloadLevel), cut: CutChain) -> Candidate {
    let Shape { sizes, micro_batches, chunks, strategy } = *shape;
    Candidate { sizes, micro_batches, chunks, strategy, zero, offload, runs: cut.runs(), cuts: cut.cuts }
}

impl SearchRun<'_> {
    fn best(&self) -> f64 {
        self.choices.iter().map(|(_, judged)| judged.seconds).fold(f64::INFINITY, f64::min)
    }

    /// Remembers once why something cannot be.
    fn refuse(&mut self, words: String, reason: String) {
        if self.refused.iter().all(|(_, known)| *known != reason) {
            self.refused.push((words, reason));
        }
    }

    /// What segments take in micro-batches of the most rows.
    fn costs(&self, shape: &Shape) -> Result<Vec<SegmentCost>> {
        let first = candidate(shape, (ZeroLevel::Off, OffloadLevel::Off), CutChain::default());
        let mesh = Mesh::on_cluster(self.judge.cluster, &first.config(self.given)?)?;
        let rows = self.judge.rows(mesh.replicas(), shape.micro_batches);
        Ok(self.judge.column(&mesh)?.costs(rows[0], &mesh, self.judge.network))
    }

    /// Tries a layout at one level after the other, until nothing has to be run again.
    fn shape(&mut self, shape: &Shape, costs: &[SegmentCost]) {
        let (mut fits, mut was_stored) = (false, false);
        for level in levels(self.given, shape.sizes[0]) {
            // Nothing is put away where it fits on the device.
            if fits && level.1 != self.given.offload.level {
                return;
            }
            let is_stored = match self.level(shape, level, costs) {
                Ok(found) => {
                    fits |= found.is_some();
                    found == Some(true)
                }
                Err(error) => {
                    self.refuse(shape_words(shape), error.to_string());
                    false
                }
            };
            // Where all is stored as it is, shards of the optimizer's state may still be less to update.
            if was_stored || is_stored && level.0 != ZeroLevel::Off {
                return;
            }
            was_stored = is_stored;
        }
    }

    /// Tries a layout at a level: whether all of it is stored; none where it does not fit.
    fn level(
        &mut self,
        shape: &Shape,
        level: (ZeroLevel, OffloadLevel),
        costs: &[SegmentCost],
    ) -> Result<Option<bool>> {
        let budget = self.judge.budget.map_or(f64::INFINITY, |budget| budget as f64 / (1.0 + self.judge.margin));
        let stages = shape.sizes[1];
        let mut free = vec![budget; stages];
        let mut limits = self.limits(shape, level, &free)?;
        for _ in 0..CORRECTIONS {
            let Some(found) = cut(costs, &limits) else { break };
            match self.accept(self.cut_candidate(shape, level, found))? {
                Ok(accepted) => return Ok(Some(self.choices[accepted].0.runs.is_empty())),
                Err(over) => free.iter_mut().zip(&over).for_each(|(free, over)| *free -= *over as f64),
            }
            limits = self.limits(shape, level, &free)?;
        }
        // The sums of a cut are rougher than a plan's: what seems to fit nowhere is judged as it needs the least.
        let Some(found) = cut(costs, &least(&limits)) else { return Ok(None) };
        let Ok(accepted) = self.accept(self.cut_candidate(shape, level, found))? else { return Ok(None) };
        self.improve(accepted);
        Ok(Some(self.choices[accepted].0.runs.is_empty()))
    }

    /// Judges a layout, and takes it if it fits: its number, or by how much each stage is over the budget.
    fn accept(&mut self, candidate: Candidate) -> Result<Result<usize, Vec<u64>>> {
        let judged = self.judge(&candidate)?;
        if judged.over() == 0 {
            self.choices.push((candidate, judged));
            return Ok(Ok(self.choices.len() - 1));
        }
        let over = judged.over.clone();
        if self.over.as_ref().is_none_or(|(_, known)| judged.over() < known.over()) {
            self.over = Some((candidate, judged));
        }
        Ok(Err(over))
    }

    fn judge(&mut self, candidate: &Candidate) -> Result<Judged> {
        self.tried += 1;
        self.judge.judge(&candidate.config(self.given)?)
    }

    /// A layout that is cut; where every segment is run again, the level says so.
    fn cut_candidate(&self, shape: &Shape, level: (ZeroLevel, OffloadLevel), cut: CutChain) -> Candidate {
        let again = if runs_all(level) { Vec::new() } else { cut.again };
        let cuts = if self.cuts_are_free() { cut.cuts } else { Vec::new() };
        candidate(shape, level, CutChain { again, cuts, ..cut })
    }

    fn cuts_are_free(&self) -> bool {
        let dist = &self.given.dist;
        dist.custom_pipeline_stage_id.is_none()
            && dist.pipeline_num_layers.is_none()
            && !self.given.is_given("pipeline.cuts")
    }

    /// The limits of the parts of a layout, where a device of each stage has so many bytes free.
    fn limits(&self, shape: &Shape, level: (ZeroLevel, OffloadLevel), free: &[f64]) -> Result<Vec<StageLimit>> {
        let [data, stages, _, expert] = shape.sizes;
        let first = candidate(shape, level, CutChain::default()).config(self.given)?;
        let order = crate::plan::Order::from_config(&first, stages, shape.micro_batches)?;
        let recompute = match (runs_all(level), space::may_recompute(self.given) && self.judge.budget.is_some()) {
            (true, _) => Recompute::All,
            (_, true) => Recompute::Least,
            _ => Recompute::Given,
        };
        let state = [data, data / expert].map(|replicas| self.state(level, replicas, shape.micro_batches));
        let part = |part: usize| {
            let actions = order.actions(part % stages, stages, shape.micro_batches)?;
            let in_flight = in_flight(&actions).div_ceil(shape.chunks);
            Ok(StageLimit { in_flight, bytes: free[part % stages] / shape.chunks as f64, state, recompute })
        };
        (0..stages * shape.chunks).map(part).collect()
    }

    /// Bytes of the device for each byte of parameters that so many replicas have.
    fn state(&self, (zero, offload): (ZeroLevel, OffloadLevel), replicas: usize, micro_batches: usize) -> f64 {
        if offload != OffloadLevel::Off {
            return 0.0;
        }
        let optimizer = match self.judge.state {
            OptimizerState::PerElement(count) => count as f64,
            OptimizerState::RowsAndColumns => 0.0,
        };
        let part = 1.0 / replicas as f64;
        let whole_gradients = match zero {
            ZeroLevel::Off | ZeroLevel::V0 => true,
            ZeroLevel::V1 => micro_batches > 1,
            ZeroLevel::V2 | ZeroLevel::V3 => false,
        };
        let parameters = if zero == ZeroLevel::V3 { part } else { 1.0 };
        let state = if zero == ZeroLevel::Off { optimizer } else { optimizer * part };
        parameters + state + if whole_gradients { 1.0 } else { part }
    }

    /// Moves the cuts of a choice by a segment, and stores what fits, as long as that helps.
    fn improve(&mut self, index: usize) {
        let mut moves = 0;
        loop {
            let (before, judged) = self.choices[index].clone();
            let mut best: Option<(Candidate, Judged)> = None;
            for candidate in neighbours(&before) {
                moves += 1;
                let Ok(other) = self.judge(&candidate) else { continue };
                let least = best.as_ref().map_or(judged.seconds, |(_, best)| best.seconds);
                if other.over() == 0 && other.seconds < least {
                    best = Some((candidate, other));
                }
            }
            match best {
                Some(better) => self.choices[index] = better,
                None => return,
            }
            if moves >= MOVES {
                return;
            }
        }
    }

    fn found(self, layouts: usize, least: f64) -> Result<Found> {
        let Self { judge, given, choices, over, refused, tried } = self;
        if choices.is_empty() {
            return Err(Error::invalid(nothing(judge, given, over, &refused)));
        }
        let choices = choices.into_iter().map(|(candidate, judged)| {
            let config = candidate.config(given)?;
            Ok(Choice {
                words: candidate.words(),
                settings: candidate.settings(given),
                config,
                time: judged.time,
                seconds: judged.seconds,
                memory: judged.memory,
                sizes: candidate.sizes,
            })
        });
        let choices = choices.collect::<Result<Vec<_>>>()?;
        Ok(Found::new(choices, refused, [layouts, tried], least))
    }
}

/// Why no layout is possible.
fn nothing(
    judge: &Judge<'_>,
    given: &Config,
    over: Option<(Candidate, Judged)>,
    refused: &[(String, String)],
) -> String {
    let Some((candidate, judged)) = over else {
        let reasons: Vec<String> = refused.iter().map(|(words, reason)| format!("{words}: {reason}")).collect();
        let reasons =
            if reasons.is_empty() { "the options that are given exclude each".to_string() } else { reasons.join("\n") };
        return format!("auto.auto_parallel: of {} ranks no layout is possible\n{reasons}", judge.cluster.world_size());
    };
    let refusal =
        candidate.config(given).and_then(|config| judge.refusal(&config)).unwrap_or_else(|error| error.to_string());
    format!(
        "auto.auto_parallel: no layout of {} ranks fits; nearest comes {}, which is {} over: {refusal}",
        judge.cluster.world_size(),
        candidate.words(),
        crate::memory::Amount(judged.over()),
    )
}

/// The limits under which all is run again that may be, and nothing is refused.
fn least(limits: &[StageLimit]) -> Vec<StageLimit> {
    let least = |limit: &StageLimit| {
        let recompute = if limit.recompute == Recompute::Given { Recompute::Given } else { Recompute::All };
        StageLimit { bytes: f64::INFINITY, recompute, ..*limit }
    };
    limits.iter().map(least).collect()
}

/// Whether every segment is run again, as its parameters are whole for it alone.
pub(super) fn runs_all((zero, offload): (ZeroLevel, OffloadLevel)) -> bool {
    zero == ZeroLevel::V3 || offload != OffloadLevel::Off
}

/// Micro-batches of all parts of a stage that are stored at once, at most.
fn in_flight(actions: &[Action]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for action in actions {
        match action.kind {
            ActionKind::Forward => now += 1,
            ActionKind::Backward => now = now.saturating_sub(1),
        }
        most = most.max(now);
    }
    most
}

/// The same layout with one cut moved by a segment, or with one segment stored that is run again.
fn neighbours(candidate: &Candidate) -> Vec<Candidate> {
    let moved = |index: usize, by: isize| {
        let mut cuts = candidate.cuts.clone();
        cuts[index] = cuts[index].checked_add_signed(by)?;
        let is_rising = cuts.windows(2).all(|pair| pair[0] < pair[1]) && cuts.first().is_some_and(|first| *first > 0);
        is_rising.then_some(Candidate { cuts, ..candidate.clone() })
    };
    let cuts = (0..candidate.cuts.len()).flat_map(|index| [-1, 1].into_iter().filter_map(move |by| moved(index, by)));
    let stored = (0..candidate.runs.len()).map(|index| {
        let mut runs = candidate.runs.clone();
        runs.remove(index);
        Candidate { runs, ..candidate.clone() }
    });
    cuts.chain(stored).collect()
}
