//! The search.

use std::cmp::Ordering;
use std::rc::Rc;

use super::candidate::{CHOSEN, Candidate, PutAway, Shape, ShapeKey, is_fixed};
use super::cuts::{cut, cut_as_small_as_it_can_be, needed};
use super::draft::{Draft, Drafts, ShapeCosts, StageRoom, runs_all};
use super::found::{Choice, Found};
use super::judge::{Judge, Judged};
use super::kept::Kept;
use super::moves::neighbours;
use super::space::{Space, levels, shapes, ways_to_put_away};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::Amount;
use crate::topology::cluster::Mesh;

/// How many stages of layouts that seem to fit are simulated at most, from the layout that seems best on; and how many of the others,
/// from the one that comes nearest on.
const JUDGED: usize = 512;
/// The same, beside these, of layouts whose ranks lie in the other order, which differ in what collectives take alone.
const JUDGED_OTHERWISE: usize = 96;
/// So many times a device is too much, where another layout came nearer.
const HOPELESS: f64 = 3.0;
/// How many of the best choices are improved by moves: of each division of the ranks and rows and order of stages the best that runs
/// something again, at each ZeRO level, and the best that does not.
const IMPROVED: usize = 16;
/// How many moves are tried at most for each of them, of one stage; of p stages, each of which is simulated for p times as many
/// micro-batches, p² times fewer.
const MOVES: usize = 400;
/// Of how many of the best all micro-batches are simulated.
const CONFIRMED: usize = 4;
/// Layouts whose bound is so much above the best step by formula wait until that one is simulated.
const FAR: f64 = 1.15;
/// How often memory that was taken to be free, and is not, is taken away before a level is given up.
const CORRECTIONS: usize = 8;

/// Finds the layout that takes least, of those that what is given allows, on all devices; where they are not alike, also what is
/// predicted without the slowest or smallest ones.
///
/// # Errors
///
/// When none is possible, or none fits: why, with the one that comes nearest, and without which devices one would fit.
pub(crate) fn search(judge: &Judge<'_>, given: &Config, segments: usize) -> Result<Found> {
    let kept = Kept::of(judge, given)?;
    let found = search_all(judge, (given, &kept), segments);
    let mut best: Option<(Vec<usize>, Choice)> = None;
    for ranks in judge.devices.better() {
        let cluster = judge.cluster.among(&ranks)?;
        let (network, devices) = (judge.network.among(&ranks), judge.devices.among(&ranks));
        let fewer = Judge { cluster: &cluster, network: &network, devices, ..*judge };
        let mut config = given.clone();
        config.set("cluster.ranks", ranks.len())?;
        // What is given may be of all devices.
        let Ok(fewer) = search_all(&fewer, (&config, &kept), segments) else { continue };
        if best.as_ref().is_none_or(|(_, known)| fewer.best().seconds < known.seconds) {
            let left_out = (0..judge.cluster.world_size()).filter(|rank| !ranks.contains(rank)).collect();
            best = Some((left_out, fewer.best().clone()));
        }
    }
    match (found, best) {
        (found, None) => found,
        (Ok(found), Some((left_out, choice))) => Ok(found.with_fewer(left_out, choice)),
        (Err(error), Some((left_out, choice))) => {
            Err(Error::invalid(format!("{error}\nwithout ranks {left_out:?} a layout is found: {}", choice.words())))
        }
    }
}

