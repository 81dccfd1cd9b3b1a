//! What a rank takes for what is not of segments.

use std::time::Instant;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use epl_comm::ReduceOp;

use super::columns::measuring;
use super::together::together;
use crate::config::{Config, StateTier, ToSetting};
use crate::cost::{HostUpdates, Rates};
use crate::engine::{Engine, MicroBatch, Squares};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::memory::{Tier, Tiers};
use crate::model::chain::Chain;
use crate::model::place::Place;
use crate::offload::is_host;
use crate::optim::OptimizerConfig;
use crate::probe::cache_flush::CacheFlush;
use crate::probe::measure::{median, wait};
use crate::search::{put_away, reset};
use crate::stable_hash::stable_hash;

/// Rows and columns of what is measured with: 4 MiB, as large as a layer, and larger than a core's own cache.
const WIDTH: usize = 1024;
/// How often something is timed; the first does not count.
const REPEATS: usize = 8;

/// Measures them. Collective.
pub(super) fn rates<O: OptimizerConfig>(epl: &Epl, optimizer: &O) -> Result<Rates> {
    let device = epl.place().device().clone().inner();
    let [state, more] = [false, true].map(|more| put_away_with(epl.config(), more));
    let own = || {
        let host = |tiers: Option<Tiers>| {
            Ok::<_, Error>(tiers.map_or(Ok([0.0; 2]), |tiers| update(epl, optimizer, Some(tiers)))?[0])
        };
        let [update, parameter] = update(epl, optimizer, None)?;
        Ok([update, host(state)?, host(more)?, copy(&device)?, parameter, norm(epl, &device)?])
    };
    let own = together(epl.world(), own(), "measure an update, and says why")??;
    let own = [&own[..], &[lost(epl, &device)?, spared(epl, &device)?]].concat();
    let slowest = epl.world().all_reduce_values(&own, ReduceOp::Max)?;
    let [update, of_state, of_more, copy, parameter, norm, lost, spared] = slowest[..] else {
        return Err(Error::invalid("ranks summed another number of rates"));
    };
    let host_updates = HostUpdates { of_state: state.map(|_| of_state), of_more: more.map(|_| of_more) };
    Ok(Rates { update, host_updates, parameter, norm, copy, lost, spared })
}

/// Where parameters, gradients and state lie where the state is put away, or may be: alone, or with `more`.
pub(super) fn put_away_with(config: &Config, more: bool) -> Option<Tiers> {
    put_away(config).into_iter().find(|tiers| tiers.puts_away_more_than_state() == more)
}

/// What rates are of, beside a program and a world: the optimizer that is measured, the options, and where state may be put away.
pub(super) fn key<O: OptimizerConfig>(epl: &Epl, optimizer: &O) -> Result<String> {
    let settings = match optimizer.groups()?.is_empty() {
        true => serde_json::to_string(optimizer),
        false => serde_json::to_string(&AdamWConfig::new()),
    };
    let settings = settings.map_err(|error| Error::invalid(format!("the optimizer's settings: {error}")))?;
    let config = measuring(epl.config(), 1, 1)?.to_toml();
    Ok(format!("{} {:016x}", O::NAME, stable_hash(&format!("{settings} {config} {:?}", put_away(epl.config())))))
}

/// Seconds of the optimizer for an element and for a parameter, as the engine calls it. Parameter groups are of the user's parameters: in their place
/// AdamW is measured. With `away` the optimizer's state lies in host memory, and what else is said to lie away from the device.
fn update<O: OptimizerConfig>(epl: &Epl, optimizer: &O, away: Option<Tiers>) -> Result<[f64; 2]> {
    match optimizer.groups()?.is_empty() {
        true => update_of(epl, optimizer, away),
        false => update_of(epl, &AdamWConfig::new(), away),
    }
}

/// The columns of matrices of WIDTH rows by which what an element takes is told from what a call does: on a device that has memory
/// of its own they are larger, as calls are a larger part there.
fn columns(device: &Device) -> [usize; 2] {
    let most = if is_host(device) { WIDTH } else { 8 * WIDTH };
    [most / 4, most]
}

/// Seconds of an element more, by the seconds of two numbers of them.
fn slope([(few, short), (many, long)]: [(usize, f64); 2]) -> f64 {
    match long > short {
        true => (long - short) / (many - few) as f64,
        // Something came between.
        false => long / many as f64,
    }
}

/// Matrices that the same rows are multiplied with.
#[derive(Module, Debug)]
struct Matrices {
    layers: Vec<Linear>,
}

