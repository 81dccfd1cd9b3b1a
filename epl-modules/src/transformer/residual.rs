//! The frame of every part: a norm, a dropout and a residual connection.

use burn::config::Config;
use burn::tensor::Tensor;

use crate::dropout::Dropout;
use crate::norm::Norm;

/// Where the norm of a residual part stands.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum NormOrder {
    /// `x + dropout(f(norm(x)))`. What leaves the last layer is not normalised: the stack has a norm of its own.
    Pre,
    /// `norm(x + dropout(f(x)))`
    Post,
    /// `x + dropout(output_norm(f(norm(x))))`: [`Pre`](Self::Pre) with a second norm, as of Gemma 2
    /// ([arXiv:2105.13290](https://arxiv.org/abs/2105.13290)).
    Sandwich,
}

impl NormOrder {
    /// Puts the frame around `f`.
    ///
    /// # Shapes
    ///
    /// - x, output, input and output of `f`: `[batch_size, positions, d_model]`
    pub(super) fn residual(
        self,
        (norm, output_norm, dropout): (&Norm, Option<&Norm>, &Dropout),
        x: Tensor<3>,
        f: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        match self {
            Self::Pre | Self::Sandwich => {
                let output = f(norm.forward(x.clone()));
                let output = match output_norm {
                    Some(norm) => norm.forward(output),
                    None => output,
                };
                x + dropout.forward(output)
            }
            Self::Post => norm.forward(x.clone() + dropout.forward(f(x))),
        }
    }
}