fn search_all(judge: &Judge<'_>, (given, kept): (&Config, &Kept), segments: usize) -> Result<Found> {
    let Space { shapes, refused } = shapes(given, judge, segments, kept);
    let drafts = &Drafts::new(judge, given);
    let mut run = SearchRun {
        drafts,
        judge,
        given,
        choices: Vec::new(),
        over: None,
        refused: Vec::new(),
        tried: 0,
        last: None,
        largest: judge.free_of_largest(),
    };
    refused.into_iter().for_each(|(words, reason)| run.refuse(words, reason));
    let bounded = run.bounded(shapes);
    let least = bounded.first().map_or(f64::INFINITY, |(bound, _)| *bound);
    // As little is put away as lets something fit.
    for away in ways_to_put_away(given, judge.devices.are_bounded()) {
        if run.choices.is_empty() {
            run.drafted(&bounded, away);
        }
    }
    run.choices.sort_by(better);
    let mut improved = Vec::new();
    for index in 0..run.choices.len() {
        let kind = run.choices[index].0.kind();
        if improved.len() < IMPROVED && !improved.contains(&kind) {
            improved.push(kind);
            run.improve(index)?;
        }
    }
    run.choices.sort_by(better);
    run.confirm()?;
    run.found(bounded.len(), least, kept)
}

/// What the layout takes that a configuration says.
///
/// # Errors
///
/// When it cannot be, or does not fit.
pub(crate) fn explain(judge: &Judge<'_>, config: &Config) -> Result<Choice> {
    let refused = |reason: String| Err(Error::invalid(format!("what a layout takes: {reason}")));
    if let Some(reason) = other_rows(config, judge.batch) {
        return refused(reason);
    }
    if config.searches() {
        return refused("auto.auto_parallel = true has one searched; call `search`, or leave it out".to_string());
    }
    if let Some(reason) = chosen_later(config) {
        return refused(reason);
    }
    let judged = judge.judge_all(config)?;
    if judged.over() > 0 {
        return Err(Error::invalid(judge.refusal(config)?));
    }
    let mesh = Mesh::on_cluster(judge.cluster, config)?;
    let mut candidate = Candidate::of(config, &mesh)?;
    if !runs_all(config, candidate.level) {
        candidate.runs.clone_from(&judged.recompute);
    }
    Ok(Choice::new(&candidate, judged, config.clone()))
}

/// Refuses what contradicts a search, or has no effect in it.
pub(crate) fn check_search(config: &Config, rows: usize) -> Result<()> {
    let refused = |reason: String| Err(Error::invalid(format!("a search of layouts: {reason}")));
    if let Some(reason) = chosen_later(config) {
        return refused(reason);
    }
    if let Some(stages) = config.pipeline.num_stages {
        return refused(format!(
            "pipeline.num_stages = {stages} has stages alone chosen; give dist.pipeline_parallel_size = {stages} in its place, or \
             leave it out"
        ));
    }
    match (config.train.global_batch_size, config.train.micro_batch_size) {
        (None, Some(size)) => refused(format!(
            "train.micro_batch_size = {size} alone makes the global batch of as many replicas as there are, and it is searched how \
             many; give train.global_batch_size, too"
        )),
        _ => other_rows(config, rows).map_or(Ok(()), refused),
    }
}

/// Refuses what a cluster says by its description.
pub(crate) fn check_described(config: &Config) -> Result<()> {
    match &config.auto.speeds {
        None => Ok(()),
        Some(speeds) => Err(Error::invalid(format!(
            "auto.speeds = {speeds:?}, and the cluster's description says how fast its devices are; leave it out"
        ))),
    }
}

/// Why what a layout stores is not known before its first step.
fn chosen_later(config: &Config) -> Option<String> {
    let bytes = config.gradient_checkpoint.budget?;
    Some(format!(
        "gradient_checkpoint.budget = {bytes} has the first step choose what is run again; say it by gradient_checkpoint.runs, \
         or leave it out: with offload.device_bytes a search chooses it"
    ))
}

/// Why a sample of steps of so many rows is not of this configuration's.
fn other_rows(config: &Config, rows: usize) -> Option<String> {
    match config.train.global_batch_size {
        Some(batch) if batch != rows => Some(format!(
            "train.global_batch_size = {batch}, and the sample is of steps of {rows} rows; make it of {batch}"
        )),
        _ if rows == 0 => Some("the sample is of steps of 0 rows; give the rows of a step".to_string()),
        _ => None,
    }
}

