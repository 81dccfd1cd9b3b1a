//! Layouts whose stages are cut by sums: what a plan is made of, and simulated, where it is worth it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use burn::tensor::DType;
use epl_comm::{Operation, ReduceOp, shard_range};
use rustc_hash::FxHashMap;

use super::candidate::{Candidate, Level, PutAway, Shape, ShapeKey, is_fixed};
use super::column::SegmentCost;
use super::cuts::{CutChain, CutCosts, Recompute, StageLimit, cut, over, within};
use super::judge::{Judge, Replica};
use super::rows::divide;
use super::space::{LeastSeconds, levels, may_recompute};
use crate::config::{Config, OffloadLevel, PipelineStrategy, ZeroLevel};
use crate::error::{Error, Result};
use crate::memory::{OptimizerState, Tier};
use crate::plan::Order;
use crate::simulate::Members;
use crate::topology::cluster::{Axis, Mesh};

/// A layout with its cuts.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub shape: Shape,
    pub level: Level,
    /// None where none fits, by the same formulas.
    pub found: Option<Rc<CutChain>>,
    /// Bytes by which a device of some stage has too few where all is run again that may be; 0 where it fits.
    pub over: f64,
    /// What a step takes, by formula: in which order drafts are simulated.
    pub seconds: f64,
    /// What it takes at least.
    pub bound: f64,
}

/// What segments take by the sizes and micro-batches of a layout.
#[derive(Clone, Debug)]
pub(super) struct ShapeCosts {
    /// In micro-batches of the most rows, on the slowest device.
    pub most: CutCosts,
    /// By stage, how many times as long it takes, of the slowest replica.
    pub slowness: Vec<f64>,
    /// By stage, the bytes that a device has.
    pub free: Vec<f64>,
    /// Seconds that the largest carry and its gradients take between a stage and the next, on average.
    hop: f64,
    mesh: Mesh,
    /// By chunks, and whether all is run again: cuts where there is memory enough; none where segments are too few.
    unbounded: RefCell<BTreeMap<(usize, bool), Option<Rc<CutChain>>>>,
}

impl ShapeCosts {
    /// The cut where there is memory enough, in as many parts as there are limits.
    fn unbounded(&self, chunks: usize, limits: &[StageLimit]) -> Option<Rc<CutChain>> {
        let key = (chunks, limits[0].recompute == Recompute::All);
        let find = || {
            let limits: Vec<StageLimit> =
                limits.iter().map(|limit| StageLimit { bytes: f64::INFINITY, ..*limit }).collect();
            cut(&self.most, &limits).map(Rc::new)
        };
        self.unbounded.borrow_mut().entry(key).or_insert_with(find).clone()
    }
}

/// Micro-batches of at least so many rows, on average, have equal ones on a replica: few more of a row are then as good.
const WHOLE_ROWS: usize = 4;

/// Numbers in the same proportion that are as small as they can be.
fn lowest_terms(numbers: Vec<usize>) -> Vec<usize> {
    let common = numbers.iter().fold(0, |mut common, number| {
        let mut rest = *number;
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        common
    });
    numbers.into_iter().map(|number| number / common.max(1)).collect()
}

/// What a stage has and is.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageRoom<'a> {
    /// By stage, micro-batches of each of its parts that are stored at once.
    pub in_flight: &'a [usize],
    /// By stage, bytes of a device.
    pub free: &'a [f64],
    /// By stage, how many times as long it takes.
    pub slowness: &'a [f64],
}

/// Makes drafts.
#[derive(Debug)]
pub(super) struct Drafts<'a> {
    judge: &'a Judge<'a>,
    given: &'a Config,
    /// How replicas divide rows by their speed, by what layouts have in common.
    row_weights: RefCell<FxHashMap<ShapeKey, Option<Vec<usize>>>>,
    /// Orders by stages, micro-batches, chunks and strategy.
    orders: RefCell<FxHashMap<(usize, usize, usize, PipelineStrategy), Order>>,
}

impl<'a> Drafts<'a> {
    /// Of what is judged so, where this is given.
    pub fn new(judge: &'a Judge<'a>, given: &'a Config) -> Self {
        Self { judge, given, row_weights: RefCell::default(), orders: RefCell::default() }
    }