/// So many small matrices beside one tell what a parameter takes, whatever its size.
const MANY: usize = 32;
/// Rows and columns of them.
const SMALL: usize = 32;

/// Of a model of one matrix, and of one of many small ones, in a world of one rank.
fn update_of<O: OptimizerConfig>(epl: &Epl, optimizer: &O, away: Option<Tiers>) -> Result<[f64; 2]> {
    let [few, many] = columns(epl.place().device()).map(|columns| {
        let seconds = seconds_of_update(epl, optimizer, (1, [WIDTH, columns]), away)?;
        Ok::<_, Error>((columns * WIDTH, seconds))
    });
    let element = slope([few?, many?]);
    if away.is_some() {
        return Ok([element, 0.0]);
    }
    let [one, many] = [1, MANY + 1].map(|count| seconds_of_update(epl, optimizer, (count, [SMALL; 2]), None));
    let parameter = (many? - one?) / MANY as f64 - element * (SMALL * SMALL) as f64;
    Ok([element, parameter.max(0.0)])
}

/// Of a step of so many matrices of these rows and columns.
fn seconds_of_update<O: OptimizerConfig>(
    epl: &Epl,
    optimizer: &O,
    (count, [rows, columns]): (usize, [usize; 2]),
    away: Option<Tiers>,
) -> Result<f64> {
    let mut config = measuring(epl.config(), 1, 1)?;
    config.set("dist.data_parallel_size", 1)?;
    reset(&mut config, &["optimizer.frozen", "optimizer.rate_factor", "optimizer.weight_decay", "amp.full_precision"])?;
    if let Some(Tiers { parameters, gradients, state }) = away {
        // Refused beside what lies in host memory, and of no meaning where one rank is alone.
        let of_collectives =
            ["communication.num_communicators", "communication.max_splits", "communication.sparse_as_dense"];
        reset(&mut config, &of_collectives)?;
        let keys = ["offload.parameters", "offload.gradients", "offload.optimizer_state"];
        for (key, _) in keys.into_iter().zip([parameters, gradients, state]).filter(|(_, tier)| *tier != Tier::Device) {
            // What lies in files is measured in memory.
            config.set(key, StateTier::Host.to_setting())?;
        }
    }
    let alone = epl.in_thought(config)?;
    let layers = |at: &Place| {
        let matrix = |_| LinearConfig::new(rows, columns).with_bias(false).init(at);
        // Parameters that lie away are on the device for a segment: of one alone they would never leave it.
        Chain::of(Matrices { layers: (0..count).map(matrix).collect() })
            .first(&["layers"], |matrices: &Matrices, rows: &Tensor<2>| {
                matrices
                    .layers
                    .iter()
                    .map(|layer| layer.forward(rows.clone()))
                    .reduce(|sum, own| sum + own)
                    .expect("there is one")
            })
            .then(&[], |_, rows: Tensor<2>, _| rows)
            .mean_loss(|_, rows, _| rows.mean())
    };
    let mut engine = Engine::build(&alone, layers, optimizer)?;
    let device = alone.place().device();
    let (flush, mut seconds) = (CacheFlush::new(device), Vec::new());
    for _ in 0..REPEATS {
        let rows = Tensor::ones([1, rows], device);
        let accumulated = engine.accumulate(vec![MicroBatch::new(rows, [0])])?;
        flush.run();
        seconds.push(seconds_of(device, || engine.apply(accumulated, 1e-3).map(drop))?);
    }
    Ok(typical(seconds))
}

/// Seconds of the norm for an element of a gradient.
fn norm(epl: &Epl, device: &Device) -> Result<f64> {
    let gradient = |columns: usize| Tensor::<1>::ones([WIDTH * columns], device);
    per_element(device, gradient, |gradient| {
        let _ = [gradient.clone()].into_iter().collect::<Squares>().read(epl.context());
    })
}

/// Seconds of some work for an element more of what it is given, of WIDTH rows and so many columns. No cache has it.
fn per_element<T>(device: &Device, given: impl Fn(usize) -> T, work: impl Fn(&mut T)) -> Result<f64> {
    let flush = CacheFlush::new(device);
    let [few, many] = columns(device).map(|columns| {
        let (mut given, mut seconds) = (given(columns), Vec::new());
        for _ in 0..REPEATS {
            flush.run();
            seconds.push(seconds_of(device, || {
                work(&mut given);
                Ok(())
            })?);
        }
        Ok::<_, Error>((WIDTH * columns, typical(seconds)))
    });
    Ok(slope([few?, many?]))
}

