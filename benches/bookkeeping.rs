//! What planning and a step cost beside what they compute: it grows as parameters, segments and ranks do, and no faster.
//!
//! Parameters of one element each, in a world that is only thought of ([`epl::launch_dry`]): what is measured is walks, maps,
//! plans and graphs. Printed are the times, the median of some runs, and the exponent e of the line through their logarithms,
//! time ∝ sizeᵉ. Bound of each: 1.1.
//!
//! ```text
//! cargo bench --bench bookkeeping [-- RUNS]
//! ```

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use epl::prelude::*;
use epl_benches::quartiles::quartiles;

/// Layers of one weight.
#[derive(Module, Debug)]
struct Net {
    parts: Vec<Part>,
}

#[derive(Module, Debug)]
struct Part {
    layers: Vec<Linear>,
}

impl Model for Net {
    type Batch = Tensor<2>;
    type Carry = Tensor<2>;

    fn segments(&self) -> usize {
        self.parts.len()
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        path.split('.').nth(1).and_then(|part| part.parse().ok()).into_iter().collect()
    }

    fn forward_segment(&self, index: usize, carry: Option<Tensor<2>>, rows: &Tensor<2>) -> Tensor<2> {
        let rows = carry.unwrap_or_else(|| rows.clone());
        self.parts[index].layers.iter().fold(rows, |rows, layer| layer.forward(rows))
    }

    fn weights(&self, rows: &Tensor<2>) -> LossWeights {
        LossWeights::new().with("rows", rows.dims()[0] as f64)
    }

    fn loss(&self, rows: Tensor<2>, _: &Tensor<2>) -> Loss {
        Loss::new().with("rows", rows.sum(), 1.0)
    }
}

/// What is counted.
#[derive(Clone, Copy)]
struct Size {
    parameters: usize,
    segments: usize,
    ranks: usize,
}

/// How long it takes to plan, and to make a step.
fn times(Size { parameters, segments, ranks }: Size) -> epl::Result<[Duration; 2]> {
    let config = Config::new().with("cluster.ranks", ranks)?.with("zero.level", "v1")?;
    let net = |at: &Place| {
        let layer = |_| LinearConfig::new(1, 1).with_bias(false).init(at);
        let part = |_| Part { layers: (0..parameters / segments).map(layer).collect() };
        Net { parts: (0..segments).map(part).collect() }
    };
    let (times, _) = epl::launch_dry(&config, 0, |epl| {
        let begin = Instant::now();
        let mut engine = Engine::build(&epl, net, &AdamWConfig::new())?;
        let planned = begin.elapsed();
        let mut step = || {
            let rows = Tensor::<2>::ones([1, 1], epl.place().device());
            let begin = Instant::now();
            engine.step(vec![MicroBatch::new(rows, [0])], 1e-3).map(|_| begin.elapsed())
        };
        step()?;
        Ok([planned, step()?])
    })?;
    Ok(times)
}

/// The exponent of the line through the logarithms.
fn exponent(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / logs.len() as f64;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let (over, under) =
        logs.iter().fold((0.0, 0.0), |(over, under), (a, b)| (over + (a - x) * (b - y), under + (a - x).powi(2)));
    over / under
}

fn sweep(what: &str, runs: usize, sizes: &[usize], of: impl Fn(usize) -> Size) -> epl::Result<()> {
    let mut points: [Vec<(f64, f64)>; 2] = Default::default();
    for size in sizes {
        let ran = (0..runs).map(|_| times(of(*size))).collect::<epl::Result<Vec<_>>>()?;
        for (index, points) in points.iter_mut().enumerate() {
            let [_, median, _] = quartiles(ran.iter().map(|times| times[index].as_secs_f64() * 1e3).collect());
            points.push((*size as f64, median));
        }
    }
    for (name, points) in ["planning", "step"].into_iter().zip(points) {
        let shown: Vec<String> = points.iter().map(|(size, ms)| format!("{size}: {ms:.1} ms")).collect();
        println!("name={name} of={what} exponent={:.2} ({})", exponent(&points), shown.join(", "));
    }
    Ok(())
}

fn main() -> epl::Result<()> {
    // `cargo bench` passes `--bench`.
    let runs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(5_usize).max(1);
    sweep("parameters", runs, &[100, 1_000, 10_000], |parameters| Size { parameters, segments: 10, ranks: 4 })?;
    sweep("segments", runs, &[10, 100, 1_000], |segments| Size { parameters: 2_000, segments, ranks: 4 })?;
    sweep("ranks", runs, &[16, 128, 1_024], |ranks| Size { parameters: 1_000, segments: 10, ranks })
}
