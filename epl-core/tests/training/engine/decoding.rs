//! A model that runs in steps, with a state a segment, says what it says of everything at once; under stages, in shards,
//! away from the device.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use epl_core::{Config, Engine, Incremental, Loss, LossWeights, Model, Place, Result, SegmentState, Strategy, launch};

const LAYERS: usize = 4;
const WIDTH: usize = 5;

/// Each layer reads the sum of all positions so far.
#[derive(Module, Debug)]
struct Sums {
    layers: Vec<Linear>,
}

impl Sums {
    fn new(at: &Place) -> Self {
        let layer = |index: usize| LinearConfig::new(WIDTH, WIDTH).init(&at.child(&format!("layers.{index}")));
        Self { layers: (0..LAYERS).map(layer).collect() }
    }

    /// In stages of one device and of two.
    fn wide(at: &Place) -> Self {
        let stage = |devices: usize, layers: core::ops::Range<usize>| {
            let layer =
                |at: &Place, index: usize| LinearConfig::new(WIDTH, WIDTH).init(&at.child(&format!("layers.{index}")));
            at.scope(Strategy::replicate(devices), |at| layers.map(|index| layer(at, index)).collect::<Vec<_>>())
        };
        Self { layers: [stage(1, 0..2), stage(2, 2..4)].concat() }
    }

    /// One layer, of new positions `[rows, positions, width]`, behind some whose sum is `before`, `[rows, width]`; and that
    /// of all.
    fn layer(&self, index: usize, new: Tensor<3>, before: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
        let [rows, positions, width] = new.dims();
        let sums = new.cumsum(1);
        let sums = before.map_or(sums.clone(), |before| sums.clone() + before);
        let all = sums.clone().slice([0..rows, positions - 1..positions, 0..width]);
        (self.layers[index].forward(sums).tanh(), all)
    }
}

impl Model for Sums {
    type Batch = Tensor<3>;
    type Carry = Tensor<3>;

    fn segments(&self) -> usize {
        LAYERS
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        path.split('.').nth(1).and_then(|index| index.parse().ok()).into_iter().collect()
    }

    fn forward_segment(&self, index: usize, carry: Option<Tensor<3>>, batch: &Tensor<3>) -> Tensor<3> {
        self.layer(index, carry.unwrap_or_else(|| batch.clone()), None).0
    }

    fn weights(&self, _batch: &Tensor<3>) -> LossWeights {
        LossWeights::new().with_rows("sum")
    }

    fn loss(&self, carry: Tensor<3>, _batch: &Tensor<3>) -> Loss {
        Loss::new().with("sum", carry.sum(), 1.0)
    }
}

/// The sum of a segment's positions so far.
#[derive(Default)]
struct Sum(Option<Tensor<3>>);

impl SegmentState for Sum {
    fn select(self, rows: Tensor<1, Int>) -> Self {
        Self(self.0.map(|sum| sum.select(0, rows)))
    }
}

impl Incremental for Sums {
    type State = Sum;

    fn forward_step(&self, index: usize, carry: Option<Tensor<3>>, batch: &Tensor<3>, state: &mut Sum) -> Tensor<3> {
        let (exit, sum) = self.layer(index, carry.unwrap_or_else(|| batch.clone()), state.0.take());
        state.0 = Some(sum);
        exit
    }
}

/// Positions of rows that are told by their numbers.
fn positions(rows: &[usize], positions: core::ops::Range<usize>, device: &Device) -> Tensor<3> {
    let value = |row: usize, position: usize, at: usize| ((row * 31 + position * 7 + at * 3) % 17) as f32 / 17.0 - 0.5;
    let (positions, at) = (positions.collect::<Vec<_>>(), 0..WIDTH);
    let of = |row: usize| {
        let at = at.clone();
        positions.clone().into_iter().flat_map(move |position| at.clone().map(move |at| value(row, position, at)))
    };
    let values: Vec<f32> = rows.iter().flat_map(|row| of(*row)).collect();
    Tensor::from_data(TensorData::new(values, [rows.len(), positions.len(), WIDTH]), device)
}

