//! What a rank takes for what is not of segments.

use std::time::Instant;

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use epl_comm::{Event, EventKind, ReduceOp};

use super::columns::measuring;
use crate::cost::Rates;
use crate::engine::{Engine, MicroBatch};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::model::whole::WithLoss;
use crate::optim::OptimizerConfig;
use crate::probe::measure::wait;
use crate::search::reset;
use crate::stable_hash::stable_hash;

/// Rows and columns of what is measured with: 4 MiB, as large as a layer, and larger than a core's own cache.
const WIDTH: usize = 1024;
/// How often something is timed; the first does not count.
const REPEATS: usize = 5;

/// Measures them. Collective.
pub(super) fn rates<O: OptimizerConfig>(epl: &Epl, optimizer: &O) -> Result<Rates> {
    let device = epl.place().device().clone().inner();
    let own = [update(epl, optimizer)?, copy(&device), lost(epl, &device)?];
    let slowest = epl.world().all_reduce_values(&own, ReduceOp::Max)?;
    Ok(Rates { update: slowest[0], copy: slowest[1], lost: slowest[2] })
}

/// What rates are of, beside a program and a world: the optimizer that is measured, and the options.
pub(super) fn key<O: OptimizerConfig>(epl: &Epl, optimizer: &O) -> Result<String> {
    let settings = match optimizer.groups()?.is_empty() {
        true => serde_json::to_string(optimizer),
        false => serde_json::to_string(&AdamWConfig::new()),
    };
    let settings = settings.map_err(|error| Error::invalid(format!("the optimizer's settings: {error}")))?;
    let config = measuring(epl.config(), 1, 1)?.to_toml();
    Ok(format!("{} {:016x}", O::NAME, stable_hash(&format!("{settings} {config}"))))
}

/// Seconds of the optimizer for an element, as the engine calls it. Parameter groups are of the user's parameters: in their place
/// AdamW is measured.
fn update<O: OptimizerConfig>(epl: &Epl, optimizer: &O) -> Result<f64> {
    match optimizer.groups()?.is_empty() {
        true => update_of(epl, optimizer),
        false => update_of(epl, &AdamWConfig::new()),
    }
}

/// Of a model that is one matrix, in a world of one rank.
fn update_of<O: OptimizerConfig>(epl: &Epl, optimizer: &O) -> Result<f64> {
    let mut config = measuring(epl.config(), 1, 1)?;
    config.set("dist.data_parallel_size", 1)?;
    reset(&mut config, &["optimizer.frozen", "optimizer.rate_factor", "optimizer.weight_decay", "amp.full_precision"])?;
    let alone = epl.in_thought(config)?;
    let layer = |at: &crate::Place| {
        let loss = |layer: &Linear, rows: &Tensor<2>| layer.forward(rows.clone()).mean();
        WithLoss::new(LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(at), loss)
    };
    let mut engine = Engine::build(&alone, layer, optimizer)?;
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let rows = Tensor::ones([1, WIDTH], alone.place().device());
        let context = engine.context().clone();
        let (report, events) = context.record_calls(|| engine.step(vec![MicroBatch::new(rows, [0])], 1e-3))?;
        report?;
        seconds.push(
            events.iter().filter(|event| is_update(event)).map(|event| (event.end - event.begin).as_secs_f64()).sum(),
        );
    }
    Ok(least(seconds) / (WIDTH * WIDTH) as f64)
}

fn is_update(event: &Event) -> bool {
    matches!(&event.kind, EventKind::Span(what) if what == "update in the model")
}

/// Seconds to read and write a byte once: of a sum, which reads two and writes one.
fn copy(device: &Device) -> f64 {
    let x = Tensor::<2>::ones([WIDTH, WIDTH], device);
    let time = || {
        let begin = Instant::now();
        let sum = x.clone() + x.clone();
        // A device that works by itself is done when something was read.
        let _ = sum.slice([0..1, 0..1]).into_data();
        begin.elapsed().as_secs_f64()
    };
    least((0..REPEATS).map(|_| time()).collect()) / (WIDTH * WIDTH * size_of::<f32>()) as f64
}

/// The share of a started collective that the rank's own computing loses. Collective.
fn lost(epl: &Epl, device: &Device) -> Result<f64> {
    let world = epl.world();
    if world.size() == 1 {
        return Ok(0.0);
    }
    let (flat, width) = (Tensor::<1>::ones([WIDTH * WIDTH], device), WIDTH / 4);
    let matrix = Tensor::<2>::ones([width, width], device);
    let work = |products: usize| {
        let product = (0..products).fold(matrix.clone(), |product, _| product.matmul(matrix.clone()) / width as f32);
        let _ = product.slice([0..1, 0..1]).into_data();
    };
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
    let sum = |products: usize| -> Result<()> {
        let pending = world.start_all_reduce(flat.clone(), ReduceOp::Sum)?;
        work(products);
        pending.wait()?;
        wait(device)
    };
    let alone = timed(&mut || sum(0))?;
    let one = timed(&mut || {
        work(1);
        Ok(())
    })?;
    // As long as the sum; on all ranks as much.
    let products = world.all_reduce_values(&[(alone / one).ceil()], ReduceOp::Max)?[0].clamp(1.0, 1e3) as usize;
    let working = timed(&mut || {
        work(products);
        Ok(())
    })?;
    let both = timed(&mut || sum(products))?;
    Ok(((both - working) / alone).clamp(0.0, 1.0))
}

/// The least of all but the first.
fn least(times: Vec<f64>) -> f64 {
    times[1..].iter().copied().fold(f64::INFINITY, f64::min)
}
