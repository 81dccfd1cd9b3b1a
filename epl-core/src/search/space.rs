//! The layouts that may be, with bounds of what they take.

use super::candidate::{Level, PutAway, Shape, division, is_fixed};
use super::column::SegmentCost;
use super::judge::Judge;
use super::kept::Kept;
use crate::config::{Config, OffloadLevel, PipelineStrategy, RankOrder, ZeroLevel};
use crate::cost::DeviceTraits;
use crate::error::Result;
use crate::memory::{Tier, Tiers};
use crate::topology::cluster::Axis;

/// The most chunks of a stage that are tried.
const MOST_CHUNKS: usize = 8;
/// The most micro-batches that are tried for each stage, beside those that divide the rows.
const MOST_MICRO_BATCHES: usize = 64;

/// The numbers that divide another.
fn divisors(number: usize) -> Vec<usize> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}

/// A number that is given, or those that may be chosen.
fn given_or(given: &Config, key: &str, number: usize, others: Vec<usize>) -> Vec<usize> {
    if is_fixed(given, key) { others.into_iter().filter(|other| *other == number).collect() } else { others }
}

/// The ways to divide layers over tensor and expert ranks, in a world of so many: those that leave replicas and stages as are given.
pub(crate) fn divisions(given: &Config, ranks: usize) -> Vec<(usize, usize)> {
    let dist = &given.dist;
    let tensors = given_or(given, "dist.tensor_parallel_size", dist.tensor_parallel_size, divisors(ranks));
    let experts = |tensor: usize| {
        let all = divisors(ranks / tensor);
        given_or(given, "dist.expert_parallel_size", dist.expert_parallel_size, all)
    };
    let all = tensors.into_iter().flat_map(|tensor| experts(tensor).into_iter().map(move |expert| (tensor, expert)));
    all.filter(|(tensor, expert)| !stages_and_replicas(given, ranks / tensor, *expert).is_empty()).collect()
}

/// The ways to divide so many ranks into replicas, whose number the experts' ranks divide, of some stages: by these.
fn stages_and_replicas(given: &Config, ranks: usize, expert: usize) -> Vec<(usize, usize)> {
    let dist = &given.dist;
    let stages = given_or(given, "dist.pipeline_parallel_size", dist.pipeline_parallel_size, divisors(ranks));
    let is_allowed =
        |data: usize| dist.data_parallel_size.is_none_or(|said| said == data) && data.is_multiple_of(expert);
    let both = stages.into_iter().map(|stages| (stages, ranks / stages));
    both.filter(|(_, data)| is_allowed(*data)).collect()
}

/// Layouts that may be, and why others cannot.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub shapes: Vec<Shape>,
    pub refused: Vec<(String, String)>,
}

/// The layouts that what is given allows, of a model of so many segments, and that leave what is to stay. Where devices are not alike,
/// or lie on several hosts, ranks lie in both orders; replicas divide rows evenly or by their speed.
pub(super) fn shapes(given: &Config, judge: &Judge<'_>, segments: usize, kept: &Kept) -> Space {
    let (ranks, mut space) = (judge.cluster.world_size(), Space::default());
    for (tensor, expert) in divisions(given, ranks) {
        for (stages, data) in stages_and_replicas(given, ranks / tensor, expert) {
            let sizes = [data, stages, tensor, expert];
            if !kept.allows(judge, given, sizes) {
                continue;
            }
            if stages > segments {
                let reason =
                    format!("the model has {segments} segments, and a stage runs one at least; cut it into more");
                space.refused.push((division(sizes), reason));
                continue;
            }
            let numbers = match micro_batches((given, kept), data, stages, judge.batch) {
                Ok(numbers) => numbers,
                Err(error) => {
                    space.refused.push((division(sizes), error.to_string()));
                    continue;
                }
            };
            let lies = arrangements((given, kept), judge, sizes);
            let is_found = !is_fixed(given, "dist.whole_layers") && judge.whole_layers(tensor, expert).is_some();
            let wholes = if is_found { &[false, true][..] } else { &[false] };
            let lies: Vec<_> = lies.iter().flat_map(|lies| wholes.iter().map(move |whole| (*lies, *whole))).collect();
            // Neighbours differ in chunks and schedules alone.
            let common = numbers.into_iter().flat_map(|number| lies.iter().map(move |lies| (number, *lies)));
            for (micro_batches, ((order, by_speed), has_whole_layers)) in common {
                for (chunks, strategy) in orders(given, stages, micro_batches, segments) {
                    if given.pipeline.cuts.as_ref().is_none_or(|cuts| cuts.len() + 1 == stages * chunks) {
                        space.shapes.push(Shape {
                            sizes,
                            micro_batches,
                            chunks,
                            strategy,
                            order,
                            by_speed,
                            has_whole_layers,
                        });
                    }
                }
            }
        }
    }
    space
}