    /// What segments take.
    pub fn costs(&self, shape: &Shape) -> Result<ShapeCosts> {
        let (mesh, whole) = (self.mesh(shape)?, self.whole_layers(shape));
        let (replicas, stages) = (self.judge.replicas(&mesh, shape.micro_batches)?, 0..shape.sizes[1]);
        let sums = replicas.iter().map(|replica| match replicas.len() {
            1 => Ok(1.0),
            _ => Ok(self.costs_of(replica, 0, (&mesh, whole))?.iter().map(SegmentCost::seconds).sum()),
        });
        let sums = sums.collect::<Result<Vec<f64>>>()?;
        let longest = sums.iter().copied().fold(0.0, f64::max);
        let slowness = |stage: usize| {
            let of = replicas.iter().zip(&sums).map(|(replica, sum)| sum / longest / replica.devices[stage].compute);
            of.fold(0.0, f64::max)
        };
        let Some(largest) = replicas.iter().max_by_key(|replica| replica.rows[0]) else {
            return Err(Error::invalid("a layout without a replica"));
        };
        // As if each replica had as many rows: what is stored is in proportion.
        let free = |stage: usize| {
            let more = |replica: &Replica| largest.rows[0] as f64 / replica.rows[0] as f64;
            let of = replicas.iter().map(|replica| more(replica) * self.judge.free(&replica.devices[stage]));
            of.fold(f64::INFINITY, f64::min)
        };
        let boundaries = shape.sizes[1].saturating_sub(1).max(1) as f64;
        Ok(ShapeCosts {
            hop: self.hops((&mesh, whole), largest, largest.rows[0])?[1] / boundaries,
            most: CutCosts::new(self.costs_of(largest, 0, (&mesh, whole))?),
            slowness: stages.clone().map(slowness).collect(),
            free: stages.map(free).collect(),
            mesh,
            unbounded: RefCell::default(),
        })
    }

    /// What a step takes at least, where this bounds those of its replicas.
    pub fn bound(&self, shape: &Shape, least: &[LeastSeconds]) -> Result<f64> {
        let held = self.held_by_first(shape)?;
        Ok(least.iter().map(|least| least.bound(shape, held)).fold(0.0, f64::max))
    }

    /// What bounds the steps of its replicas from below.
    pub fn least(&self, shape: &Shape) -> Result<Vec<LeastSeconds>> {
        let (mesh, whole) = (self.mesh(shape)?, self.whole_layers(shape));
        let least = |replica: Replica| {
            // The last micro-batch has the fewest rows.
            let last = shape.micro_batches - 1;
            let costs = self.costs_of(&replica, last, (&mesh, whole))?;
            // A part of what is sent is the sender's own time, and may pass while what was sent before is on its way.
            let hops = (1.0 - self.judge.rates.lost) * self.hops((&mesh, whole), &replica, replica.rows[last])?[0];
            Ok(LeastSeconds::of(&costs, &self.judge.beside_nobody(&replica.devices), hops))
        };
        self.judge.replicas(&mesh, shape.micro_batches)?.into_iter().map(least).collect()
    }

    /// What segments take in a micro-batch of a replica on the slowest device, where these layers are whole; where ranks lie unalike,
    /// without their calls.
    fn costs_of(
        &self,
        replica: &Replica,
        micro_batch: usize,
        (mesh, whole): (&Mesh, Option<&[String]>),
    ) -> Result<Vec<SegmentCost>> {
        let calls = (mesh, replica.ranks[0], self.judge.network);
        let calls = self.judge.network.is_uniform(mesh).then_some(calls);
        let mut costs = self.judge.column(mesh, whole)?.costs(replica.rows[micro_batch], calls);
        // Of all micro-batches but the first gradients are added to those that are there. This is the mean over micro-batches, as seconds of
        // the slowest device: of the stage whose memory is fastest beside its compute, so that none is taken to be slower than it is. In the
        // order of a file the first one may go backward last, so that what it takes is not known to be the least.
        let (speeds, is_by_rule) = (replica.devices.iter(), self.given.pipeline.schedule_file.is_empty());
        let speed = speeds.map(|device| device.compute / device.memory).fold(f64::INFINITY, f64::min);
        let seconds = self.judge.rates.copy * speed * (1.0 - 1.0 / replica.rows.len() as f64);
        for cost in costs.iter_mut().filter(|_| is_by_rule) {
            cost.backward += seconds * cost.parameters.iter().sum::<f64>();
        }
        Ok(costs)
    }

