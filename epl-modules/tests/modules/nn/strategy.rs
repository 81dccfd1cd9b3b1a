//! One layer in a chain of two segments, trained under a strategy.

use burn::module::{Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::optim::SgdConfig;
use burn::tensor::{DType, Tensor, TensorData};
use epl_core::config::{CheckpointType, HalfDtype, LossScale, StateTier, ZeroLevel};
use epl_core::{Axis, Chain, Config, Engine, MicroBatch, Place, WithLoss, launch, launch_dry, testing};

use std::sync::{Arc, Mutex};

use super::case::Layer;
use crate::layers::Outcome;
use epl_testing::tensor;

/// What is asked of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Strategy {
    OneRank,
    /// One rank with the two micro-batches that two replicas have together.
    TwoMicroBatches,
    Data,
    Tensor(usize),
    /// Two tensor ranks, on each of which the layer is whole.
    Whole,
    Stages,
    V3,
    Offload,
    Recompute,
    Accumulate,
}

impl Strategy {
    /// The columns of the table.
    pub(crate) const ALL: [Self; 9] = [
        Self::Data,
        Self::Tensor(2),
        Self::Tensor(3),
        Self::Whole,
        Self::Stages,
        Self::V3,
        Self::Offload,
        Self::Recompute,
        Self::Accumulate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneRank => "one rank",
            Self::TwoMicroBatches => "two micro-batches",
            Self::Data => "data 2",
            Self::Tensor(2) => "tensor 2",
            Self::Tensor(_) => "tensor 3",
            Self::Whole => "whole",
            Self::Stages => "stages 2",
            Self::V3 => "v3",
            Self::Offload => "offload",
            Self::Recompute => "recompute",
            Self::Accumulate => "accumulate",
        }
    }

    fn config(self) -> Config {
        let data = if matches!(self, Self::Data | Self::V3 | Self::Accumulate) { 2 } else { 1 };
        let ranks = match self {
            Self::Tensor(ranks) => ranks,
            Self::Whole => 2,
            _ => 1,
        };
        let mut config = testing::config(data, ranks, 1);
        match self {
            Self::Whole => config.dist.whole_layers = Some(vec!["**".to_string()]),
            Self::Stages => config.dist.pipeline_parallel_size = 2,
            Self::V3 => config.zero.level = ZeroLevel::V3,
            Self::Offload => {
                config.offload.parameters = Some(StateTier::Host);
                config.offload.gradients = Some(StateTier::Host);
                config.offload.optimizer_state = Some(StateTier::Host);
            }
            Self::Recompute => {
                config.gradient_checkpoint.r#type = CheckpointType::Collection;
                config.gradient_checkpoint.kept = Some(vec!["0".to_string()]);
            }
            Self::Accumulate | Self::TwoMicroBatches => config.pipeline.num_micro_batch = 2,
            Self::OneRank | Self::Data | Self::Tensor(_) => {}
        }
        config
    }
}

/// The layer between two factors, so that each segment has a parameter, whose gradients tell those of input and output.
#[derive(Module, Debug)]
struct Net<L> {
    scale: Param<Tensor<1>>,
    layer: L,
    gain: Param<Tensor<1>>,
}

/// The types of what enters and leaves a layer.
type Seen = Arc<Mutex<Vec<[DType; 2]>>>;

fn chain<L>(place: &Place, layer: Layer<L>, seen: &Seen) -> Chain<Net<L>, Tensor<3>, Tensor<3>>
where
    L: Module + ModuleDisplay + 'static,
{
    let factor = |name: &str| place.child(name).param([1], Initializer::Constant { value: 1.25 });
    let layer_of_net = (layer.build)(&place.child("layer"));
    let net = Net { scale: factor("scale"), layer: layer_of_net, gain: factor("gain") };
    let (forward, seen) = (layer.forward, seen.clone());
    Chain::of(net)
        .first(&["scale", "layer"], move |net: &Net<L>, rows: &Tensor<3>| {
            let x = rows.clone() * net.scale.val().reshape([1, 1, 1]);
            let entered = x.dtype();
            let y = forward(&net.layer, x);
            seen.lock().expect("nobody panicked").push([entered, y.dtype()]);
            y
        })
        .then(&["gain"], |net, y, _| y * net.gain.val().reshape([1, 1, 1]))
        .mean_loss(|_, y: Tensor<3>, _| (y.clone() * probe(&y)).mean() + y.powi_scalar(2).mean())
}