/// In which orders ranks may lie, and whether replicas may divide rows by their speed.
fn arrangements((given, kept): (&Config, &Kept), judge: &Judge<'_>, sizes: [usize; 4]) -> Vec<(RankOrder, bool)> {
    let (are_alike, [data, stages, ..], own) = (judge.devices.are_alike(), sizes, given.dist.order);
    let other = match own {
        RankOrder::DataPipelineTensor => RankOrder::PipelineDataTensor,
        RankOrder::PipelineDataTensor => RankOrder::DataPipelineTensor,
    };
    // Who reads which files follows from the order.
    let may_be = data > 1 && stages > 1 && !is_fixed(given, "dist.order") && !given.io.slicing;
    let is_free = may_be && (!are_alike || lie_otherwise(judge, given, [own, other], sizes));
    let orders = [Some(own), is_free.then_some(other)].into_iter().flatten();
    let may_divide = !are_alike && data > 1 && !is_fixed(given, "io.row_weights") && kept.replicas.is_none();
    orders
        .flat_map(|order| [Some(false), may_divide.then_some(true)].into_iter().flatten().map(move |by| (order, by)))
        .collect()
}

/// Whether the groups of each host's first rank lie otherwise on hosts in one order than in the other.
fn lie_otherwise(judge: &Judge<'_>, given: &Config, orders: [RankOrder; 2], sizes: [usize; 4]) -> bool {
    if judge.cluster.host_num() == 1 {
        return false;
    }
    let lie = |order| {
        let mesh = judge.mesh_of(given, order, sizes).ok()?;
        let firsts = || (0..judge.cluster.worker_num()).map(|host| judge.cluster.ranks_of(host).start);
        let of = |axis| firsts().map(|rank| judge.network.shape(&mesh.group(axis, rank))).collect::<Vec<_>>();
        Some(Axis::ALL.map(of))
    };
    let [one, other] = orders.map(lie);
    one != other
}