    /// Seconds that a carry of so many rows and its gradients take through all stages of a replica: at least, and at most.
    fn hops(&self, (mesh, whole): (&Mesh, Option<&[String]>), replica: &Replica, rows: usize) -> Result<[f64; 2]> {
        let network = self.judge.network;
        let sent = match &replica.ranks[..] {
            [_] => Vec::new(),
            _ => self.judge.column(mesh, whole)?.shapes.sent(rows),
        };
        let between = |ends: &[usize]| {
            let message = |(dtype, elements): &(DType, usize)| {
                network.seconds(Operation::Send, (elements * dtype.size()) as u64, ends)
            };
            sent.iter()
                .map(|messages| messages.iter().map(message).sum())
                .fold([f64::INFINITY, 0.0], |[least, most], seconds: f64| [least.min(seconds), most.max(seconds)])
        };
        // Over the same hosts it takes as long.
        let mut known: FxHashMap<[usize; 2], [f64; 2]> = FxHashMap::default();
        let mut all = [0.0; 2];
        for ends in replica.ranks.windows(2) {
            let of = known.entry([ends[0], ends[1]].map(|rank| network.host(rank))).or_insert_with(|| between(ends));
            all = [all[0] + of[0], all[1] + of[1]];
        }
        Ok(all)
    }

    fn mesh(&self, shape: &Shape) -> Result<Mesh> {
        self.mesh_of(&self.uncut(shape)?)
    }

    fn mesh_of(&self, uncut: &Candidate) -> Result<Mesh> {
        Ok(Mesh::on_cluster(self.judge.cluster, &uncut.config(self.given)?)?)
    }

    /// How replicas divide a batch, in whole micro-batches of equal rows where each has some of them.
    fn divided(&self, speeds: &[f64], (fixed, per_row): (f64, f64), micro_batches: usize) -> Vec<usize> {
        let (batch, each) = (self.judge.batch, self.judge.batch / (micro_batches * speeds.len()));
        match batch.is_multiple_of(micro_batches) && each >= WHOLE_ROWS {
            true => {
                let rows = divide(batch / micro_batches, speeds, (fixed, per_row * micro_batches as f64), 1);
                rows.into_iter().map(|rows| micro_batches * rows).collect()
            }
            false => divide(batch, speeds, (fixed, per_row), micro_batches),
        }
    }

    /// How replicas divide the rows of a layout; none: evenly, or as is given.
    pub fn row_weights(&self, shape: &Shape) -> Result<Option<Vec<usize>>> {
        if !shape.by_speed {
            return Ok(None);
        }
        if let Some(known) = self.row_weights.borrow().get(&shape.key()) {
            return Ok(known.clone());
        }
        let mesh = self.mesh_of(&self.plain(shape, None))?;
        let speed = |rank: usize| {
            let stages = mesh.group(Axis::Pipeline, rank);
            let speeds =
                stages.iter().map(|rank| self.judge.devices.together(&mesh.group(Axis::Tensor, *rank)).compute);
            speeds.sum::<f64>() / stages.len() as f64
        };
        let speeds: Vec<f64> = mesh.group(Axis::Data, mesh.first()).into_iter().map(speed).collect();
        let micro_batches = shape.micro_batches;
        let few = self.judge.batch.div_ceil(speeds.len() * micro_batches).max(1);
        let (column, calls) =
            (self.judge.column(&mesh, self.whole_layers(shape))?, Some((&mesh, mesh.first(), self.judge.network)));
        let seconds = |rows: usize| -> Result<f64> {
            Ok(micro_batches as f64 * column.costs(rows, calls).iter().map(SegmentCost::seconds).sum::<f64>())
        };
        let (once, twice) = (seconds(few)?, seconds(2 * few)?);
        let fixed = (2.0 * once - twice).max(0.0);
        let per_row = ((once - fixed) / (few * micro_batches) as f64).max(f64::MIN_POSITIVE);
        let rows = self.divided(&speeds, (fixed, per_row), micro_batches);
        let even = |replica: usize| shard_range(self.judge.batch, rows.len(), replica).len();
        let weights = (0..rows.len()).any(|replica| rows[replica] != even(replica)).then(|| lowest_terms(rows));
        self.row_weights.borrow_mut().insert(shape.key(), weights.clone());
        Ok(weights)
    }

    /// A layout at each level that it may have where this is put away, cut where it fits.
    pub fn of(&self, shape: &Shape, bound: f64, costs: &ShapeCosts, away: PutAway) -> Result<Vec<Draft>> {
        let (mut drafts, in_flight, held) = (Vec::new(), self.in_flight(shape)?, self.held_by_first(shape)?);
        for level in levels(self.given, shape.sizes[0], away) {
            let ShapeCosts { free, slowness, .. } = costs;
            let limits = self.limits((shape, level), StageRoom { in_flight: &in_flight, free, slowness });
            let Some(unbounded) = costs.unbounded(shape.chunks, &limits) else { continue };
            let (found, over) = found(costs, (shape.chunks, &limits), &unbounded);
            let bottleneck = found.as_ref().unwrap_or(&unbounded).bottleneck;
            let seconds = self.seconds((shape, level), costs, (bottleneck, held));
            drafts.push(Draft { shape: *shape, level, found, over, seconds, bound });
        }
        Ok(drafts)
    }

