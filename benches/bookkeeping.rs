//! What planning, a step and a search of layouts cost beside what they compute: it grows as parameters, segments and ranks do, and no
//! faster.
//!
//! Parameters of one element each, in a world that is only thought of ([`epl::launch_dry`]): what is measured is walks, maps,
//! plans and graphs. Printed are the times, the median of some runs, and the exponent e of the line through their logarithms,
//! time ∝ sizeᵉ. Bound of each: 1.1. Layouts are searched along all axes, for a chain of transformer layers as numbers on 1,024 devices
//! that are described; the most memory that the process held is printed with them.
//!
//! ```text
//! cargo bench --bench bookkeeping [-- RUNS [SEGMENTS]]        # with SEGMENTS the search of so many alone
//! ```

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Tensor};
use epl::comm::{Operation, ReduceOp};
use epl::config::Layers;
use epl::cost::Machine;
use epl::memory::OptimizerState;
use epl::prelude::*;
use epl::search::{PaperParam, PaperSegment, PaperTask, search_on_paper};
use epl::topology::cluster::Axis;
use epl_benches::quartiles::quartiles;
use epl_benches::steps::peak_mib;

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

/// 128 hosts of eight devices.
const CLUSTER: &str = r#"
[[host]]
count = 128
devices = [{ class = "device", count = 8 }]
inside = { alpha_us = 8, gb_per_s = 240 }
outside = { alpha_us = 20, gb_per_s = 180 }
[class.device]
memory_gb = 80
tflops = 170
memory_gb_per_s = 1800
"#;

/// A transformer layer of sequences of 2,048 tokens, whose experts and matrices are divided.
fn layer(number: usize, tensor: usize, expert: usize) -> PaperSegment {
    let (tokens, width, sum) = (2048, 512, Operation::AllReduce(ReduceOp::Sum));
    let cuts = |dim| vec![(Axis::Expert, 0), (Axis::Tensor, dim)];
    let param = |name: &str, shape: [usize; 3], cuts| PaperParam {
        name: format!("layers.{number}.{name}"),
        shape: shape.to_vec(),
        cuts,
    };
    let calls = |axis, size: usize, operation, count: usize| {
        vec![(axis, operation, tokens * width); if size > 1 { count } else { 0 }]
    };
    let calls = [calls(Axis::Tensor, tensor, sum, 2), calls(Axis::Expert, expert, Operation::AllToAll, 2)].concat();
    let bytes = (34 * tokens * width) as f64;
    PaperSegment {
        name: format!("layer {number}"),
        parameters: vec![
            param("attention", [4, width, width], vec![(Axis::Tensor, 1)]),
            param("up", [8, width, 4 * width], cuts(2)),
            param("down", [8, 4 * width, width], cuts(1)),
        ],
        flops: (24 * tokens * width * width) as f64 / tensor as f64,
        carry: tokens * width,
        stored: bytes / tensor as f64,
        working: bytes / tensor as f64,
        calls: [calls.clone(), calls],
    }
}

/// How long it takes to find a layout of so many segments on 1,024 devices.
fn search(segments: usize) -> epl::Result<Duration> {
    let config = Layers::new().flags([("auto.auto_parallel", Some(true))])?.resolve()?;
    let task = PaperTask { rows: 2048, dtype: DType::BF16, state: OptimizerState::PerElement(2) };
    let begin = Instant::now();
    search_on_paper(&config, &Machine::from_toml(CLUSTER)?, &task, |tensor, expert| match (tensor, expert) {
        (1..=16, 1..=8) => Ok((0..segments).map(|number| layer(number, tensor, expert)).collect()),
        _ => Err(format!("16 heads and 8 experts do not divide over {tensor} and {expert} ranks")),
    })?;
    Ok(begin.elapsed())
}

fn sweep_search(runs: usize, sizes: &[usize]) -> epl::Result<()> {
    let mut points = Vec::new();
    for size in sizes {
        let ran = (0..runs).map(|_| Ok(search(*size)?.as_secs_f64() * 1e3)).collect::<epl::Result<Vec<_>>>()?;
        points.push((*size as f64, quartiles(ran)[1]));
    }
    show("search", "segments", &points);
    println!("name=search peak_mib={:.0}", peak_mib());
    Ok(())
}

fn show(name: &str, what: &str, points: &[(f64, f64)]) {
    let shown: Vec<String> = points.iter().map(|(size, ms)| format!("{size}: {ms:.1} ms")).collect();
    println!("name={name} of={what} exponent={:.2} ({})", exponent(points), shown.join(", "));
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
        show(name, what, &points);
    }
    Ok(())
}

fn main() -> epl::Result<()> {
    // `cargo bench` passes `--bench`.
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let runs = numbers.first().copied().unwrap_or(5).max(1);
    if let Some(segments) = numbers.get(1) {
        return sweep_search(runs, &[*segments]);
    }
    sweep_search(runs, &[100, 1_000, 10_000])?;
    sweep("parameters", runs, &[100, 1_000, 10_000], |parameters| Size { parameters, segments: 10, ranks: 4 })?;
    sweep("segments", runs, &[10, 100, 1_000], |segments| Size { parameters: 2_000, segments, ranks: 4 })?;
    sweep("ranks", runs, &[16, 128, 1_024], |ranks| Size { parameters: 1_000, segments: 10, ranks })
}