/// How many micro-batches a step may have: what is given, also where that is to stay, or what divides a replica's rows, and powers of two.
///
/// # Errors
///
/// When the batch sizes that are given do not make a number of them.
fn micro_batches((given, kept): (&Config, &Kept), data: usize, stages: usize, batch: usize) -> Result<Vec<usize>> {
    let is_fixed = is_fixed(given, "pipeline.num_micro_batch") || given.train.micro_batch_size.is_some();
    if is_fixed || kept.micro_batches.is_some() {
        let number = given.num_micro_batch(data)?;
        return Ok(if kept.micro_batches.is_none_or(|kept| kept == number) { vec![number] } else { Vec::new() });
    }
    let rows = batch.div_ceil(data).max(1);
    let most = rows.min(MOST_MICRO_BATCHES * stages);
    let powers = (0..usize::BITS).map(|power| 1_usize << power).take_while(|power| *power <= most);
    let mut all: Vec<usize> = (1..=most).filter(|number| rows.is_multiple_of(*number)).chain(powers).collect();
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The orders in which stages may run them.
fn orders(given: &Config, stages: usize, micro_batches: usize, segments: usize) -> Vec<(usize, PipelineStrategy)> {
    use PipelineStrategy::{PreferBackward, PreferBackwardOptimizer, PreferForward};
    let pipeline = &given.pipeline;
    if stages == 1 {
        // With one stage the order changes nothing, but what is given must be there.
        let is_free = !is_fixed(given, "pipeline.num_chunks") || pipeline.num_chunks == 1;
        return if is_free { vec![(1, pipeline.strategy)] } else { Vec::new() };
    }
    if !pipeline.schedule_file.is_empty() {
        return vec![(pipeline.num_chunks, pipeline.strategy)];
    }
    let plain = [PreferBackward, PreferBackwardOptimizer, PreferForward].map(|strategy| (1, strategy));
    let chunks: Vec<usize> = match is_fixed(given, "pipeline.num_chunks") {
        true => vec![pipeline.num_chunks],
        false => vec![1, 2, 4, MOST_CHUNKS],
    };
    let fits = chunks.into_iter().filter(|chunks| stages * chunks <= segments);
    let all = fits.flat_map(|chunks| if chunks == 1 { plain.to_vec() } else { vec![(chunks, PreferBackward)] });
    let is_allowed = |strategy| !is_fixed(given, "pipeline.strategy") || strategy == pipeline.strategy;
    let allowed = all.filter(|(_, strategy)| is_allowed(*strategy));
    // One micro-batch is in no order.
    allowed.take(if micro_batches == 1 { 1 } else { usize::MAX }).collect()
}

/// What is put away as is given, and where the memory of devices is bounded what a search may put away beside that: from the least on.
pub(super) fn ways_to_put_away(given: &Config, is_bounded: bool) -> Vec<PutAway> {
    let mut ways = vec![PutAway::of(given)];
    if is_bounded && !is_fixed(given, "offload.level") {
        ways.extend((!is_fixed(given, "offload.optimizer_state")).then_some(PutAway::State));
        ways.push(PutAway::Offload(OffloadLevel::V0));
    }
    ways.dedup_by_key(|way| way.tiers(given));
    ways
}

/// The tiers of those ways in which the optimizer's state is not on the device.
pub(crate) fn put_away(given: &Config) -> Vec<Tiers> {
    let ways = ways_to_put_away(given, given.searches() && given.offload.device_bytes.is_some());
    ways.into_iter().map(|way| way.tiers(given)).filter(|tiers| tiers.state != Tier::Device).collect()
}

/// The levels that what is given allows, over so many replicas, where this is put away.
pub(super) fn levels(given: &Config, data: usize, away: PutAway) -> Vec<Level> {
    let zeros = match is_fixed(given, "zero.level") {
        true => vec![given.zero.level],
        false if data == 1 => vec![ZeroLevel::Off],
        // v0 sends more than v1 and keeps no less.
        false => vec![ZeroLevel::Off, ZeroLevel::V1, ZeroLevel::V2, ZeroLevel::V3],
    };
    zeros.into_iter().map(|zero| (zero, away)).collect()
}

/// Whether what is run again may be chosen.
pub(super) fn may_recompute(given: &Config) -> bool {
    !is_fixed(given, "gradient_checkpoint.type")
}

/// Seconds of a chain of segments: what bounds a step of one replica from below.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeastSeconds {
    /// Of all segments together.
    sum: f64,
    /// Of the slowest one.
    slowest: f64,
    /// How fast the slowest stage is, the fastest one, and all together.
    speeds: [f64; 3],
    /// Seconds that a carry and its gradients take from the first stage to the last and back.
    hops: f64,
}

impl LeastSeconds {
    /// Of these segments, in the smallest micro-batches, on stages of these devices, between which carries and their gradients take so
    /// long in all.
    pub fn of(costs: &[SegmentCost], devices: &[DeviceTraits], hops: f64) -> Self {
        let seconds = || costs.iter().map(SegmentCost::seconds);
        let speeds = || devices.iter().map(|device| device.compute);
        let speeds = [speeds().fold(f64::INFINITY, f64::min), speeds().fold(0.0, f64::max), speeds().sum()];
        Self { sum: seconds().sum(), slowest: seconds().fold(0.0, f64::max), speeds, hops }
    }

    /// What a step takes at least, however its stages are cut: each micro-batch goes through all of them, and the slowest segment
    /// runs all of them.
    ///
    /// For even costs and one chunk `S / (1 − (1 − 1/m)^p)` of the sum S, with m micro-batches on p stages: the most that p stages, of
    /// which each works m times as long as on one, can hide. Where stages are not alike, what all of them need together at their speeds.
    ///
    /// The first stage holds so many parts of micro-batches at once at most (`held`), each of them until it has gone forward and
    /// backward through all parts behind it: by Little's law a step takes as long as all of them are held together, divided by `held`.
    /// Of v chunks the first is held while v are crossed, the last while one is: hops count 1 + … + v times.
    pub fn bound(&self, shape: &Shape, held: usize) -> f64 {
        let (stages, micro_batches, chunks) = (shape.sizes[1] as f64, shape.micro_batches as f64, shape.chunks as f64);
        let [least, most, all] = self.speeds;
        let rest = match shape.chunks {
            1 if least == most => self.sum / most / (1.0 - (1.0 - 1.0 / micro_batches).powf(stages)),
            _ => (self.sum / most).max(micro_batches * self.sum / all),
        };
        let together = self.sum / most + chunks * (chunks + 1.0) / 2.0 * self.hops;
        rest.max(micro_batches * self.slowest / most).max(micro_batches * together / held as f64)
    }
}