    /// A layout that is cut; where every segment is run again, the level says so.
    pub fn candidate(&self, shape: &Shape, level: Level, found: &CutChain) -> Result<Candidate> {
        let runs = if runs_all(self.given, level) { Vec::new() } else { found.runs() };
        let cuts = if self.cuts_are_free() { found.cuts.clone() } else { Vec::new() };
        Ok(Candidate { level, cuts, runs, ..self.uncut(shape)? })
    }

    /// A layout that is not cut, with nothing sharded.
    fn uncut(&self, shape: &Shape) -> Result<Candidate> {
        Ok(self.plain(shape, self.row_weights(shape)?))
    }

    fn plain(&self, shape: &Shape, row_weights: Option<Vec<usize>>) -> Candidate {
        let level = (ZeroLevel::Off, PutAway::Offload(OffloadLevel::Off));
        let whole_layers = self.whole_layers(shape).map(<[String]>::to_vec);
        Candidate { shape: *shape, level, row_weights, whole_layers, cuts: Vec::new(), runs: Vec::new() }
    }

    /// The layers of a layout that are whole on each tensor rank.
    fn whole_layers(&self, shape: &Shape) -> Option<&[String]> {
        let [.., tensor, expert] = shape.sizes;
        match shape.has_whole_layers {
            true => self.judge.whole_layers(tensor, expert),
            false => self.given.dist.whole_layers.as_deref().filter(|_| tensor > 1),
        }
    }

    /// What a layout is called.
    pub fn words(&self, shape: &Shape) -> String {
        self.plain(shape, None).words()
    }

    fn cuts_are_free(&self) -> bool {
        let dist = &self.given.dist;
        let is_said = dist.custom_pipeline_stage_id.is_some() || dist.pipeline_num_layers.is_some();
        !is_said && !is_fixed(self.given, "pipeline.cuts")
    }

    /// The limits of the parts of a layout.
    pub fn limits(&self, (shape, level): (&Shape, Level), room: StageRoom<'_>) -> Vec<StageLimit> {
        let [data, stages, _, expert] = shape.sizes;
        let is_bounded = self.judge.devices.are_bounded();
        let recompute = match (runs_all(self.given, level), may_recompute(self.given) && is_bounded) {
            (true, _) => Recompute::All,
            (_, true) => Recompute::Least,
            _ => Recompute::Given,
        };
        let state = [data, data / expert].map(|replicas| self.state(level, replicas, shape.micro_batches));
        let part = |part: usize| StageLimit {
            in_flight: room.in_flight[part % stages],
            bytes: room.free[part % stages] / shape.chunks as f64,
            slowness: room.slowness[part % stages],
            state,
            recompute,
        };
        (0..stages * shape.chunks).map(part).collect()
    }

    /// By stage, micro-batches of each of its parts that are stored at once.
    pub fn in_flight(&self, shape: &Shape) -> Result<Vec<usize>> {
        let (stages, order) = (shape.sizes[1], self.order(shape)?);
        let of = |stage| order.peak_in_flight(stage, stages, shape.micro_batches).div_ceil(shape.chunks);
        Ok((0..stages).map(of).collect())
    }

    /// Parts of micro-batches that the first stage holds at once, at most.
    fn held_by_first(&self, shape: &Shape) -> Result<usize> {
        Ok(self.order(shape)?.peak_in_flight(0, shape.sizes[1], shape.micro_batches))
    }

    fn order(&self, shape: &Shape) -> Result<Order> {
        let (stages, micro_batches) = (shape.sizes[1], shape.micro_batches);
        let key = (stages, micro_batches, shape.chunks, shape.strategy);
        if let Some(known) = self.orders.borrow().get(&key) {
            return Ok(known.clone());
        }
        let order = Order::from_config(&self.plain(shape, None).config(self.given)?, stages, micro_batches)?;
        self.orders.borrow_mut().insert(key, order.clone());
        Ok(order)
    }

    /// Bytes of the device for each byte of parameters that so many replicas have.
    fn state(&self, (zero, offload): Level, replicas: usize, micro_batches: usize) -> f64 {
        let tiers = offload.tiers(self.given);
        let here = |tier: Tier, bytes: f64| if tier == Tier::Device { bytes } else { 0.0 };
        let optimizer = match self.judge.state {
            OptimizerState::PerElement(count) => count as f64,
            OptimizerState::RowsAndColumns => 0.0,
        };
        let part = 1.0 / replicas as f64;
        let parameters = if zero == ZeroLevel::V3 { part } else { 1.0 };
        let state = if zero == ZeroLevel::Off { optimizer } else { optimizer * part };
        let gradients = if zero.keeps_whole_gradients(micro_batches > 1) { 1.0 } else { part };
        here(tiers.parameters, parameters) + here(tiers.state, state) + here(tiers.gradients, gradients)
    }

