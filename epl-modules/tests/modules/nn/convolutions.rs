//! Convolutions of every kind.

use burn::nn::PaddingConfig2d;
use burn::nn::conv as burns;
use burn::tensor::Tensor;
use epl_modules::nn::conv;

use super::case::Layer;
use super::layers::line;
use super::table::{Line, Table};

/// `[rows, channels, pixels]` as an image, and back.
fn on_image<const D: usize>(x: Tensor<3>, sizes: &[usize], layer: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<3> {
    let [rows, channels, _] = x.dims();
    let mut shape = [rows; D];
    shape[1] = channels;
    shape[2..].copy_from_slice(sizes);
    let y = layer(x.reshape(shape));
    let dims = y.dims();
    y.reshape([dims[0], dims[1], dims[2..].iter().product()])
}

/// Ours and Burn's of one configuration, on images of these sizes.
macro_rules! both {
    ($table:expr, $name:literal, [$channels:expr, $($size:expr),+], $layer:ident, |$config:ident| $made:expr) => {{
        let ours = Layer::<conv::$layer> {
            build: |place| {
                type $config = conv::$config;
                $made.init(place)
            },
            forward: |layer, x| on_image(x, &[$($size),+], |x| layer.forward(x)),
        };
        let theirs = Layer::<burns::$layer> {
            build: |place| {
                type $config = burns::$config;
                $made.init(place)
            },
            forward: |layer, x| on_image(x, &[$($size),+], |x| layer.forward(x)),
        };
        $table.line(line($name, [$channels, 1 $(* $size)+], ours), theirs, 0.0);
    }};
}

pub(crate) fn plain(table: &mut Table) {
    both!(table, "Conv1d", [3, 7], Conv1d, |Conv1dConfig| Conv1dConfig::new(3, 5, 3).with_stride(2));
    both!(table, "Conv1d, 6 groups", [6, 7], Conv1d, |Conv1dConfig| Conv1dConfig::new(6, 12, 3).with_groups(6));
    both!(table, "Conv2d", [3, 5, 6], Conv2d, |Conv2dConfig| Conv2dConfig::new([3, 5], [3, 2])
        .with_padding(PaddingConfig2d::Same)
        .with_dilation([1, 2]));
    both!(table, "Conv2d to 1", [3, 5, 6], Conv2d, |Conv2dConfig| Conv2dConfig::new([3, 1], [3, 3]).with_bias(false));
    both!(table, "Conv2d, 2 groups", [4, 5, 6], Conv2d, |Conv2dConfig| Conv2dConfig::new([4, 6], [3, 3])
        .with_groups(2));
    both!(table, "Conv3d", [2, 3, 4, 3], Conv3d, |Conv3dConfig| Conv3dConfig::new([2, 5], [2, 3, 2]));
}

pub(crate) fn transposed(table: &mut Table) {
    both!(table, "ConvTranspose1d", [3, 7], ConvTranspose1d, |ConvTranspose1dConfig| ConvTranspose1dConfig::new(
        [3, 5],
        3
    )
    .with_stride(2)
    .with_padding_out(1));
    both!(table, "…1d, 6 groups", [6, 7], ConvTranspose1d, |ConvTranspose1dConfig| ConvTranspose1dConfig::new(
        [6, 12],
        3
    )
    .with_groups(6));
    both!(table, "ConvTranspose2d", [3, 4, 5], ConvTranspose2d, |ConvTranspose2dConfig| ConvTranspose2dConfig::new(
        [3, 5],
        [3, 2]
    )
    .with_padding([1, 0]));
    both!(table, "…2d, 2 groups", [4, 4, 5], ConvTranspose2d, |ConvTranspose2dConfig| ConvTranspose2dConfig::new(
        [4, 6],
        [3, 2]
    )
    .with_groups(2));
    both!(table, "ConvTranspose3d", [2, 3, 2, 3], ConvTranspose3d, |ConvTranspose3dConfig| ConvTranspose3dConfig::new(
        [2, 5],
        [2, 2, 2]
    ));
}

/// Offsets that depend on the image, so that their gradients are seen.
pub(crate) fn deformable(table: &mut Table) {
    fn inputs(x: &Tensor<4>) -> (Tensor<4>, Option<Tensor<4>>) {
        let of = |channels: usize, factor: f64| {
            let image = x.clone().narrow(1, 0, 1).slice([0..x.dims()[0], 0..1, 0..3, 0..4]);
            let image = image.repeat_dim(1, channels);
            // Not where the samples' weights have corners.
            (image * factor).sin() * 0.2 + 0.3
        };
        (of(18, 1.0), Some(of(9, 2.0)))
    }
    let ours = Layer::<conv::DeformConv2d> {
        build: |place| conv::DeformConv2dConfig::new([2, 5], [3, 3]).init(place),
        forward: |layer, x| {
            on_image(x, &[5, 6], |x| {
                let (offset, mask) = inputs(&x);
                layer.forward(x, offset, mask)
            })
        },
    };
    let theirs = Layer::<burns::DeformConv2d> {
        build: |place| burns::DeformConv2dConfig::new([2, 5], [3, 3]).init(place),
        forward: |layer, x| {
            on_image(x, &[5, 6], |x| {
                let (offset, mask) = inputs(&x);
                layer.forward(x, offset, mask)
            })
        },
    };
    // Flex computes it in f32.
    table.line(Line { exact: 1e-6, ..line("DeformConv2d", [2, 30], ours) }, theirs, 0.0);
}
