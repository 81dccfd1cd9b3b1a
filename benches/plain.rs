//! What a training loop of plain Burn does beside its model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Clips by the global norm, which may be so large, as a Burn user would write it.
pub fn clip<M: Module>(model: &M, gradients: &mut GradientsParams, most: f64) {
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
