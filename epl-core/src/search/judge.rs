//! A configuration, simulated: what an engine with it would take and hold.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use epl_comm::shard_range;

use super::column::{Column, Columns};
use crate::config::Config;
use crate::cost::{Network, Rates, StepCosts};
use crate::error::{Error, Result};
use crate::memory::{MemoryEstimate, OptimizerState, Tier};
use crate::plan::{Order, Plan};
use crate::probe::planned::PlannedMemory;
use crate::simulate::{Members, StepProgram, StepTime, simulate_step};
use crate::topology::cluster::{Axis, Cluster, Mesh, Placement};

/// What configurations are judged by.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    pub columns: &'a Columns,
    pub cluster: &'a Cluster,
    pub network: &'a Network,
    pub rates: Rates,
    /// Of the optimizer.
    pub state: OptimizerState,
    /// Rows of a step, over all replicas.
    pub batch: usize,
    /// Bytes of a device, where they are bounded, and who says so.
    pub budget: Option<u64>,
    pub budget_of: &'static str,
    /// By how much an estimate of bytes may be too low, as a part of it.
    pub margin: f64,
    /// Communicators that the transport has.
    pub lanes: usize,
}

/// The first rank of each stage.
#[derive(Clone, Copy, Debug)]
struct StageRanks<'a> {
    plans: &'a [Plan],
    ranks: &'a [usize],
    mesh: &'a Mesh,
}

/// A configuration that was judged.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    /// Until the last rank is done; infinite where it does not fit.
    pub seconds: f64,
    /// Of the stage that computes longest.
    pub time: StepTime,
    /// By stage.
    pub memory: Vec<MemoryEstimate>,
    /// Bytes of the device by which each stage is over the budget.
    pub over: Vec<u64>,
    /// What is run again.
    pub recompute: Vec<Range<usize>>,
}

impl Judged {
    /// Those of the stage that is most over it; 0: it fits.
    pub fn over(&self) -> u64 {
        self.over.iter().copied().max().unwrap_or(0)
    }
}