/// What was found so far.
struct SearchRun<'a> {
    drafts: &'a Drafts<'a>,
    judge: &'a Judge<'a>,
    given: &'a Config,
    choices: Vec<(Candidate, Judged)>,
    /// The one that is least over the budget.
    over: Option<(Candidate, Judged)>,
    refused: Vec<(String, String)>,
    tried: usize,
    /// What segments take in the layout that was asked for last: neighbours have the same.
    last: Option<(ShapeKey, Rc<ShapeCosts>)>,
    /// Bytes that an estimate of the largest device may come to.
    largest: f64,
}

fn better((one, judged): &(Candidate, Judged), (other, second): &(Candidate, Judged)) -> Ordering {
    judged.seconds.total_cmp(&second.seconds).then_with(|| one.shape.axes().cmp(&other.shape.axes()))
}

fn simpler(one: &Shape, other: &Shape) -> Ordering {
    (one.axes(), one.micro_batches, one.chunks).cmp(&(other.axes(), other.micro_batches, other.chunks))
}

impl SearchRun<'_> {
    fn best(&self) -> f64 {
        self.choices.iter().map(|(_, judged)| judged.seconds).fold(f64::INFINITY, f64::min)
    }

    /// The step of the last choice of those that are [confirmed](Self::confirm); infinite where there are fewer.
    fn last_confirmed(&self) -> f64 {
        let mut seconds: Vec<f64> = self.choices.iter().map(|(_, judged)| judged.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(CONFIRMED - 1).copied().unwrap_or(f64::INFINITY)
    }

    /// Layouts with what bounds their steps from below, from the least on.
    fn bounded(&mut self, shapes: Vec<Shape>) -> Vec<(f64, Shape)> {
        let (mut bounded, mut last) = (Vec::with_capacity(shapes.len()), None);
        for shape in shapes {
            if shape.by_speed && matches!(self.drafts.row_weights(&shape), Ok(None)) {
                // That is the even one.
                continue;
            }
            // Neighbours have the same.
            let least = match last.take().filter(|(known, _)| *known == shape.key()) {
                Some((_, least)) => Ok(least),
                None => self.drafts.least(&shape),
            };
            match least.and_then(|least| Ok((self.drafts.bound(&shape, &least)?, least))) {
                Ok((bound, least)) => {
                    bounded.push((bound, shape));
                    last = Some((shape.key(), least));
                }
                Err(error) => self.refuse(self.drafts.words(&shape), error.to_string()),
            }
        }
        bounded.sort_by(|one, other| one.0.total_cmp(&other.0));
        bounded
    }

    /// What segments take in a layout.
    fn costs(&mut self, shape: &Shape) -> Result<Rc<ShapeCosts>> {
        if let Some((_, costs)) = self.last.as_ref().filter(|(last, _)| *last == shape.key()) {
            return Ok(costs.clone());
        }
        let costs = Rc::new(self.drafts.costs(shape)?);
        self.last = Some((shape.key(), costs.clone()));
        Ok(costs)
    }

    /// Drafts and judges layouts in which this is put away, from the least bound on: further, as long as one may be better than the best
    /// that was simulated.
    fn drafted(&mut self, bounded: &[(f64, Shape)], away: PutAway) {
        let (mut next, mut limit) = (0, f64::INFINITY);
        while next < bounded.len() && bounded[next].0 < self.best() {
            let mut all: Vec<Draft> = Vec::new();
            limit = limit.max(bounded[next].0);
            while let Some((bound, shape)) = bounded.get(next).filter(|(bound, _)| *bound <= limit) {
                next += 1;
                match self.costs(shape).and_then(|costs| self.drafts.of(shape, *bound, &costs, away)) {
                    Ok(drafts) => {
                        let fitting = drafts.iter().filter(|draft| draft.over <= 0.0);
                        limit = fitting.map(|draft| FAR * draft.seconds).fold(limit, f64::min);
                        all.extend(drafts);
                    }
                    Err(error) => self.refuse(self.drafts.words(shape), error.to_string()),
                }
            }
            self.all(all);
            limit *= 2.0;
        }
    }

    /// Judges drafts from the one that seems best on, and those that may be better than the best; where nothing fits yet, those that
    /// come nearest first.
    fn all(&mut self, mut drafts: Vec<Draft>) {
        // Of equal ones the one with fewer axes and micro-batches first.
        drafts.sort_by(|one, other| {
            one.seconds.total_cmp(&other.seconds).then_with(|| simpler(&one.shape, &other.shape))
        });
        let (fitting, mut larger): (Vec<Draft>, Vec<Draft>) = drafts.into_iter().partition(|draft| draft.over <= 0.0);
        larger.sort_by(|one, other| one.over.total_cmp(&other.over));
        for drafts in [fitting, larger] {
            // Of each order of ranks as many: where formulas take the one to be better than it is, the other is simulated, too.
            let mut judged = [0; 2];
            for draft in drafts {
                let is_own = draft.shape.order == self.given.dist.order;
                let (judged, most) = (&mut judged[usize::from(is_own)], if is_own { JUDGED } else { JUDGED_OTHERWISE });
                // What is so much larger than a device does not come near.
                let is_hopeless = draft.over > HOPELESS * self.largest && self.over.is_some();
                if draft.bound >= self.best() || is_hopeless || *judged >= most {
                    continue;
                }
                match self.draft(&draft) {
                    Ok(()) => *judged += draft.shape.sizes[1],
                    Err(error) => self.refuse(self.drafts.words(&draft.shape), error.to_string()),
                }
            }
        }
    }

    /// Remembers once why something cannot be.
    fn refuse(&mut self, words: String, reason: String) {
        if self.refused.iter().all(|(_, known)| *known != reason) {
            self.refused.push((words, reason));
        }
    }

    /// Judges a layout, and what makes it fit where it does not.
    fn draft(&mut self, draft: &Draft) -> Result<()> {
        let Draft { shape, level, over, .. } = *draft;
        let (costs, in_flight) = (self.costs(&shape)?, self.drafts.in_flight(&shape)?);
        let (mut free, mut is_smallest) = (costs.free.clone(), over > 0.0);
        let (slowness, costs) = (&costs.slowness[..], &costs.most);
        let drafts = self.drafts;
        let limits = |free: &[f64]| drafts.limits((&shape, level), StageRoom { in_flight: &in_flight, free, slowness });
        let found = draft.found.as_deref().cloned();
        let Some(mut found) = found.or_else(|| cut_as_small_as_it_can_be(costs, &limits(&free))) else {
            return Ok(());
        };
        for correction in 0..CORRECTIONS {
            let Err(over) = self.accept(drafts.candidate(&shape, level, &found)?)? else {
                if is_smallest {
                    // All is run again; some of it may be stored.
                    self.improve(self.choices.len() - 1)?;
                }
                return Ok(());
            };
            if is_smallest {
                return Ok(());
            }
            // The formula takes a stage to need less than it was judged to need: by as much less it is allowed from now on.
            let needed = needed(costs, &found, &limits(&free), shape.sizes[1]);
            for (stage, over) in over.iter().enumerate().filter(|(_, over)| **over > 0) {
                // A little more, as what is taken away for it may be of another size.
                let more = (*over as f64).max(self.largest / 256.0);
                free[stage] = free[stage].min(needed[stage]) - more;
            }
            let limits = limits(&free);
            let next = cut(costs, &limits).filter(|next| correction + 2 < CORRECTIONS && *next != found);
            is_smallest = next.is_none();
            let Some(next) = next.or_else(|| cut_as_small_as_it_can_be(costs, &limits)) else { return Ok(()) };
            found = next;
        }
        Ok(())
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

    /// Takes the best of what is next to a choice, as long as that helps. It is left once two moves running have gained so little that
    /// as many more as are left would not bring it among the best; later ones seldom gain more, as the best is taken first.
    fn improve(&mut self, index: usize) -> Result<()> {
        let shape = self.choices[index].0.shape;
        let (mut left, costs) = (MOVES / shape.sizes[1].pow(2), self.costs(&shape)?);
        let (given, away) = (self.given, self.choices[index].0.level.1);
        let levels = levels(given, shape.sizes[0], away);
        let mut gained_before = f64::INFINITY;
        loop {
            let (before, judged) = self.choices[index].clone();
            let mut best: Option<(Candidate, Judged)> = None;
            let (costs, all) = ((&costs.most.segments[..], &costs.slowness[..]), left);
            for candidate in neighbours(&before, costs, (given, &levels)).into_iter().take(left) {
                left -= 1;
                let Ok(other) = self.judge(&candidate) else { continue };
                let least = best.as_ref().map_or(judged.seconds, |(_, best)| best.seconds);
                if other.over() == 0 && other.seconds < least {
                    best = Some((candidate, other));
                }
            }
            let Some(better) = best else { return Ok(()) };
            let (gained, more) = (judged.seconds - better.1.seconds, left.div_ceil(all - left));
            let least = better.1.seconds - more as f64 * gained.max(gained_before);
            (self.choices[index], gained_before) = (better, gained);
            if least > self.last_confirmed() {
                return Ok(());
            }
        }
    }

    /// Simulates all micro-batches of the best choices.
    fn confirm(&mut self) -> Result<()> {
        for (candidate, judged) in self.choices.iter_mut().take(CONFIRMED) {
            *judged = self.judge.judge_all(&candidate.config(self.given)?)?;
        }
        self.choices.sort_by(better);
        Ok(())
    }

    fn found(self, layouts: usize, least: f64, kept: &Kept) -> Result<Found> {
        let Self { judge, given, choices, over, refused, tried, .. } = self;
        if choices.is_empty() {
            return Err(Error::invalid(nothing(judge, (given, kept), over, &refused)));
        }
        let choice = |(candidate, judged): (Candidate, Judged)| Choice::found(&candidate, judged, given);
        let choices = choices.into_iter().map(choice).collect::<Result<Vec<_>>>()?;
        Ok(Found::new(choices, (refused, kept.reasons.clone()), [layouts, tried], least))
    }
}

/// Why no layout is possible.
fn nothing(
    judge: &Judge<'_>,
    (given, kept): (&Config, &Kept),
    over: Option<(Candidate, Judged)>,
    refused: &[(String, String)],
) -> String {
    let kept: String = kept.reasons.iter().map(|reason| format!("\nkept: {reason}")).collect();
    let Some((candidate, judged)) = over else {
        let reasons: Vec<String> = refused.iter().map(|(words, reason)| format!("{words}: {reason}")).collect();
        let said = CHOSEN.iter().filter(|key| is_fixed(given, key));
        let said = said.filter_map(|key| Some(format!("{key} = {}", given.get(key)?))).collect::<Vec<_>>();
        let reasons = match (reasons.is_empty(), said.is_empty()) {
            (false, _) => reasons.join("\n"),
            (true, true) => "none leaves what is kept".to_string(),
            (true, false) => format!(
                "no division of them into data × stages × tensor, with experts in data, is left by {}; leave some out",
                said.join(", ")
            ),
        };
        let ranks = judge.cluster.world_size();
        return format!("auto.auto_parallel: of {ranks} ranks no layout is possible\n{reasons}{kept}");
    };
    let refusal =
        candidate.config(given).and_then(|config| judge.refusal(&config)).unwrap_or_else(|error| error.to_string());
    format!(
        "auto.auto_parallel: no layout of {} ranks fits; nearest comes {}, which is {} over: {refusal}{kept}",
        judge.cluster.world_size(),
        candidate.words(),
        Amount(judged.over()),
    )
}
