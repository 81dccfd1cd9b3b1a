//! Whole tensors into laid out models, by assignment maps, and Burn's records both ways.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod assign_map;
mod records;

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl_core::{Axis, Engine, EngineSettings, Epl, LaidOutModel, Place, Result, WithLoss};

type Tensors = BTreeMap<String, TensorData>;

/// An embedding, equal layers, and experts that are divided over the tensor axis.
#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    layers: Vec<Linear>,
    experts: Param<Tensor<3>>,
}

const LAYERS: usize = 3;
const ROWS: usize = 5;

impl Net {
    fn new(place: &Place) -> Self {
        let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
        Self {
            embedding: EmbeddingConfig::new(ROWS, 4).init(place),
            layers: (0..LAYERS).map(|_| LinearConfig::new(4, 4).init(place)).collect(),
            experts: place.split_param([3, 4, 2], &[(Axis::Tensor, 0)], normal),
        }
    }

    fn build(epl: &Epl) -> Result<LaidOutModel<WithLoss<Self, ()>>> {
        epl.build(|at| WithLoss::new(Self::new(at), |net: &Self, (): &()| net.experts.val().sum()))
    }
}

/// The whole parameters of what is built.
fn whole(built: LaidOutModel<WithLoss<Net, ()>>) -> Result<Tensors> {
    Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()
}

/// A tensor that counts from a number on.
fn counting(from: usize, shape: &[usize]) -> TensorData {
    let numel: usize = shape.iter().product();
    TensorData::new((from..from + numel).map(|value| value as f32).collect(), shape.to_vec())
}

/// Something for every parameter.
fn stored() -> Tensors {
    let mut stored = Tensors::from([
        ("embedding.weight".into(), counting(0, &[ROWS, 4])),
        ("experts".into(), counting(500, &[3, 4, 2])),
    ]);
    for layer in 0..LAYERS {
        stored.insert(format!("layers.{layer}.weight"), counting(100 + 20 * layer, &[4, 4]));
        stored.insert(format!("layers.{layer}.bias"), counting(200 + 20 * layer, &[4]));
    }
    stored
}
