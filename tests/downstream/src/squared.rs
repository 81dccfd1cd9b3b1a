//! A parallel module: the squares of some projections, added up. Each rank holds some of the projections.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl::comm::{Partial, copied};
use epl::{Axis, Context, Place};

/// `Σ_j (x · w_j)²`, its columns `w_j` divided over the tensor axis.
#[derive(Module, Debug)]
pub struct Squared {
    weight: Param<Tensor<2>>,
    #[module(skip)]
    context: Context,
}

impl Squared {
    pub fn new(d_input: usize, columns: usize, place: &Place) -> Self {
        let initializer = Initializer::XavierNormal { gain: 1.0 };
        Self {
            weight: place.split_param([d_input, columns], &[(Axis::Tensor, 1)], initializer),
            context: place.context().clone(),
        }
    }

    /// # Shapes
    ///
    /// - x: `[rows, d_input]`
    /// - output: `[rows, 1]`
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let group = self.context.tensor();
        let projected = copied(x, group).local().matmul(self.weight.val());
        Partial::from_local(projected.powi_scalar(2).sum_dim(1), group).all_reduce()
    }
}