/// A number for the last position of each row.
fn numbers(exit: Tensor<3>) -> Vec<i64> {
    let [rows, positions, width] = exit.dims();
    let last = exit.slice([0..rows, positions - 1..positions, 0..width]).sum_dim(2).into_data();
    last.iter::<f64>().map(|sum| (sum * 1e4).round() as i64).collect()
}

/// Three steps, of which the first has two positions; before the last, rows are dropped and reordered.
fn stepped(engine: &Engine<Sums>) -> Result<Vec<Vec<i64>>> {
    let device = engine.device().clone().without_autodiff();
    let mut decoding = engine.decoding()?;
    let mut found = Vec::new();
    for (rows, new) in [(vec![0, 1, 2], 0..2), (vec![0, 1, 2], 2..3), (vec![2, 0], 3..4)] {
        if rows.len() == 2 {
            decoding.select(&rows);
        }
        found.push(decoding.step(rows.len(), positions(&rows, new, &device), |_, exit| Ok(numbers(exit)))?);
    }
    Ok(found)
}

/// The same by a forward over everything each time.
fn at_once(engine: &Engine<Sums>) -> Vec<Vec<i64>> {
    let (model, device) = (engine.model().valid(), engine.device().clone().without_autodiff());
    let steps: [(&[usize], usize); 3] = [(&[0, 1, 2], 2), (&[0, 1, 2], 3), (&[2, 0], 4)];
    steps.map(|(rows, count)| numbers(model.forward_all(&positions(rows, 0..count, &device)))).to_vec()
}

fn engine(config: &Config, f: impl Fn(Engine<Sums>) -> Result<Vec<Vec<i64>>> + Sync) -> Vec<Vec<Vec<i64>>> {
    launch(config, |epl| f(Engine::build(&epl, Sums::new, &SgdConfig::new())?)).unwrap()
}

#[test]
fn steps_say_what_is_said_of_everything_at_once() {
    let expected = engine(&Config::new(), |engine| Ok(at_once(&engine))).remove(0);
    assert!(expected.concat().iter().any(|number| *number != expected[0][0]), "{expected:?}");
    let with = |settings: &[(&str, usize)], level: &[(&str, &str)]| {
        let config = settings.iter().fold(Config::new(), |config, (key, value)| config.with(key, *value).unwrap());
        level.iter().fold(config, |config, (key, value)| config.with(key, *value).unwrap())
    };
    let (stages, data) = ("dist.pipeline_parallel_size", "dist.data_parallel_size");
    for config in [
        Config::new(),
        with(&[(stages, 2)], &[]),
        with(&[(stages, 4)], &[]),
        with(&[(stages, 2), ("pipeline.num_chunks", 2)], &[]),
        with(&[(stages, 2), (data, 2)], &[("zero.level", "v3")]),
        with(&[(stages, 2)], &[("offload.level", "v0")]),
    ] {
        for found in engine(&config, |engine| stepped(&engine)) {
            let off = found.concat().iter().zip(expected.concat()).map(|(a, b)| (a - b).abs()).max();
            assert!(off <= Some(1) && found.len() == 3, "{found:?}, not {expected:?}");
        }
    }
}

#[test]
fn what_cannot_be_stepped_is_refused() {
    let two = Config::new().with("dist.pipeline_parallel_size", 2).unwrap();
    let fails = launch(&two, |epl| {
        let engine = Engine::build(&epl, Sums::new, &SgdConfig::new())?;
        let batch = positions(&[0, 1], 0..1, &engine.device().clone().without_autodiff());
        engine.decoding()?.step(2, batch, |_, _| Ok(vec![1]))
    });
    let text = fails.unwrap_err().to_string();
    assert!(text.contains("a step of 2 rows chose 1 numbers"), "{text}");
    let wide = Config::new().with("cluster.ranks", 3).unwrap();
    let fails = launch(&wide, |epl| Engine::build(&epl, Sums::wide, &SgdConfig::new())?.decoding().map(|_| ()));
    let text = fails.unwrap_err().to_string();
    assert!(text.contains("generation over stages of different widths"), "{text}");
}
