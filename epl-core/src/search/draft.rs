//! Layouts whose stages are cut by sums: what a plan is made of, and simulated, where it is worth it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use epl_comm::{Operation, ReduceOp};

use super::candidate::{Candidate, Level, Shape, is_fixed};
use super::column::SegmentCost;
use super::cuts::{CutChain, CutCosts, Recompute, StageLimit, cut, over, within};
use super::judge::Judge;
use super::space::{LeastSeconds, levels, may_recompute};
use crate::config::{Config, OffloadLevel, ZeroLevel};
use crate::error::Result;
use crate::memory::{OptimizerState, Tier, Tiers};
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
    /// In micro-batches of the most rows.
    pub most: CutCosts,
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

/// Makes drafts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drafts<'a> {
    pub judge: &'a Judge<'a>,
    pub given: &'a Config,
}

impl Drafts<'_> {
    /// What segments take.
    pub fn costs(&self, shape: &Shape) -> Result<ShapeCosts> {
        let mesh = self.mesh(shape)?;
        let most = CutCosts::new(self.costs_in(shape, &mesh, 0)?);
        Ok(ShapeCosts { most, mesh, unbounded: RefCell::default() })
    }

    /// What bounds its steps from below.
    pub fn least(&self, shape: &Shape) -> Result<LeastSeconds> {
        // The last micro-batch has the fewest rows.
        Ok(LeastSeconds::of(&self.costs_in(shape, &self.mesh(shape)?, shape.micro_batches - 1)?))
    }

    /// What segments take in one of the micro-batches.
    fn costs_in(&self, shape: &Shape, mesh: &Mesh, micro_batch: usize) -> Result<Vec<SegmentCost>> {
        let rows = self.judge.rows(mesh.replicas(), shape.micro_batches)[micro_batch];
        Ok(self.judge.column(mesh)?.costs(rows.max(1), mesh, self.judge.network))
    }

    fn mesh(&self, shape: &Shape) -> Result<Mesh> {
        Ok(Mesh::on_cluster(self.judge.cluster, &self.uncut(shape).config(self.given)?)?)
    }

    /// A layout at each level that it may have, cut where it fits.
    pub fn of(&self, shape: &Shape, bound: f64, costs: &ShapeCosts) -> Result<Vec<Draft>> {
        let (mut drafts, in_flight) = (Vec::new(), self.in_flight(shape)?);
        for level in levels(self.given, shape.sizes[0]) {
            let limits = self.limits((shape, level), &in_flight, &vec![self.judge.free(); shape.sizes[1]]);
            let Some(unbounded) = costs.unbounded(shape.chunks, &limits) else { continue };
            let (found, over) = found(costs, (shape.chunks, &limits), &unbounded);
            let seconds = self.seconds((shape, level), costs, found.as_ref().unwrap_or(&unbounded).bottleneck);
            drafts.push(Draft { shape: *shape, level, found, over, seconds, bound });
        }
        Ok(drafts)
    }

    /// A layout that is cut; where every segment is run again, the level says so.
    pub fn candidate(&self, shape: &Shape, level: Level, found: &CutChain) -> Candidate {
        let runs = if runs_all(self.given, level) { Vec::new() } else { found.runs() };
        let cuts = if self.cuts_are_free() { found.cuts.clone() } else { Vec::new() };
        Candidate { shape: *shape, level, cuts, runs }
    }

    /// A layout that is not cut, with nothing sharded.
    fn uncut(&self, shape: &Shape) -> Candidate {
        self.candidate(shape, (ZeroLevel::Off, OffloadLevel::Off), &CutChain::default())
    }

    /// What a layout is called.
    pub fn words(&self, shape: &Shape) -> String {
        self.uncut(shape).words()
    }

    fn cuts_are_free(&self) -> bool {
        let dist = &self.given.dist;
        let is_said = dist.custom_pipeline_stage_id.is_some() || dist.pipeline_num_layers.is_some();
        !is_said && !is_fixed(self.given, "pipeline.cuts")
    }

    /// The limits of the parts of a layout, where a device of each stage has so many micro-batches in flight, and so many bytes free.
    pub fn limits(&self, (shape, level): (&Shape, Level), in_flight: &[usize], free: &[f64]) -> Vec<StageLimit> {
        let [data, stages, _, expert] = shape.sizes;
        let recompute = match (runs_all(self.given, level), may_recompute(self.given) && self.judge.budget.is_some()) {
            (true, _) => Recompute::All,
            (_, true) => Recompute::Least,
            _ => Recompute::Given,
        };
        let state = [data, data / expert].map(|replicas| self.state(level, replicas, shape.micro_batches));
        let part = |part: usize| StageLimit {
            in_flight: in_flight[part % stages],
            bytes: free[part % stages] / shape.chunks as f64,
            state,
            recompute,
        };
        (0..stages * shape.chunks).map(part).collect()
    }

    /// By stage, micro-batches of each of its parts that are stored at once.
    pub fn in_flight(&self, shape: &Shape) -> Result<Vec<usize>> {
        let stages = shape.sizes[1];
        let config = self.uncut(shape).config(self.given)?;
        let order = Order::from_config(&config, stages, shape.micro_batches)?;
        let of = |stage| order.peak_in_flight(stage, stages, shape.micro_batches).div_ceil(shape.chunks);
        Ok((0..stages).map(of).collect())
    }

    /// Bytes of the device for each byte of parameters that so many replicas have.
    fn state(&self, (zero, offload): Level, replicas: usize, micro_batches: usize) -> f64 {
        let tiers = Tiers::from_options(self.given, offload);
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

    /// A step by formula: the slowest part for each micro-batch, filling and emptying the pipeline, and what of reducing, gathering and
    /// updating is not hidden.
    fn seconds(&self, (shape, (zero, _)): (&Shape, Level), costs: &ShapeCosts, bottleneck: f64) -> f64 {
        let ShapeCosts { most, mesh, .. } = costs;
        let [data, stages, _, expert] = shape.sizes;
        let (stages, micro_batches, chunks) = (stages as f64, shape.micro_batches as f64, shape.chunks as f64);
        let (rank, mut seconds) = (mesh.first(), (micro_batches * chunks + stages - 1.0) * bottleneck);
        let pass = chunks * bottleneck;
        for (index, (axis, replicas)) in [(Axis::Data, data), (Axis::ExpertData, data / expert)].into_iter().enumerate()
        {
            let bytes = most.all().parameters[index] / stages;
            let members = Members::Axis(axis).of(mesh, rank);
            let sum = self.judge.network.seconds(Operation::AllReduce(ReduceOp::Sum), bytes as u64, &members);
            // Of a pass two thirds are backward. A sum is a reduce-scatter and a gather, of half its time each.
            let hidden = |took: f64, by: f64| (took - by).max(0.0);
            seconds += match zero {
                ZeroLevel::Off | ZeroLevel::V0 => hidden(sum, pass * 2.0 / 3.0),
                ZeroLevel::V1 => hidden(sum / 2.0, pass * 2.0 / 3.0) + sum / 2.0,
                ZeroLevel::V2 => micro_batches * hidden(sum / 2.0, pass * 2.0 / 3.0) + sum / 2.0,
                ZeroLevel::V3 => micro_batches * hidden(sum * 1.5, pass),
            };
            let shards = if zero == ZeroLevel::Off { 1.0 } else { replicas as f64 };
            seconds += self.judge.rates.update * bytes / size_of::<f32>() as f64 / shards;
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
    zero == ZeroLevel::V3 || Tiers::from_options(given, offload).parameters != Tier::Device
}
