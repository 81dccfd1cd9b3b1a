//! A configuration, simulated: what an engine with it would take and hold.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use epl_comm::shard_range;

use super::column::{Column, Columns};
use crate::config::{Config, RankOrder};
use crate::cost::{ClusterDevices, DeviceTraits, LayerSeconds, Network, NetworkPlace, Rates, SimulatedRank, StepCosts};
use crate::error::{Error, Result};
use crate::memory::{MemoryEstimate, OptimizerState, Tier, Tiers};
use crate::plan::{Order, Plan};
use crate::probe::planned::PlannedMemory;
use crate::simulate::{Members, StepProgram, StepTime, StepTimeline, TimedOp, alone, simulate_step};
use crate::topology::cluster::{Axis, Cluster, Mesh, MeshSizes, Placement};

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
    /// How fast devices are, with their bytes, where these are bounded, and who says so.
    pub devices: ClusterDevices,
    pub budget_of: &'static str,
    /// By how much an estimate of bytes may be too low, as a part of it.
    pub margin: f64,
    /// Communicators that the transport has.
    pub lanes: usize,
}

/// A replica, whose stages are simulated: the first rank of each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Replica {
    /// By stage.
    pub ranks: Vec<usize>,
    pub devices: Vec<DeviceTraits>,
    /// A number for each [`NetworkPlace`] among the replicas.
    pub links: Vec<usize>,
    /// By micro-batch.
    pub rows: Vec<usize>,
}

/// The ranks of replicas, stage by stage of each, with their plans.
#[derive(Clone, Copy, Debug)]
struct StageRanks<'a> {
    plans: &'a [Plan],
    ranks: &'a [SimulatedRank],
    mesh: &'a Mesh,
}

/// A configuration that was judged.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    /// Until the last rank is done; infinite where it does not fit.
    pub seconds: f64,
    /// Of the stage that computes longest.
    pub time: StepTime,
    /// The rank of which that is.
    pub rank: usize,
    /// By stage.
    pub memory: Vec<MemoryEstimate>,
    /// Bytes of the device by which each stage is over the budget.
    pub over: Vec<u64>,
    /// What is run again.
    pub recompute: Vec<Range<usize>>,
    pub known: KnownCosts,
}

/// Of what it is known what it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownCosts {
    /// An update in host memory.
    pub host_update: bool,
    /// Collectives.
    pub calls: bool,
}

impl Judged {
    /// Those of the stage that is most over it; 0: it fits.
    pub fn over(&self) -> u64 {
        self.over.iter().copied().max().unwrap_or(0)
    }
}

