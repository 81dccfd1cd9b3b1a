//! What a training loop of plain Burn does with a loss.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

/// The largest global norm of gradients.
pub const CLIP: f64 = 1.0;

/// The model behind an update by gradients that are clipped, and the loss before it.
pub fn update<M: Module>(model: M, optimizer: &mut ModuleOptimizer, loss: Tensor<1>, rate: f64) -> (M, f64) {
    let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
    clip(&model, &mut gradients, CLIP);
    let value = loss.into_scalar::<f32>();
    (optimizer.step(rate, model, gradients), value.into())
}

/// Clips by the global norm, which may be so large, as a Burn user would write it.
fn clip<M: Module>(model: &M, gradients: &mut GradientsParams, most: f64) {
    struct Squares<'a>(&'a GradientsParams, Vec<Tensor<1>>);
    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.extend(self.0.get::<D>(param.id).map(|gradient| (gradient.clone() * gradient).sum()));
        }
    }
    struct Scale<'a>(&'a mut GradientsParams, f64);
    impl ModuleVisitor for Scale<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.0.register(param.id, gradient * self.1);
            }
        }
    }
    let mut squares = Squares(gradients, Vec::new());
    model.visit(&mut squares);
    let norm = f64::from(Tensor::cat(squares.1, 0).sum().into_scalar::<f32>()).sqrt();
    if norm > most {
        model.visit(&mut Scale(gradients, most / norm));
    }
}
