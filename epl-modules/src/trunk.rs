//! A node of the graph that several others depend on, and whose gradients are made of theirs at once.
//!
//! The tape has no node of several outputs, and none sees what others have given to its parent. So ways that part go through a trunk
//! without elements: each leaves its gradient here, and gives the trunk an empty one. Burn runs nodes by their depth, and so the trunk
//! after all ways that have a gradient.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Tensor;

/// The gradients of the ways, as they come.
#[derive(Clone)]
pub(crate) struct Trunk<const D: usize>(Arc<Mutex<Vec<Option<Tensor<D>>>>>);

impl<const D: usize> Trunk<D> {
    /// Of so many ways.
    pub(crate) fn new(ways: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![None; ways])))
    }

    /// What the trunk's forward function gives, for an input like this.
    pub(crate) fn value<const E: usize>(x: &Tensor<E>) -> Tensor<1> {
        Tensor::empty([0], (&x.device(), x.dtype()))
    }

    /// Leaves the gradient of a way; returns the one that the way gives the trunk.
    pub(crate) fn leave(&self, way: usize, grad: Tensor<D>) -> Tensor<1> {
        let value = Self::value(&grad);
        self.grads()[way] = Some(grad);
        value
    }

    /// What was left, for the trunk's backward function.
    pub(crate) fn take(&self) -> Vec<Option<Tensor<D>>> {
        core::mem::take(&mut *self.grads())
    }

    fn grads(&self) -> MutexGuard<'_, Vec<Option<Tensor<D>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
