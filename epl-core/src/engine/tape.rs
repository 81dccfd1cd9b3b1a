//! One micro-batch through the chain of segments, each a graph of its own.
//!
//! ```text
//!            entrance 0      exit 0    entrance 1      exit 1
//! batch ──▶ [ segment 0 ] ──▶ carry ┆──▶ [ segment 1 ] ──▶ carry ──▶ loss     forward
//!                              ▲    ┆      │
//!                       seed with   ┆   gradient of                            backward
//!                       ◀───────────┆── entrance 1 ◀──────────── backward of the loss
//! ```
//!
//! The carry is detached and tracked at each entrance (┆). Burn runs one tape deepest first and operations on
//! leaves last, so on one tape no gradient would be final before the end; with a graph a segment they are final
//! after each segment's backward.

use burn::backend::DispatchTensor;
use burn::tensor::{Gradients, Tensor};
use epl_comm::custom_vjp;

use crate::carry::{Carry, CarryMapper};
use crate::loss::Loss;
use crate::segment::Segmented;

/// The graphs of one micro-batch, from the first segment to the last.
pub(crate) struct Tape<C> {
    entrances: Vec<Option<C>>,
    exits: Vec<Option<C>>,
}

/// The gradients of a carry's tensors, in the carry's order.
type CarryGradients = Vec<Option<DispatchTensor>>;

impl<C: Carry> Tape<C> {
    /// Runs every segment forward; returns the loss with the tape that leads back from it.
    pub fn forward<M>(model: &M, batch: &M::Batch, mut before: impl FnMut(usize)) -> (Loss, Self)
    where
        M: Segmented<Carry = C>,
    {
        let last = model.segments() - 1;
        let mut tape = Self { entrances: Vec::new(), exits: Vec::new() };
        let mut carry: Option<C> = None;
        for index in 0..last {
            before(index);
            let entrance = carry.map(|carry| carry.map(&mut Track));
            let exit = model.forward_segment(index, entrance.clone(), batch);
            tape.entrances.push(entrance);
            tape.exits.push(Some(exit.clone()));
            carry = Some(exit);
        }
        before(last);
        let entrance = carry.map(|carry| carry.map(&mut Track));
        let exit = model.forward_segment(last, entrance.clone(), batch);
        let loss = model.loss(exit, batch);
        tape.entrances.push(entrance);
        (loss, tape)
    }

    /// Runs every segment backward, from the last to the first; `after` gets the gradients of each as they become
    /// final. `root` is what is differentiated: the weighted loss.
    pub fn backward(
        mut self,
        root: Tensor<1>,
        mut before: impl FnMut(usize),
        mut after: impl FnMut(usize, Option<Gradients>),
    ) {
        let mut root = Some(root);
        for index in (0..self.entrances.len()).rev() {
            before(index);
            let gradients = root.take().filter(Tensor::is_tracked).map(|root| root.backward());
            let entrance = self.entrances.pop().flatten();
            let Some(mut gradients) = gradients else {
                // Nothing in this segment, nor before it, asks for a gradient.
                after(index, None);
                continue;
            };
            let mut collect = Collect { gradients: &mut gradients, found: CarryGradients::new() };
            let _ = entrance.map(|carry| carry.map(&mut collect));
            let found = collect.found;
            if let Some(exit) = index.checked_sub(1).and_then(|previous| self.exits[previous].take()) {
                root = seed(exit, found);
            }
            after(index, Some(gradients));
        }
    }
}

/// Detaches a tensor and tracks it as a leaf of the next graph.
struct Track;

impl CarryMapper for Track {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match tensor.is_autodiff() {
            true => tensor.detach().require_grad(),
            false => tensor,
        }
    }
}

/// Takes the gradients of an entrance's leaves.
struct Collect<'a> {
    gradients: &'a mut Gradients,
    found: CarryGradients,
}

impl CarryMapper for Collect<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let gradient = if tensor.is_autodiff() { tensor.grad_remove(self.gradients) } else { None };
        self.found.push(gradient.map(Tensor::into_dispatch));
        tensor
    }
}

/// A scalar whose backward hands `gradients` to the tensors of `exit`; none if no tensor of it is tracked.
fn seed<C: Carry>(exit: C, gradients: CarryGradients) -> Option<Tensor<1>> {
    let mut seeder = Seed { gradients: gradients.into_iter(), root: None };
    let _ = exit.map(&mut seeder);
    seeder.root
}

struct Seed {
    gradients: std::vec::IntoIter<Option<DispatchTensor>>,
    root: Option<Tensor<1>>,
}

impl CarryMapper for Seed {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let gradient = self.gradients.next().expect("a carry has as many tensors at its exit as at the next entrance");
        if let Some(gradient) = gradient.filter(|_| tensor.is_tracked()) {
            let gradient = Tensor::<D>::from_dispatch(gradient);
            let root = custom_vjp(
                (tensor.clone(),),
                |(tensor,)| (Tensor::<1>::zeros([1], &tensor.device()).cast(tensor.dtype()), ()),
                move |(), _| (Some(gradient),),
            );
            self.root = Some(match self.root.take() {
                Some(other) => other + root,
                None => root,
            });
        }
        tensor
    }
}