    /// A step by formula: the slowest part for each micro-batch, filling and emptying the pipeline, and what of sending, reducing,
    /// gathering and updating is not hidden.
    fn seconds(
        &self,
        (shape, (zero, offload)): (&Shape, Level),
        costs: &ShapeCosts,
        (bottleneck, held): (f64, usize),
    ) -> f64 {
        let ShapeCosts { most, mesh, hop, .. } = costs;
        let [data, stages, _, expert] = shape.sizes;
        let (stages, micro_batches, chunks) = (stages as f64, shape.micro_batches as f64, shape.chunks as f64);
        let (slots, parts) = (micro_batches * chunks, stages * chunks);
        // Fewer micro-batches than stages fill them once for each chunk.
        let filled = chunks * micro_batches.max(stages) + micro_batches.min(stages) - 1.0;
        let (rank, mut seconds) = (mesh.first(), filled * bottleneck + (parts - 1.0) * hop);
        // What the first stage begins before the first micro-batch is back. Then each one that goes forward waits for one to come back.
        let ahead = held as f64 + (chunks - 1.0) * stages;
        let back = parts * bottleneck + (parts - 1.0) * hop;
        seconds += (slots - ahead).max(0.0) * (back / ahead - bottleneck).max(0.0);
        let pass = chunks * bottleneck;
        for (index, (axis, replicas)) in [(Axis::Data, data), (Axis::ExpertData, data / expert)].into_iter().enumerate()
        {
            let bytes = most.all().parameters[index] / stages;
            let members = Members::Axis(axis).of(mesh, rank);
            let sum = self.judge.network.seconds(Operation::AllReduce(ReduceOp::Sum), bytes as u64, &members);
            // Of a pass two thirds are backward. A sum is a reduce-scatter and a gather, of half its time each.
            let hidden = |took: f64, by: f64| (took - by).max(0.0);
            // What is reduced is laid flat.
            let flat = if replicas > 1 { self.judge.rates.copy * bytes } else { 0.0 };
            seconds += match zero {
                ZeroLevel::Off | ZeroLevel::V0 => flat + hidden(sum, pass * 2.0 / 3.0),
                ZeroLevel::V1 => flat + hidden(sum / 2.0, pass * 2.0 / 3.0) + sum / 2.0,
                ZeroLevel::V2 => micro_batches * (flat + hidden(sum / 2.0, pass * 2.0 / 3.0)) + sum / 2.0,
                ZeroLevel::V3 => micro_batches * (flat + hidden(sum * 1.5, pass)),
            };
            let shards = if zero == ZeroLevel::Off { 1.0 } else { replicas as f64 };
            let update = self.judge.rates.update_at(offload.tiers(self.given), 1.0);
            seconds += update * bytes / size_of::<f32>() as f64 / shards;
        }
        seconds
    }
}

/// The cut within the limits of so many chunks, where one without them is known; else by how many bytes a stage is over them.
fn found(
    costs: &ShapeCosts,
    (chunks, limits): (usize, &[StageLimit]),
    unbounded: &Rc<CutChain>,
) -> (Option<Rc<CutChain>>, f64) {
    let all = costs.most.all();
    let state = all.parameters[0] * limits[0].state[0] + all.parameters[1] * limits[0].state[1];
    if state <= limits.iter().map(|limit| limit.bytes).sum() {
        if let Some(found) = within(&costs.most, unbounded, limits) {
            let is_same = found == **unbounded;
            return (Some(if is_same { unbounded.clone() } else { Rc::new(found) }), 0.0);
        }
        if let Some(found) = cut(&costs.most, limits) {
            return (Some(Rc::new(found)), 0.0);
        }
    }
    let least: Vec<StageLimit> = limits.iter().map(StageLimit::least).collect();
    let smallest = costs.unbounded(chunks, &least);
    let over = smallest.map_or(f64::INFINITY, |smallest| over(&costs.most, &smallest, &least));
    // What is nearly nothing is something.
    (None, (over * chunks as f64).max(f64::MIN_POSITIVE))
}

/// Whether every segment is run again at a level, as its parameters are whole for it alone.
pub(super) fn runs_all(given: &Config, (zero, offload): Level) -> bool {
    zero == ZeroLevel::V3 || offload.tiers(given).parameters != Tier::Device
}