/// Seconds until a device is done with something, which it may do by itself.
pub(super) fn seconds_of(device: &Device, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    wait(device)?;
    let begin = Instant::now();
    work()?;
    wait(device)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Seconds to read and write a byte once: of a gradient that is added to another one.
pub(super) fn copy(device: &Device) -> Result<f64> {
    let both = |columns: usize| [0, 1].map(|_| Tensor::<2>::ones([WIDTH, columns], device));
    let element = per_element(device, both, |[sum, other]| sum.inplace(|sum| sum + other.clone()))?;
    Ok(element / size_of::<f32>() as f64)
}

/// So many products of matrices that lie in a core's own cache, one after the other, until they are done.
fn products(device: &Device, count: usize) {
    let width = WIDTH / 4;
    let matrix = Tensor::<2>::ones([width, width], device);
    let product = (0..count).fold(matrix.clone(), |product, _| product.matmul(matrix.clone()) / width as f32);
    let _ = product.slice([0..1, 0..1]).into_data();
}

/// The share of a started collective that the rank's own computing loses. Collective.
fn lost(epl: &Epl, device: &Device) -> Result<f64> {
    let world = epl.world();
    if world.size() == 1 || world.is_dry() {
        return Ok(0.0);
    }
    let flat = Tensor::<1>::ones([WIDTH * WIDTH], device);
    let timed = |f: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            world.barrier()?;
            let begin = Instant::now();
            f()?;
            times.push(begin.elapsed().as_secs_f64());
        }
        Ok(least(times))
    };
    let sum = |count: usize| -> Result<()> {
        let pending = world.start_all_reduce(flat.clone(), ReduceOp::Sum)?;
        products(device, count);
        pending.wait()?;
        wait(device)
    };
    let alone = timed(&mut || sum(0))?;
    let one = timed(&mut || {
        products(device, 1);
        Ok(())
    })?;
    // As long as the sum; on all ranks as much.
    let count = world.all_reduce_values(&[(alone / one).ceil()], ReduceOp::Max)?[0].clamp(1.0, 1e3) as usize;
    let working = timed(&mut || {
        products(device, count);
        Ok(())
    })?;
    let both = timed(&mut || sum(count))?;
    Ok(((both - working) / alone).clamp(0.0, 1.0))
}

/// What a segment makes: products, and elements between them.
pub(super) struct SegmentWork {
    rows: Tensor<2>,
    matrix: Tensor<2>,
}

impl SegmentWork {
    pub fn new(rows: usize, device: &Device) -> Self {
        Self { rows: Tensor::ones([rows, WIDTH / 4], device), matrix: Tensor::ones([WIDTH / 4, WIDTH], device) }
    }

    /// Makes them, until a device is done.
    pub fn run(&self, device: &Device) -> Result<()> {
        let out = self.rows.clone().matmul(self.matrix.clone());
        let _ = (out.clone() + out).exp().matmul(self.matrix.clone().transpose());
        wait(device)
    }
}

/// The part of its time that the first rank is spared while the others wait, of products and sums as a segment makes them; of the
/// others 0, and of devices that share nothing. Collective.
fn spared(epl: &Epl, device: &Device) -> Result<f64> {
    let world = epl.world();
    if world.size() == 1 || world.is_dry() || !is_host(device) {
        return Ok(0.0);
    }
    let work = SegmentWork::new(WIDTH / 2, device);
    let timed = |is_working: bool| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..2 * REPEATS {
            world.barrier()?;
            let begin = Instant::now();
            if is_working {
                work.run(device)?;
            }
            times.push(begin.elapsed().as_secs_f64());
        }
        world.barrier()?;
        Ok(median(times))
    };
    let (together, alone) = (timed(true)?, timed(world.rank() == 0)?);
    Ok(if world.rank() == 0 { (1.0 - alone / together).clamp(0.0, 0.5) } else { 0.0 })
}

/// The median of all but the first: what other ranks do at the same time is part of it, as in a step.
fn typical(times: Vec<f64>) -> f64 {
    median(times[1..].to_vec())
}

/// The least of all but the first.
fn least(times: Vec<f64>) -> f64 {
    times[1..].iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_takes_is_no_part_of_an_element() {
        // A call takes one second, and a thousand elements one more.
        let call = |elements: usize| (elements, 1.0 + 1e-3 * elements as f64);
        assert!((slope([call(1000), call(4000)]) - 1e-3).abs() < 1e-12);
        assert!((slope([(1000, 4.0), (4000, 4.0)]) - 1e-3).abs() < 1e-12);
    }
}