/// The loss and all gradients of a step on one rank, and the types of what entered and left the layer.
pub(crate) fn gradients<L: Module + ModuleDisplay + 'static>(
    config: &Config,
    [a, b]: [usize; 2],
    layer: Layer<L>,
) -> epl_core::Result<(Outcome, [DType; 2])> {
    let found = launch(config, |epl| {
        let seen = Seen::default();
        let engine = Engine::build(&epl, |place| chain(place, layer, &seen), &SgdConfig::new())?;
        let rows = tensor(7, [7, a, b], epl.place().device());
        let (report, mut found) = engine.gradients(vec![MicroBatch::new(rows, (0..7).collect::<Vec<u64>>())])?;
        found.insert("loss".to_string(), TensorData::new(vec![report.loss], [1]));
        let seen = seen.lock().expect("nobody panicked").clone();
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
        Ok((found, seen[0]))
    })?;
    Ok(found.into_iter().next().expect("there is a rank"))
}

/// Mixed precision, at a scale with which the sums of these gradients do not overflow.
pub(crate) fn in_half(half: HalfDtype) -> Config {
    let mut config = testing::in_half(Config::new(), half);
    config.amp.loss_scale = LossScale::Fixed(64.0);
    config
}

/// What a scope over two devices around the layer alone does to it, and the number of its parameters.
pub(crate) fn scoped<L: Module + ModuleDisplay + 'static>(layer: Layer<L>) -> epl_core::Result<usize> {
    let config = Config::new().with("cluster.ranks", 2)?;
    let model = |place: &Place| {
        let alone = Alone { layer: place.split(2, |place| (layer.build)(place)) };
        WithLoss::new(alone, |_: &Alone<L>, _: &()| unreachable!("nothing is run"))
    };
    launch_dry(&config, 0, |epl| Ok(epl.plan(model)?.plan().records().len())).map(|(parameters, _)| parameters)
}

/// A layer in a scope.
#[derive(Module, Debug)]
struct Alone<L> {
    layer: L,
}

/// Losses and parameters of two steps, and the loss of an evaluation.
///
/// # Errors
///
/// When the engine refuses.
pub(crate) fn trained<L: Module + ModuleDisplay + 'static>(
    [a, b]: [usize; 2],
    layer: Layer<L>,
    strategy: Strategy,
) -> epl_core::Result<Outcome> {
    let found = launch(&strategy.config(), |epl| {
        let mut engine = Engine::build(&epl, |place| chain(place, layer, &Seen::default()), &SgdConfig::new())?;
        let is_cut = engine.plan().records().iter().any(|record| record.is_cut_over(Axis::Tensor));
        assert!(strategy != Strategy::Whole || !is_cut, "{}", engine.plan());
        let device = epl.place().device();
        let rows = tensor(7, [7, a, b], device);
        let rows = match strategy {
            // In the order in which two replicas have them in their two micro-batches.
            Strategy::TwoMicroBatches => rows.select(0, Tensor::from_data([0, 1, 4, 5, 2, 3, 6], device)),
            _ => rows,
        };
        let mut found = Outcome::new();
        for step in 0..2 {
            let report = engine.train_batch(&rows, 0.1)?;
            found.insert(format!("loss {step}"), TensorData::new(vec![report.loss], [1]));
        }
        found.extend(engine.parameters()?);
        Ok(found)
    })?;
    Ok(found.into_iter().next().expect("there is a rank"))
}

/// Weights for each output of a row, the same for all rows, so that the cut of the batch does not change them.
fn probe(y: &Tensor<3>) -> Tensor<3> {
    let [rows, a, b] = y.dims();
    tensor::<3>(99, [1, a, b], &y.device()).expand([rows, a, b])
}
