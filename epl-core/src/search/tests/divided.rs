//! A model that can be divided along all axes, with random costs.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{DType, Tensor};
use epl_comm::{Operation, ReduceOp};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{DrawnSegment, column_of, kinds, surveyed};
use crate::config::Config;
use crate::plan::builder::PlanBuilder;
use crate::search::column::Columns;
use crate::search::space::divisions;
use crate::simulate::{Called, Members, ShapesOverRows};
use crate::topology::cluster::Axis;
use crate::{Chain, Place};

const WIDTH: usize = 4;
const EXPERTS: usize = 4;

/// A product that is cut over the tensor axis, and experts that are divided over theirs.
#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    experts: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl Layer {
    fn new(at: &Place) -> Self {
        Self {
            weight: at.split_param([WIDTH, WIDTH], &[(Axis::Tensor, 1)], Initializer::Ones),
            experts: at.split_param([EXPERTS, WIDTH], &[(Axis::Expert, 0)], Initializer::Ones),
            bias: at.param([WIDTH], Initializer::Ones),
        }
    }

    /// Without its collectives, which are drawn.
    fn forward(&self, rows: Tensor<2>) -> Tensor<2> {
        let mixed = rows.clone().matmul(self.weight.val()).mean_dim(1);
        rows * self.experts.val().mean_dim(0) + mixed + self.bias.val().unsqueeze()
    }
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Layer>,
}

fn chain(at: &Place, segments: usize) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..segments).map(|_| Layer::new(at)).collect() };
    let first = Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    let layers = (1..segments).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| net.layers[index].forward(rows))
    });
    layers.mean_loss(|_, rows, _| rows.mean())
}

/// The ways to divide a model of so many segments that a configuration allows, before its costs are drawn.
pub(super) struct Divided {
    segments: usize,
    ways: Vec<((usize, usize), (PlanBuilder, ShapesOverRows))>,
}

impl Divided {
    pub fn new(given: &Config, ranks: usize, segments: usize) -> Self {
        let survey = |(tensor, expert): (usize, usize)| {
            let sizes = [("tensor", tensor), ("expert", expert), ("data", 2 * expert)];
            let set = |config: Config, (axis, size)| config.with(&format!("dist.{axis}_parallel_size"), size).unwrap();
            let config = sizes.into_iter().fold(Config::new(), set);
            ((tensor, expert), surveyed(&config, |at| chain(at, segments), WIDTH))
        };
        Self { segments, ways: divisions(given, ranks).into_iter().map(survey).collect() }
    }

    /// Random costs: of each kind a part is divided, for a sum over those that divide it, in time and bytes; experts get their rows
    /// and give them back. Each way has its own few per cent.
    pub fn columns(&self, numbers: &mut ChaCha8Rng, with_bytes: bool) -> Columns {
        let kinds = kinds(self.segments, numbers);
        let divided = numbers.random_range(0.3..1.0);
        let elements = [(); 2].map(|()| numbers.random_range(1..200));
        let column = |((tensor, expert), (builder, shapes)): &((usize, usize), (PlanBuilder, ShapesOverRows))| {
            let left = 1.0 - divided + divided / *tensor as f64;
            let slower = if *tensor * *expert > 1 { numbers.random_range(0.95..1.05) } else { 1.0 };
            let own = |kind: &DrawnSegment| DrawnSegment {
                forward: left * slower * kind.forward,
                backward: left * slower * kind.backward,
                carry: kind.carry,
                stored: left * kind.stored,
            };
            let own: Vec<DrawnSegment> = kinds.iter().map(own).collect();
            let mut shapes = shapes.clone();
            let sum = (Axis::Tensor, Operation::AllReduce(ReduceOp::Sum), *tensor, elements[0]);
            let exchange = (Axis::Expert, Operation::AllToAll, *expert, elements[1]);
            for (axis, operation, size, elements) in [sum, exchange] {
                for segment in 0..if size > 1 { self.segments } else { 0 } {
                    let call = Called { over: Members::Axis(axis), operation, dtype: DType::F32, elements };
                    shapes = shapes.with_forward_call(segment, call);
                }
            }
            ((*tensor, *expert), Ok(column_of((builder.clone(), shapes), &own, with_bytes)))
        };
        self.ways.iter().map(column).collect()
    }
}
