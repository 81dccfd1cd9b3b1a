//! A model of four segments, and its data.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_comm::{Partial, copied};
use epl_core::topology::cluster::Axis;
use epl_core::{Epl, Loss, LossWeights, MicroBatch, Model, Place};

/// Four segments: a layer, a layer divided over the tensor axis, a tied layer, a head with its loss.
#[derive(Module, Debug)]
pub struct Chain {
    pub first: Linear,
    pub up: Param<Tensor<2>>,
    pub down: Param<Tensor<2>>,
    pub tied: Linear,
    pub head: Linear,
    #[module(skip)]
    pub place: Place,
}

#[derive(Clone, Debug)]
pub struct Rows {
    pub input: Tensor<2>,
    pub target: Tensor<2>,
    pub valid: Vec<bool>,
}

pub const WIDTH: usize = 6;

impl Chain {
    pub fn new(place: &Place) -> Self {
        let linear = LinearConfig::new(WIDTH, WIDTH);
        Self {
            first: linear.init(place),
            up: place.split_param([WIDTH, 10], &[(Axis::Tensor, 1)], Initializer::XavierNormal { gain: 1.0 }),
            down: place.split_param([10, WIDTH], &[(Axis::Tensor, 0)], Initializer::XavierNormal { gain: 1.0 }),
            tied: linear.init(place),
            head: LinearConfig::new(WIDTH, 3).init(place),
            place: place.clone(),
        }
    }

    fn split(&self, x: Tensor<2>) -> Tensor<2> {
        let group = self.place.context().tensor();
        let hidden = activation::tanh(copied(x, group).local().matmul(self.up.val()));
        Partial::from_local(hidden.matmul(self.down.val()), group).all_reduce()
    }
}

impl Model for Chain {
    type Batch = Rows;
    type Carry = (Tensor<2>, Option<Tensor<2>>);

    fn segments(&self) -> usize {
        4
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        match path.split('.').next() {
            Some("first") => vec![0],
            Some("up" | "down") => vec![1],
            Some("tied") => vec![0, 2],
            _ => vec![3],
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &Rows) -> Self::Carry {
        let carry = carry.unwrap_or_else(|| (batch.input.clone(), None));
        match (index, carry) {
            (0, (x, _)) => (self.tied.forward(activation::tanh(self.first.forward(x.clone()))), Some(x)),
            // The second tensor passes the segment by unchanged.
            (1, (x, kept)) => (self.split(x), kept),
            (2, (x, kept)) => (activation::tanh(self.tied.forward(x)) + kept.unwrap(), None),
            (_, (x, _)) => (self.head.forward(x), None),
        }
    }

    fn weights(&self, batch: &Rows) -> LossWeights {
        LossWeights::new().with("error", batch.valid.iter().filter(|valid| **valid).count() as f64)
    }

    fn loss(&self, (x, _): Self::Carry, batch: &Rows) -> Loss {
        let mask: Vec<f64> = batch.valid.iter().map(|valid| f64::from(u8::from(*valid))).collect();
        let rows = mask.len();
        let mask = Tensor::<2>::from_data(TensorData::new(mask, [rows, 1]), &x.device());
        let error = (x - batch.target.clone()).powi_scalar(2) * mask;
        Loss::new().with("error", error.sum(), 0.5)
    }
}

/// The samples `range` of an endless list; every fifth does not count.
pub fn rows(range: std::ops::Range<usize>, device: &Device) -> Rows {
    let value = |sample: usize, column: usize| ((sample * 31 + column * 17) % 23) as f64 / 11.0 - 1.0;
    let table = |columns: usize, shift: usize| {
        let values: Vec<f64> = range.clone().flat_map(|s| (0..columns).map(move |c| value(s + shift, c))).collect();
        Tensor::from_data(TensorData::new(values, [range.len(), columns]), device)
    };
    Rows { input: table(WIDTH, 0), target: table(3, 7), valid: range.map(|sample| sample % 5 != 0).collect() }
}

/// Cuts a global batch of 13 samples over replicas and micro-batches, unevenly where they do not divide.
pub fn micro_batches(epl: &Epl, count: usize) -> Vec<MicroBatch<Rows>> {
    let (data, device) = (epl.context().data(), epl.place().device());
    let parts = data.size() * count;
    (0..count)
        .map(|number| {
            let range = epl_comm::shard_range(13, parts, data.rank() * count + number);
            match range.is_empty() {
                true => MicroBatch::stand_in(rows(0..1, device), [0]),
                false => MicroBatch::new(rows(range.clone(), device), range.map(|s| s as u64).collect::<Vec<_>>()),
            }
        })
        .collect()
}
