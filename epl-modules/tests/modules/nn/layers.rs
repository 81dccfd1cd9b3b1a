//! The layers that are no convolutions.

use burn::module::Module;
use burn::nn as burns;
use burn::tensor::{Int, Tensor};
use epl_modules::nn;

use super::case::Layer;
use super::table::{Line, Table};

/// A line of a layer that is refused nothing.
pub(crate) fn line<L>(name: &'static str, row: [usize; 2], layer: Layer<L>) -> Line<L> {
    Line { name, row, layer, refused: &[], deep: false, exact: 0.0, by_micro_batch: false, jumps: false }
}

/// The same configuration of both, fed with the rows as they are.
macro_rules! both {
    ($table:expr, $name:literal, $row:expr, $layer:ident, |$config:ident| $made:expr, exact $exact:expr) => {{
        let ours = Layer::<nn::$layer> {
            build: |place| {
                type $config = nn::$config;
                $made.init(place)
            },
            forward: |layer, x| layer.forward(x),
        };
        let theirs = Layer::<burns::$layer> {
            build: |place| {
                type $config = burns::$config;
                $made.init(place)
            },
            forward: |layer, x| layer.forward(x),
        };
        $table.line(line($name, $row, ours), theirs, $exact);
    }};
}

/// Sizes that neither two nor three ranks divide, and some that are smaller.
pub(crate) fn linear(table: &mut Table) {
    both!(table, "Linear", [3, 5], Linear, |LinearConfig| LinearConfig::new(5, 7), exact 0.0);
    both!(table, "Linear, no bias", [3, 5], Linear, |LinearConfig| LinearConfig::new(5, 6).with_bias(false), exact 0.0);
    both!(table, "Linear to 1", [3, 5], Linear, |LinearConfig| LinearConfig::new(5, 1), exact 0.0);
    both!(
        table, "Linear, columns", [3, 5], Linear,
        |LinearConfig| LinearConfig::new(5, 7).with_layout(burn::nn::LinearLayout::Col), exact 0.0
    );
    both!(table, "SwiGlu", [3, 5], SwiGlu, |SwiGluConfig| SwiGluConfig::new(5, 7).with_bias(true), exact 0.0);
    both!(table, "SwiGlu to 1", [3, 5], SwiGlu, |SwiGluConfig| SwiGluConfig::new(5, 1), exact 0.0);
}

/// The signs of the rows' numbers as ids, and the numbers as factors.
fn ids(x: &Tensor<3>) -> (Tensor<2, Int>, Tensor<3>) {
    let [rows, a, b] = x.dims();
    let bit = |place: usize| x.clone().narrow(2, place, 1).greater_scalar(0.0).int().reshape([rows, a]);
    let ids = (0..3).fold(Tensor::zeros([rows, a], &x.device()), |ids, place| ids * 2 + bit(place));
    assert!(b > 3, "the last number is a factor");
    (ids, x.clone().narrow(2, 3, 1))
}

pub(crate) fn embedding(table: &mut Table) {
    let ours = Layer::<nn::Embedding> {
        build: |place| nn::EmbeddingConfig::new(8, 5).init(place),
        forward: |layer, x| {
            let (ids, factor) = ids(&x);
            layer.forward(ids) * factor
        },
    };
    let theirs = Layer::<burns::Embedding> {
        build: |place| burns::EmbeddingConfig::new(8, 5).init(place),
        forward: |layer, x| {
            let (ids, factor) = ids(&x);
            layer.forward(ids) * factor
        },
    };
    table.line(line("Embedding", [3, 4], ours), theirs, 0.0);
    let ours = Layer::<nn::Embedding> {
        build: |place| nn::EmbeddingConfig::new(2, 5).init(place),
        forward: |layer, x| {
            let (ids, factor) = ids(&x);
            layer.forward(ids.clamp_max(1)) * factor
        },
    };
    let theirs = Layer::<burns::Embedding> {
        build: |place| burns::EmbeddingConfig::new(2, 5).init(place),
        forward: |layer, x| {
            let (ids, factor) = ids(&x);
            layer.forward(ids.clamp_max(1)) * factor
        },
    };
    table.line(line("Embedding of 2", [3, 4], ours), theirs, 0.0);
}

