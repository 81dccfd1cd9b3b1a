//! The frame of every part: a norm, a dropout and a residual connection.

use burn::config::Config;
use burn::tensor::Tensor;

use crate::drop_path::DropPath;
use crate::dropout::Dropout;
use crate::norm::Norm;
use crate::residual;

/// Where the norm of a residual part stands.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum NormOrder {
    /// `x + dropout(f(norm(x)))`. What leaves the last layer is not normalised: the stack has a norm of its own.
    Pre,
    /// `norm(x + dropout(f(x)))`
    Post,
    /// `x + norm(dropout(f(x)))`, as in Swin V2.
    PostResidual,
    /// `x + dropout(output_norm(f(norm(x))))`: [`Pre`](Self::Pre) with a second norm, as of Gemma 2
    /// ([arXiv:2105.13290](https://arxiv.org/abs/2105.13290)).
    Sandwich,
}

/// What stands around a part.
pub(super) struct Frame<'a> {
    pub order: NormOrder,
    pub norm: &'a Norm,
    /// The second norm of [`NormOrder::Sandwich`].
    pub output_norm: Option<&'a Norm>,
    pub dropout: &'a Dropout,
    pub drop_path: &'a DropPath,
}

impl Frame<'_> {
    /// Puts the frame around `f`.
    ///
    /// # Shapes
    ///
    /// - x, output, input and output of `f`: `[batch_size, positions, d_model]`
    pub fn around(self, x: Tensor<3>, f: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        let Self { order, norm, output_norm, dropout, drop_path } = self;
        let added = |output: Tensor<3>| drop_path.forward(dropout.forward(output));
        match order {
            NormOrder::Pre => residual(x, |x| added(f(norm.forward(x)))),
            NormOrder::Post => norm.forward(residual(x, |x| added(f(x)))),
            NormOrder::PostResidual => residual(x, |x| drop_path.forward(norm.forward(dropout.forward(f(x))))),
            NormOrder::Sandwich => residual(x, |x| {
                let output = f(norm.forward(x));
                added(match output_norm {
                    Some(norm) => norm.forward(output),
                    None => output,
                })
            }),
        }
    }
}