impl Judge<'_> {
    /// The column of a mesh.
    pub fn column(&self, mesh: &Mesh) -> Result<&Column> {
        let key = (mesh.size(Axis::Tensor), mesh.size(Axis::Expert));
        match self.columns.get(&key) {
            Some(Ok(column)) => Ok(column),
            Some(Err(reason)) => Err(Error::invalid(reason.clone())),
            None => Err(Error::invalid(format!("tensor {} and expert {} were not measured", key.0, key.1))),
        }
    }

    /// The rows of the micro-batches of the replica that has the most.
    pub fn rows(&self, replicas: usize, micro_batches: usize) -> Vec<usize> {
        let own = shard_range(self.batch, replicas, 0).len();
        (0..micro_batches).map(|index| shard_range(own, micro_batches, index).len()).collect()
    }

    /// A step under a configuration: of the first rank of each stage. Of many equal micro-batches those are simulated that fill the
    /// stages, and some more.
    ///
    /// # Errors
    ///
    /// What is in the way of such a plan.
    pub fn judge(&self, config: &Config) -> Result<Judged> {
        self.judge_by(config, Self::step)
    }

    /// The same, of all micro-batches.
    ///
    /// # Errors
    ///
    /// As [`judge`](Self::judge).
    pub fn judge_all(&self, config: &Config) -> Result<Judged> {
        self.judge_by(config, Self::simulated)
    }

    fn judge_by(
        &self,
        config: &Config,
        step: impl Fn(&Self, &Column, &StageRanks<'_>, &[usize]) -> Result<(f64, Vec<StepTime>)>,
    ) -> Result<Judged> {
        config.validate()?;
        let mesh = Mesh::on_cluster(self.cluster, config)?;
        let (column, ranks) = (self.column(&mesh)?, mesh.group(Axis::Pipeline, mesh.first()));
        let (planned, rows) = self.planned(config, &mesh)?;
        let memory = planned.iter().map(PlannedMemory::estimate).collect::<Result<Vec<_>>>()?;
        let plans: Vec<Plan> = planned.into_iter().map(PlannedMemory::into_plan).collect();
        let recompute = plans[0].recompute.clone();
        let over: Vec<u64> = memory.iter().map(|estimate| self.over(estimate)).collect();
        if over.iter().any(|over| *over > 0) {
            return Ok(Judged { seconds: f64::INFINITY, time: StepTime::default(), memory, over, recompute });
        }
        let stages = StageRanks { plans: &plans, ranks: &ranks, mesh: &mesh };
        let (seconds, times) = step(self, column, &stages, &rows)?;
        let mut time = times.into_iter().max_by(|one, other| busy(one).total_cmp(&busy(other))).unwrap_or_default();
        // Until the last rank is done.
        time.stages += (seconds - time.total()).max(0.0);
        Ok(Judged { seconds, time, memory, over, recompute })
    }

    /// A step, and where the time of each stage goes, from so many micro-batches that each further one takes what the slowest stage
    /// computes: from a few more than there are stages, or, where its backlog has not come through yet, twice and thrice as many. Where
    /// stages have several chunks, micro-batches go in groups of as many as there are stages.
    fn step(&self, column: &Column, stages: &StageRanks<'_>, rows: &[usize]) -> Result<(f64, Vec<StepTime>)> {
        let (count, all) = (stages.plans.len(), rows.len());
        let by_file = stages.plans.iter().any(|plan| matches!(plan.schedule, Order::File { .. }));
        let tried = [[count + 2, count + 4], [2 * count, 3 * count]];
        let from = usize::from(stages.plans[0].stages.chunks() > 1);
        for [few, more] in tried.into_iter().skip(from) {
            if all <= more || rows[0] != rows[all - 1] || by_file {
                break;
            }
            let first = self.simulated(column, stages, &rows[..few])?;
            let second = self.simulated(column, stages, &rows[..more])?;
            let own: Vec<f64> = second.1.iter().map(|time| busy(time) / more as f64).collect();
            let slowest = own.iter().copied().fold(0.0, f64::max);
            if (second.0 - first.0) / ((more - few) as f64) < slowest * (1.0 - 1e-9) {
                continue;
            }
            let times = (all - few) as f64 / (more - few) as f64;
            // A stage begins once those before it have gone forward once, and ends before they have gone backward.
            let least = (0..count).map(|stage| own[..stage].iter().sum::<f64>() + all as f64 * own[stage]);
            let least = if from == 0 { least.fold(0.0, f64::max) } else { 0.0 };
            let along = first.1.iter().zip(&second.1).map(|(first, second)| first.along(second, times)).collect();
            return Ok(((first.0 + times * (second.0 - first.0)).max(least), along));
        }
        self.simulated(column, stages, rows)
    }

    fn simulated(&self, column: &Column, stages: &StageRanks<'_>, rows: &[usize]) -> Result<(f64, Vec<StepTime>)> {
        let StageRanks { plans, ranks, mesh } = *stages;
        let shapes = column.shapes.without_calls(rows).with_lanes(self.lanes);
        // Of a group that a layer calls one rank alone is simulated: what it takes is part of the segment.
        let of_rows = |rows: &usize| (*rows, column.layers(*rows, mesh, self.network));
        let layers: BTreeMap<usize, Vec<[f64; 2]>> =
            rows.iter().collect::<BTreeSet<_>>().into_iter().map(of_rows).collect();
        let programs = plans.iter().map(|plan| StepProgram::new(plan, &shapes)).collect::<Result<Vec<_>>>()?;
        let costs = StepCosts::new((plans, ranks), &column.segments, (rows, &layers), (self.network, self.rates));
        let timeline = simulate_step(&programs, &|at, over: &Members| present(over, mesh, ranks, at), &costs)?;
        let times = programs.iter().zip(plans).enumerate().map(|(rank, (program, plan))| {
            let own: Vec<usize> = plan.stages.of_stage(plan.stage()).cloned().flatten().collect();
            let of = |rows: &usize| own.iter().map(|segment| layers[rows][*segment].iter().sum::<f64>()).sum::<f64>();
            let mut time = timeline.parts(rank, program);
            let layers = rows.iter().map(of).sum::<f64>();
            (time.layers, time.compute) = (time.layers + layers, time.compute - layers);
            time
        });
        Ok((timeline.makespan(), times.collect()))
    }

    /// What the first rank of each stage would have, and the rows of its micro-batches.
    fn planned(&self, config: &Config, mesh: &Mesh) -> Result<(Vec<PlannedMemory<'_>>, Vec<usize>)> {
        let (column, placement) = (self.column(mesh)?, Placement::of(self.cluster, mesh));
        let rows = self.rows(mesh.replicas(), config.num_micro_batch(mesh.replicas())?);
        let ranks = mesh.group(Axis::Pipeline, mesh.first());
        let builder = Arc::new(column.builder.on_mesh(config.clone(), (mesh, ranks[0]), placement));
        let planned = |plan: Plan| {
            PlannedMemory::of(builder.clone(), plan, self.state).with_activations(column.activations.as_ref(), rows[0])
        };
        Ok((builder.plans_of(&ranks)?.into_iter().map(planned).collect(), rows))
    }

    /// Bytes that an estimate may come to; infinite where they are not bounded.
    pub fn free(&self) -> f64 {
        self.budget.map_or(f64::INFINITY, |budget| budget as f64 / (1.0 + self.margin))
    }

    /// Bytes of the device by which an estimate is over the budget.
    fn over(&self, estimate: &MemoryEstimate) -> u64 {
        let needed = (estimate.peak(Tier::Device) as f64 * (1.0 + self.margin)) as u64;
        self.budget.map_or(0, |budget| needed.saturating_sub(budget))
    }

    /// Why a configuration does not fit, and with which setting it would: of the stage that needs the most.
    ///
    /// # Errors
    ///
    /// As [`judge`](Self::judge).
    pub fn refusal(&self, config: &Config) -> Result<String> {
        let mesh = Mesh::on_cluster(self.cluster, config)?;
        let (Some(budget), (planned, _)) = (self.budget, self.planned(config, &mesh)?) else {
            return Ok(String::new());
        };
        let mut worst: Option<(u64, &PlannedMemory<'_>)> = None;
        for planned in &planned {
            let peak = planned.estimate()?.peak(Tier::Device);
            if worst.is_none_or(|(known, _)| peak > known) {
                worst = Some((peak, planned));
            }
        }
        let refused =
            worst.and_then(|(_, planned)| planned.check(self.free() as u64).err()).map(|error| error.to_string());
        let margin = match self.margin > 0.0 {
            true => format!(" ({} = {budget} less auto.margin = {})", self.budget_of, self.margin),
            false => String::new(),
        };
        Ok(format!("{}{margin}", refused.unwrap_or_default()))
    }
}

/// Which of the ranks that are simulated are in a group of one of them.
fn present(over: &Members, mesh: &Mesh, ranks: &[usize], at: usize) -> Vec<usize> {
    match over {
        Members::Other(_) => vec![at],
        over => {
            let members = over.of(mesh, ranks[at]);
            // In the order of the group, which a link's ends have.
            members.iter().filter_map(|member| ranks.iter().position(|rank| rank == member)).collect()
        }
    }
}

/// Seconds in which a stage works on segments.
fn busy(time: &StepTime) -> f64 {
    time.compute + time.recompute + time.layers
}
