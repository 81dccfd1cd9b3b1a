//! The frame of every part: a norm, a dropout and a residual connection.

use burn::config::Config;
use burn::tensor::Tensor;

use crate::drop_path::DropPath;
use crate::dropout::Dropout;
use crate::norm::Norm;

/// Where the norm of a residual part stands.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum NormOrder {
    /// `x + dropout(f(norm(x)))`. What leaves the last layer is not normalised: the stack has a norm of its own.
    Pre,
    /// `norm(x + dropout(f(x)))`
    Post,
    /// `x + norm(dropout(f(x)))`, as in Swin V2.
    PostResidual,
}

impl NormOrder {
    /// Puts the frame around `f`.
    ///
    /// # Shapes
    ///
    /// - x, output, input and output of `f`: `[batch_size, positions, d_model]`
    pub(super) fn residual(
        self,
        (norm, dropout, drop_path): (&Norm, &Dropout, &DropPath),
        x: Tensor<3>,
        f: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        match self {
            Self::Pre => x.clone() + drop_path.forward(dropout.forward(f(norm.forward(x)))),
            Self::Post => norm.forward(x.clone() + drop_path.forward(dropout.forward(f(x)))),
            Self::PostResidual => x.clone() + drop_path.forward(norm.forward(dropout.forward(f(x)))),
        }
    }
}