impl Judge<'_> {
    /// The mesh of some sizes on the cluster.
    pub fn mesh_of(&self, given: &Config, order: RankOrder, sizes: [usize; 4]) -> Result<Mesh> {
        let [data, stages, tensor, expert] = sizes;
        let is_near = given.cluster.device_place_prefer_intra_node;
        Ok(Mesh::over(self.cluster, MeshSizes::new(data, stages, tensor, expert)?, order, is_near)?)
    }

    /// The column of a mesh, where these layers are whole.
    pub fn column(&self, mesh: &Mesh, whole_layers: Option<&[String]>) -> Result<&Column> {
        let key = (mesh.size(Axis::Tensor), mesh.size(Axis::Expert));
        let column = match self.columns.get(&key) {
            Some(Ok(column)) => column,
            Some(Err(reason)) => return Err(Error::invalid(reason.clone())),
            None => return Err(Error::invalid(format!("tensor {} and expert {} were not measured", key.0, key.1))),
        };
        let mut measured = [Some(column), column.with_whole_layers.as_deref()].into_iter().flatten();
        measured.find(|column| column.whole_layers() == whole_layers).ok_or_else(|| {
            let told = |layers: Option<&[String]>| layers.map_or("none".to_string(), |layers| format!("{layers:?}"));
            Error::invalid(format!(
                "dist.whole_layers = {}, and these costs were measured with {}; measure under a configuration that gives the same",
                told(whole_layers),
                told(column.whole_layers())
            ))
        })
    }

    /// The layers of a division that take less where they are whole; none where that was not found of any.
    pub fn whole_layers(&self, tensor: usize, expert: usize) -> Option<&[String]> {
        self.columns.get(&(tensor, expert))?.as_ref().ok()?.with_whole_layers.as_ref()?.whole_layers()
    }

    /// The replicas that are simulated: where all are alike, the one that has the most rows; else the first one of each kind.
    ///
    /// # Errors
    ///
    /// When rows are divided over another number of replicas.
    pub fn replicas(&self, mesh: &Mesh, micro_batches: usize) -> Result<Vec<Replica>> {
        let first = mesh.group(Axis::Data, mesh.first());
        let is_even = mesh.row_weights()?.is_none() && self.devices.are_alike() && self.network.is_uniform(mesh);
        let (mut known, mut places): (Vec<Replica>, Vec<NetworkPlace>) = Default::default();
        for (number, rank) in first.iter().enumerate().take(if is_even { 1 } else { usize::MAX }) {
            let own = mesh.rows_of_replica(number, self.batch)?.len();
            let ranks = mesh.group(Axis::Pipeline, *rank);
            let together = |rank: &usize| self.devices.together(&mesh.group(Axis::Tensor, *rank));
            let devices = ranks.iter().map(together).collect();
            let place = |rank: &usize| {
                let place = self.network.place_of(mesh, *rank);
                places.iter().position(|known| *known == place).unwrap_or_else(|| {
                    places.push(place);
                    places.len() - 1
                })
            };
            // Where all groups over an axis lie alike, so do those of all ranks.
            let links = if is_even { vec![0; ranks.len()] } else { ranks.iter().map(place).collect() };
            // A micro-batch without a row runs a stand-in.
            let rows = (0..micro_batches).map(|index| shard_range(own, micro_batches, index).len().max(1)).collect();
            let replica = Replica { ranks, devices, links, rows };
            let is_alike = |known: &Replica| Replica { ranks: replica.ranks.clone(), ..known.clone() } == replica;
            if !known.iter().any(is_alike) {
                known.push(replica);
            }
        }
        Ok(known)
    }

    /// A step under a configuration: of the first rank of each stage, of each kind of replicas. Of many equal micro-batches those are
    /// simulated that fill the stages, and some more.
    ///
    /// # Errors
    ///
    /// What is in the way of such a plan.
    pub fn judge(&self, config: &Config) -> Result<Judged> {
        self.judge_by(config, Self::extrapolated)
    }

    /// The same, where all micro-batches are simulated.
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
        step: impl Fn(&Self, &Column, &StageRanks<'_>, usize) -> Result<(f64, Vec<StepTime>)>,
    ) -> Result<Judged> {
        config.validate()?;
        let mesh = Mesh::on_cluster(self.cluster, config)?;
        let column = self.column(&mesh, config.dist.whole_layers.as_deref())?;
        let (planned, ranks) = self.planned(config, (column, &mesh))?;
        let estimates = planned.iter().map(PlannedMemory::estimate).collect::<Result<Vec<_>>>()?;
        let plans: Vec<Plan> = planned.into_iter().map(PlannedMemory::into_plan).collect();
        let recompute = plans[0].recompute.clone();
        let known = KnownCosts {
            host_update: self.rates.host_update(Tiers::from_config(config)).is_some(),
            calls: self.network.is_known(),
        };
        let stages = mesh.size(Axis::Pipeline);
        let over: Vec<u64> =
            estimates.iter().zip(&ranks).map(|(estimate, rank)| self.over(estimate, &rank.device)).collect();
        let of_stage = |stage: usize| (stage..ranks.len()).step_by(stages);
        // Of each stage the rank that is most over its bound, or needs most.
        let key = |rank: &usize| (over[*rank], estimates[*rank].peak(Tier::Device));
        let fullest: Vec<usize> = (0..stages).filter_map(|stage| of_stage(stage).max_by_key(key)).collect();
        let memory: Vec<MemoryEstimate> = fullest.iter().map(|rank| estimates[*rank].clone()).collect();
        let over: Vec<u64> = fullest.iter().map(|rank| over[*rank]).collect();
        if over.iter().any(|over| *over > 0) {
            let (seconds, time, rank) = (f64::INFINITY, StepTime::default(), ranks[0].rank);
            return Ok(Judged { seconds, time, rank, memory, over, recompute, known });
        }
        let stages = StageRanks { plans: &plans, ranks: &ranks, mesh: &mesh };
        let (seconds, times) = step(self, column, &stages, ranks[0].rows.len())?;
        let longest = |(one, _): &(StepTime, usize), (other, _): &(StepTime, usize)| busy(one).total_cmp(&busy(other));
        let times = times.into_iter().zip(ranks.iter().map(|rank| rank.rank));
        let (mut time, rank) = times.max_by(longest).unwrap_or_default();
        // Until the last rank is done.
        time.stages += (seconds - time.total()).max(0.0);
        Ok(Judged { seconds, time, rank, memory, over, recompute, known })
    }

    /// A step, and where the time of each stage goes, from so many micro-batches that each further one takes what the slowest stage
    /// computes: from as many as there are stages, and up to a wave more, so that whole waves are left; or, where the backlog of the slowest
    /// stage has not come through yet, from one and two rounds more. As many as the first stage holds at once are a wave: it waits for one
    /// to come back before it begins another. Where nothing waits so, two are. Where stages have several chunks, micro-batches go in groups
    /// of as many as there are stages.
    fn extrapolated(&self, column: &Column, stages: &StageRanks<'_>, all: usize) -> Result<(f64, Vec<StepTime>)> {
        let (count, plan) = (stages.mesh.size(Axis::Pipeline), &stages.plans[0]);
        let are_even = stages.ranks.iter().all(|rank| rank.rows[0] == rank.rows[all - 1]);
        let by_file = stages.plans.iter().any(|plan| matches!(plan.schedule, Order::File { .. }));
        let held = plan.schedule.peak_in_flight(0, count, all);
        let tried = if plan.stages.chunks() > 1 {
            vec![[2 * count, 3 * count]]
        } else {
            let wave = if held < all { held } else { 2 };
            // Of one micro-batch alone nothing is added to gradients.
            let least = count.max(2);
            let few = least + all.saturating_sub(least) % wave;
            let round = count.next_multiple_of(wave);
            vec![[few, few + wave], [few + round, few + 2 * round]]
        };
        // The first of a pair may be the second of the one before.
        let mut last = None;
        for [few, more] in tried {
            if all <= more || !are_even || by_file {
                break;
            }
            let first = match last.take().filter(|(count, _)| *count == few) {
                Some((_, first)) => first,
                None => self.simulated(column, stages, few)?,
            };
            let second = self.simulated(column, stages, more)?;
            let own: Vec<f64> = second.1.iter().map(|time| busy(time) / more as f64).collect();
            let slowest = own.iter().copied().fold(0.0, f64::max);
            if (second.0 - first.0) / ((more - few) as f64) < slowest * (1.0 - 1e-9) {
                last = Some((more, second));
                continue;
            }
            let times = (all - few) as f64 / (more - few) as f64;
            // A stage begins once those before it have gone forward once, and ends before they have gone backward.
            let of_replica = |own: &[f64]| {
                let through = |stage: usize| own[..stage].iter().sum::<f64>() + all as f64 * own[stage];
                (0..count).map(through).fold(0.0, f64::max)
            };
            let least =
                if plan.stages.chunks() == 1 { own.chunks(count).map(of_replica).fold(0.0, f64::max) } else { 0.0 };
            let along = first.1.iter().zip(&second.1).map(|(first, second)| first.along(second, times)).collect();
            return Ok(((first.0 + times * (second.0 - first.0)).max(least), along));
        }
        self.simulated(column, stages, all)
    }

    /// A step of so many micro-batches, the first ones, each of which is simulated; where ranks of a host spare each other time while
    /// they wait, by the shares of their work that were found to be done so.
    fn simulated(
        &self,
        column: &Column,
        stages: &StageRanks<'_>,
        micro_batches: usize,
    ) -> Result<(f64, Vec<StepTime>)> {
        /// How often the shares are found anew.
        const TIMES: usize = 2;
        let StageRanks { plans, ranks, mesh } = *stages;
        // Of a group that a layer calls one rank alone is simulated: what it takes is part of the segment.
        let mut layers = LayerSeconds::new();
        for SimulatedRank { rank, links, rows, .. } in ranks {
            for rows in rows[..micro_batches].iter().collect::<BTreeSet<_>>() {
                let seconds = || column.layers(*rows, (mesh, *rank, self.network));
                layers.entry((*links, *rows)).or_insert_with(seconds);
            }
        }
        let programs = plans.chunks(mesh.size(Axis::Pipeline)).zip(ranks.chunks(mesh.size(Axis::Pipeline)));
        let programs = programs.flat_map(|(plans, ranks)| {
            let shapes = column.shapes.without_calls(&ranks[0].rows[..micro_batches], ranks[0].rows.iter().sum());
            let shapes = shapes.with_lanes(self.lanes);
            plans.iter().map(|plan| StepProgram::new(plan, &shapes)).collect::<Vec<_>>()
        });
        let programs = programs.collect::<Result<Vec<_>>>()?;
        let run = |ranks: &[SimulatedRank]| {
            let costs = StepCosts::new((plans, ranks), &column.segments, &layers, (self.network, self.rates));
            simulate_step(&programs, &|at, over: &Members| present(over, mesh, ranks, at), &costs)
        };
        let mut timeline = run(ranks)?;
        for _ in 0..if self.rates.spared > 0.0 { TIMES } else { 0 } {
            timeline = run(&self.spared(stages, (&timeline, &programs)))?;
        }
        let times = programs.iter().zip(plans).zip(ranks).enumerate().map(|(at, ((program, plan), rank))| {
            let own = || plan.stages.of_stage(plan.stage()).cloned().flatten();
            // Micro-batches of as many rows lie behind each other.
            let of = |alike: &[usize]| {
                let seconds = &layers[&(rank.links, alike[0])];
                alike.len() as f64 * own().map(|segment| seconds[segment].iter().sum::<f64>()).sum::<f64>()
            };
            let mut time = timeline.parts(at, program);
            let layers = rank.rows[..micro_batches].chunk_by(PartialEq::eq).map(of).sum::<f64>();
            (time.layers, time.compute) = (time.layers + layers, time.compute - layers);
            time
        });
        Ok((timeline.makespan(), times.collect()))
    }

    /// The ranks, each as much faster as it computes while others of its host do not.
    fn spared(
        &self,
        stages: &StageRanks<'_>,
        (timeline, programs): (&StepTimeline, &[StepProgram]),
    ) -> Vec<SimulatedRank> {
        let (hosts, mesh) = (self.cluster.hosts_of_ranks(), stages.mesh);
        let (segments, work): (Vec<Vec<TimedOp>>, Vec<Vec<TimedOp>>) =
            programs.iter().enumerate().map(|(at, program)| timeline.work(at, program)).unzip();
        // Ranks that share layers do the same, and replicas that are not simulated as the first one.
        let simulated = |rank: usize| {
            let first = mesh.group(Axis::Tensor, rank)[0];
            let stage = || mesh.group(Axis::Pipeline, rank).iter().position(|other| *other == rank);
            stages.ranks.iter().position(|other| other.rank == first).or_else(stage)
        };
        let spared = |(at, own): (usize, &SimulatedRank)| {
            let others = (0..hosts.len()).filter(|other| *other != own.rank && hosts[*other] == hosts[own.rank]);
            let others: Vec<usize> = others.filter_map(simulated).collect();
            // Of its own work the segments, as `compute` does not change what an update takes.
            let alone: f64 = others.iter().map(|other| alone(&segments[at], &work[*other])).sum();
            let takes = 1.0 - self.rates.spared * alone / others.len().max(1) as f64;
            SimulatedRank { device: DeviceTraits { compute: own.device.compute / takes, ..own.device }, ..own.clone() }
        };
        stages.ranks.iter().enumerate().map(spared).collect()
    }

    /// Devices where no other rank of their hosts computes: no step makes them faster.
    pub fn beside_nobody(&self, devices: &[DeviceTraits]) -> Vec<DeviceTraits> {
        let takes = 1.0 - self.rates.spared;
        devices.iter().map(|device| DeviceTraits { compute: device.compute / takes, ..*device }).collect()
    }

    /// What the ranks that are simulated would have.
    fn planned<'c>(
        &self,
        config: &Config,
        (column, mesh): (&'c Column, &Mesh),
    ) -> Result<(Vec<PlannedMemory<'c>>, Vec<SimulatedRank>)> {
        let placement = Placement::of(self.cluster, mesh);
        let replicas = self.replicas(mesh, config.num_micro_batch(mesh.replicas())?)?;
        let ranks = replicas.into_iter().flat_map(|Replica { ranks, devices, links, rows }| {
            let of = move |((rank, device), links)| SimulatedRank { rank, device, links, rows: rows.clone() };
            ranks.into_iter().zip(devices).zip(links).map(of)
        });
        let ranks: Vec<SimulatedRank> = ranks.collect();
        let numbers: Vec<usize> = ranks.iter().map(|rank| rank.rank).collect();
        let builder = Arc::new(column.builder.on_mesh(config.clone(), (mesh, numbers[0]), placement));
        let planned = |(plan, rank): (Plan, &SimulatedRank)| {
            PlannedMemory::of(builder.clone(), plan, self.state)
                .with_activations(column.activations.as_ref(), rank.rows[0])
        };
        Ok((builder.plans_of(&numbers)?.into_iter().zip(&ranks).map(planned).collect(), ranks))
    }

    /// Bytes that an estimate of a device may come to; infinite where they are not bounded.
    pub fn free(&self, device: &DeviceTraits) -> f64 {
        device.bytes.map_or(f64::INFINITY, |bytes| bytes as f64 / (1.0 + self.margin))
    }

    /// The same of the largest device.
    pub fn free_of_largest(&self) -> f64 {
        (0..self.cluster.world_size()).map(|rank| self.free(&self.devices.together(&[rank]))).fold(0.0, f64::max)
    }

    /// Bytes of a device by which an estimate is over its bound.
    fn over(&self, estimate: &MemoryEstimate, device: &DeviceTraits) -> u64 {
        let needed = (estimate.peak(Tier::Device) as f64 * (1.0 + self.margin)) as u64;
        device.bytes.map_or(0, |bytes| needed.saturating_sub(bytes))
    }

    /// Why a configuration does not fit, and with which setting it would: of the rank that is most over its bound.
    ///
    /// # Errors
    ///
    /// As [`judge`](Self::judge).
    pub fn refusal(&self, config: &Config) -> Result<String> {
        let mesh = Mesh::on_cluster(self.cluster, config)?;
        let column = self.column(&mesh, config.dist.whole_layers.as_deref())?;
        let (planned, ranks) = self.planned(config, (column, &mesh))?;
        let mut worst: Option<(u64, (&PlannedMemory<'_>, &DeviceTraits))> = None;
        for (planned, rank) in planned.iter().zip(&ranks) {
            let over = self.over(&planned.estimate()?, &rank.device);
            if worst.is_none_or(|(known, _)| over > known) {
                worst = Some((over, (planned, &rank.device)));
            }
        }
        let Some((_, (planned, device))) = worst else { return Ok(String::new()) };
        let refused = planned.check(self.free(device) as u64).err().map(|error| error.to_string());
        let margin = match device.bytes.filter(|_| self.margin > 0.0) {
            Some(budget) => format!(" ({} = {budget} less auto.margin = {})", self.budget_of, self.margin),
            None => String::new(),
        };
        Ok(format!("{}{margin}", refused.unwrap_or_default()))
    }
}

/// Which of the ranks that are simulated are in a group of one of them.
fn present(over: &Members, mesh: &Mesh, ranks: &[SimulatedRank], at: usize) -> Vec<usize> {
    match over {
        Members::Other(_) => vec![at],
        over => {
            let members = over.of(mesh, ranks[at].rank);
            // In the order of the group, which a link's ends have.
            members.iter().filter_map(|member| ranks.iter().position(|rank| rank.rank == *member)).collect()
        }
    }
}

/// Seconds in which a stage works on segments.
fn busy(time: &StepTime) -> f64 {
    time.compute + time.recompute + time.layers
}
