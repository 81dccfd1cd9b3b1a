//! A split that cuts nothing is an error, which names each layer and what to use in its place.

#![allow(clippy::unwrap_used)]

use burn::module::{Module, ModuleDisplay, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm,
    LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig,
};
use burn::tensor::Tensor;
use epl_core::{Axis, Config, Place, Result, Strategy, WithLoss, launch_dry};

#[derive(Module, Debug)]
struct Net<M: Module> {
    head: M,
}

/// A model of one segment, which is not run.
fn whole<M: Module>(net: M) -> WithLoss<M, ()> {
    WithLoss::new(net, |_: &M, _: &()| unreachable!("nothing is run"))
}

fn planned<M: Module>(config: &Config, model: impl Fn(&Place) -> M) -> Result<()> {
    launch_dry(config, 0, |epl| epl.plan(|at| whole(model(at))).map(drop)).map(drop)
}

/// What is said of a layer in a scope of two devices.
fn refused<M: Module + ModuleDisplay>(layer: impl Fn(&Place) -> M, lines: &str) {
    let config = Config::new().with("cluster.ranks", 2).unwrap();
    let scope = |at: &Place| Net { head: at.scope(Strategy::split(2).named("head"), &layer) };
    let expected = format!(
        "`head` split(2): none of its parameters is cut, so that each of the 2 devices would hold all of them and run the \
         same rows; use replicate(2), or change its layers:{lines}"
    );
    assert_eq!(planned(&config, scope).unwrap_err().to_string(), expected);
}

#[test]
fn linear() {
    refused(
        |at| LinearConfig::new(3, 3).init(at),
        "\n- Linear (`head`): use Linear of epl::nn, or SplitLinear of epl-modules",
    );
}

#[test]
fn embedding() {
    refused(
        |at| EmbeddingConfig::new(5, 3).init(at),
        "\n- Embedding (`head`): use Embedding of epl::nn, or SplitEmbedding of epl-modules",
    );
}

#[test]
fn convolution() {
    refused(
        |at| Conv2dConfig::new([3, 4], [3, 3]).init(at),
        "\n- Conv2d (`head`): use Conv2d of epl::nn, or SplitConv2d of epl-modules",
    );
}

#[test]
fn norm() {
    refused(|at| LayerNormConfig::new(3).init(at), "\n- LayerNorm (`head`): may stay whole beside a layer that is cut");
}

/// Whose gates are Linear layers, of which nobody hears.
#[test]
fn lstm() {
    refused(|at| LstmConfig::new(3, 4, true).init(at), "\n- Lstm (`head`): cannot be cut: use replicate");
}

#[derive(Module, Debug)]
struct Many {
    embed: Embedding,
    convolutions: Vec<Conv2d>,
    norms: (BatchNorm, LayerNorm),
    drop: Dropout,
    encoder: TransformerEncoder,
    layers: [Linear; 2],
    lstm: Option<Lstm>,
    own: Param<Tensor<2>>,
}

fn many(at: &Place) -> Many {
    Many {
        embed: EmbeddingConfig::new(5, 3).init(at),
        convolutions: (0..2).map(|_| Conv2dConfig::new([3, 4], [3, 3]).init(at)).collect(),
        norms: (BatchNormConfig::new(4).init(at), LayerNormConfig::new(4).init(at)),
        drop: DropoutConfig::new(0.1).init(),
        encoder: TransformerEncoderConfig::new(4, 8, 2, 1).init(at),
        layers: [LinearConfig::new(4, 4).init(at), LinearConfig::new(4, 4).init(at)],
        lstm: Some(LstmConfig::new(4, 4, false).init(at)),
        own: at.child("own").param([2, 2], Initializer::Zeros),
    }
}

#[test]
fn all_kinds_by_their_paths() {
    refused(
        many,
        "\n- Embedding (`head.embed`): use Embedding of epl::nn, or SplitEmbedding of epl-modules\
         \n- Conv2d (`head.convolutions.0`, `head.convolutions.1`): use Conv2d of epl::nn, or SplitConv2d of epl-modules\
         \n- BatchNorm (`head.norms.0`): may stay whole beside a layer that is cut\
         \n- LayerNorm (`head.norms.1`): may stay whole beside a layer that is cut\
         \n- Dropout (`head.drop`): has no parameter; where others are cut use the layer of this name in epl::nn, \
         which draws the same on all devices\
         \n- TransformerEncoder (`head.encoder`): use the layer of this name in epl::nn\
         \n- Linear (`head.layers.0`, `head.layers.1`): use Linear of epl::nn, or SplitLinear of epl-modules\
         \n- Lstm (`head.lstm`): cannot be cut: use replicate\
         \n- Many (`head`): make what is to be cut by `Place::split_param`",
    );
}

/// Of a default strategy, what is in no scope inside; of a colocated one, the same.
#[test]
fn other_scopes() {
    #[derive(Module, Debug)]
    struct Two {
        body: Linear,
        head: Linear,
    }
    let linear = |at: &Place| LinearConfig::new(3, 3).init(at);
    let expected = "split(2): none of its parameters is cut, so that each of the 2 devices would hold all of them and run \
                    the same rows; use replicate(2), or change its layers:\n- Linear (`head`): use Linear of epl::nn, \
                    or SplitLinear of epl-modules";
    let config = Config::new().with("cluster.ranks", 2).unwrap();
    let config = config.with("cluster.colocate_split_and_replicate", true).unwrap();
    let two = |at: &Place| Two { body: at.replicate(2, linear), head: at.split(2, linear) };
    assert_eq!(planned(&config, two).unwrap_err().to_string(), format!("`1` {expected}"));
    let two = |at: &Place| {
        at.default_strategy(Strategy::split(2), |at| Two { body: at.replicate(2, linear), head: linear(at) })
    };
    assert_eq!(planned(&config, two).unwrap_err().to_string(), format!("`0` {expected}"));
}

/// One device has the whole anyway: the same program runs where there is but one.
#[test]
fn one_device_is_no_split() {
    let linear = |at: &Place| LinearConfig::new(3, 3).init(at);
    let config = Config::new().with("cluster.ranks", 1).unwrap();
    let all = |epl: &epl_core::Epl| epl.cluster().total_gpu_num();
    launch_dry(&config, 0, |epl| epl.plan(|at| whole(Net { head: at.split(all(&epl), linear) })).map(drop)).unwrap();
}

/// An axis that the scope has not cuts nothing in it, and one cut is enough for all.
#[test]
fn what_counts_as_cut() {
    #[derive(Module, Debug)]
    struct Cut {
        norm: LayerNorm,
        weight: Param<Tensor<2>>,
    }
    let cut = |axis: Axis| {
        move |at: &Place| Cut {
            norm: LayerNormConfig::new(3).init(at),
            weight: at.child("weight").split_param([4, 4], &[(axis, 1)], Initializer::Zeros),
        }
    };
    let config = Config::new().with("cluster.ranks", 2).unwrap();
    planned(&config, |at| at.split(2, cut(Axis::Tensor))).unwrap();
    let error = planned(&config, |at| at.split(2, cut(Axis::Expert))).unwrap_err().to_string();
    assert!(error.contains("- LayerNorm (`norm`)") && error.contains("- Cut (the model itself): make what"), "{error}");
}