pub(crate) fn norms(table: &mut Table) {
    both!(table, "LayerNorm", [3, 37], LayerNorm, |LayerNormConfig| LayerNormConfig::new(37), exact 0.0);
    // Burn's computes in f32, of f64 too.
    both!(table, "RmsNorm", [3, 37], RmsNorm, |RmsNormConfig| RmsNormConfig::new(37), exact 1e-6);
    both!(table, "GroupNorm", [6, 5], GroupNorm, |GroupNormConfig| GroupNormConfig::new(3, 6), exact 0.0);
    // Each value is its own mean, with no variance.
    both!(table, "GroupNorm of 1", [6, 1], GroupNorm, |GroupNormConfig| GroupNormConfig::new(6, 6), exact 0.0);
    both!(
        table, "GroupNorm, plain", [6, 5], GroupNorm,
        |GroupNormConfig| GroupNormConfig::new(2, 6).with_affine(false), exact 0.0
    );
    both!(table, "InstanceNorm", [6, 5], InstanceNorm, |InstanceNormConfig| InstanceNormConfig::new(6), exact 0.0);
    let ours = Layer::<nn::BatchNorm> {
        build: |place| nn::BatchNormConfig::new(6).with_epsilon(1e-3).init(place),
        forward: |layer, x| layer.forward(x),
    };
    let theirs = Layer::<burns::BatchNorm> {
        build: |place| burns::BatchNormConfig::new(6).with_epsilon(1e-3).init(place),
        forward: |layer, x| layer.forward(x),
    };
    table.line(Line { by_micro_batch: true, ..line("BatchNorm", [6, 5], ours) }, theirs, 0.0);
    let ours = Layer::<nn::norm::Normalization> {
        build: |place| {
            nn::norm::NormalizationConfig::from(nn::GroupNormConfig::new(2, 0)).with_num_features(6).init(place)
        },
        forward: |layer, x| layer.forward(x),
    };
    let theirs = Layer::<burns::norm::Normalization> {
        build: |place| {
            burns::norm::NormalizationConfig::from(burns::GroupNormConfig::new(2, 0)).with_num_features(6).init(place)
        },
        forward: |layer, x| layer.forward(x),
    };
    table.line(line("Normalization", [6, 5], ours), theirs, 0.0);
}

/// The same activation of both, which has no configuration.
macro_rules! plain {
    ($table:expr, $name:literal, $($layer:ident)::+, $made:ident) => {{
        let ours = Layer::<nn::$($layer)::+> {
            build: |_| nn::$($layer)::+::$made(),
            forward: |layer, x| layer.forward(x),
        };
        let theirs = Layer::<burns::$($layer)::+> {
            build: |_| burns::$($layer)::+::$made(),
            forward: |layer, x| layer.forward(x),
        };
        $table.line(line($name, [3, 5], ours), theirs, 0.0);
    }};
}

pub(crate) fn activations(table: &mut Table) {
    plain!(table, "Gelu", Gelu, new);
    plain!(table, "Gelu, approximate", Gelu, new_approximate);
    plain!(table, "Relu", Relu, new);
    plain!(table, "SiLU", activation::SiLU, new);
    plain!(table, "Sigmoid", Sigmoid, new);
    plain!(table, "Tanh", Tanh, new);
    both!(table, "PRelu", [3, 5], PRelu, |PReluConfig| PReluConfig::new(), exact 0.0);
    both!(table, "PRelu, channels", [3, 5], PRelu, |PReluConfig| PReluConfig::new().with_num_parameters(3), exact 0.0);
    let ours = Layer::<nn::activation::Activation> {
        build: |place| nn::activation::ActivationConfig::from(nn::SwiGluConfig::new(5, 7)).init(place),
        forward: |layer, x| layer.forward(x),
    };
    let theirs = Layer::<burns::activation::Activation> {
        build: |place| burns::activation::ActivationConfig::from(burns::SwiGluConfig::new(5, 7)).init(place),
        forward: |layer, x| layer.forward(x),
    };
    table.line(line("Activation", [3, 5], ours), theirs, 0.0);
}

/// What draws: with numbers of its own, and where it draws nothing as Burn's.
pub(crate) fn drawing(table: &mut Table) {
    let dropout = |build| Layer::<nn::Dropout> { build, forward: |layer, x| layer.forward(x) };
    table.drawing(line("Dropout", [3, 5], dropout(|_| nn::DropoutConfig::new(0.3).init())));
    let theirs = Layer::<burns::Dropout> {
        build: |_| burns::DropoutConfig::new(0.0).init(),
        forward: |layer, x| layer.forward(x),
    };
    table.line(line("Dropout of 0", [3, 5], dropout(|_| nn::DropoutConfig::new(0.0).init())), theirs, 0.0);
    let noise = |build| Layer::<nn::GaussianNoise> { build, forward: |layer, x| layer.forward(x) };
    table.drawing(line("GaussianNoise", [3, 5], noise(|_| nn::GaussianNoiseConfig::new(0.3).init())));
    let theirs = Layer::<burns::GaussianNoise> {
        build: |_| burns::GaussianNoiseConfig::new(0.0).init(),
        forward: |layer, x| layer.forward(x),
    };
    let none = noise(|_| nn::GaussianNoiseConfig::new(0.0).init());
    table.line(line("GaussianNoise of 0", [3, 5], none), theirs, 0.0);
    let rrelu = |build| Layer::<nn::activation::RRelu> { build, forward: |layer, x| layer.forward(x) };
    let drawing = rrelu(|_| nn::activation::RReluConfig::new().init());
    table.drawing(line("RRelu", [3, 5], drawing));
    // Frozen, both take the middle slope. Burn's own has none to draw where the bounds are equal.
    let frozen = rrelu(|_| nn::activation::RReluConfig::new().init().freeze());
    let theirs = Layer::<burns::activation::RRelu> {
        build: |_| burns::activation::RReluConfig::new().init().freeze(),
        forward: |layer, x| layer.forward(x),
    };
    table.line(line("RRelu, frozen", [3, 5], frozen), theirs, 0.0);
}
