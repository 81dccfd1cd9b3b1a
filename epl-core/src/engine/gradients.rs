//! The gradients of a step, one flat tensor a parameter.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Shape, Tensor};

/// Gradients by parameter, flattened: a view, not a copy, for the contiguous tensors that products return.
#[derive(Default)]
pub(crate) struct GradientStore(HashMap<ParamId, Tensor<1>>);

impl GradientStore {
    /// Adds the gradients that one backward left for the parameters of `model`.
    pub fn collect<M: Module>(&mut self, model: &M, gradients: &mut Gradients) {
        model.visit(&mut Collector { store: self, gradients });
    }

    /// Adds a flat gradient.
    pub fn add(&mut self, id: ParamId, gradient: Tensor<1>) {
        let sum = match self.0.remove(&id) {
            Some(other) => other + gradient,
            None => gradient,
        };
        self.0.insert(id, sum);
    }

    /// Replaces a gradient.
    pub fn insert(&mut self, id: ParamId, gradient: Tensor<1>) {
        self.0.insert(id, gradient);
    }

    /// Takes a gradient.
    pub fn remove(&mut self, id: ParamId) -> Option<Tensor<1>> {
        self.0.remove(&id)
    }

    /// A gradient.
    pub fn get(&self, id: ParamId) -> Option<&Tensor<1>> {
        self.0.get(&id)
    }

    /// Multiplies every gradient.
    pub fn scale(&mut self, factor: f64) {
        for gradient in self.0.values_mut() {
            let taken = core::mem::replace(gradient, Tensor::empty([0], &gradient.device()));
            *gradient = taken * factor;
        }
    }

    /// Hands the gradients over in the parameters' shapes.
    pub fn into_params<M: Module>(mut self, model: &M) -> GradientsParams {
        let mut params = GradientsParams::new();
        model.visit(&mut Shaper { store: &mut self, params: &mut params });
        params
    }
}

struct Collector<'a> {
    store: &'a mut GradientStore,
    gradients: &'a mut Gradients,
}

impl ModuleVisitor for Collector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let base = param.base();
        if !base.is_require_grad() {
            return;
        }
        if let Some(gradient) = base.grad_remove(self.gradients) {
            let numel = gradient.shape().num_elements();
            self.store.add(param.id, gradient.reshape([numel]));
        }
    }
}

struct Shaper<'a> {
    store: &'a mut GradientStore,
    params: &'a mut GradientsParams,
}

impl ModuleVisitor for Shaper<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.store.remove(param.id) {
            let shape: Shape = param.lazy_shape();
            self.params.register::<D>(param.id, gradient.reshape(shape));
        }
    }
}
