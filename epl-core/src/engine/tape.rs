//! One micro-batch through some consecutive segments, each a graph of its own.
//!
//! ```text
//!            entrance 0      exit 0    entrance 1      exit 1
//! batch ──▶ [ segment 0 ] ──▶ carry ┆──▶ [ segment 1 ] ──▶ carry ──▶ loss, or another stage     forward
//!                              ▲    ┆      │
//!                       seed with   ┆   gradient of                                             backward
//!                       ◀───────────┆── entrance 1 ◀────── backward of the loss, or of the exit
//! ```
//!
//! The carry is detached and tracked at each entrance (┆). Burn runs one tape deepest first and operations on
//! leaves last, so on one tape no gradient would be final before the end; with a graph a segment they are final
//! after each segment's backward.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::DispatchTensor;
use burn::tensor::{Gradients, Tensor};
use epl_comm::custom_vjp;

use crate::carry::{Carry, CarryMapper};
use crate::segment::Segmented;

/// The graphs of one micro-batch, from the first segment to the last.
pub(crate) struct Tape<C> {
    first: usize,
    entrances: Vec<Option<C>>,
    /// Of all segments but the last.
    exits: Vec<Seed>,
}

/// The gradients of a carry's tensors, in the carry's order.
pub(crate) type CarryGradients = Vec<Option<DispatchTensor>>;

impl<C: Carry> Tape<C> {
    /// Runs segments forward; returns what the last one returned, and the tape that leads back from there.
    pub fn forward<M>(
        model: &M,
        batch: &M::Batch,
        segments: Range<usize>,
        mut carry: Option<C>,
        mut before: impl FnMut(usize),
    ) -> (C, Self)
    where
        M: Segmented<Carry = C>,
    {
        let mut tape = Self { first: segments.start, entrances: Vec::new(), exits: Vec::new() };
        for index in segments.clone() {
            before(index);
            let entrance = carry.map(|carry| carry.map(&mut Track));
            let exit = model.forward_segment(index, entrance.clone(), batch);
            tape.entrances.push(entrance);
            if index + 1 < segments.end {
                tape.exits.push(Seed::of(&exit));
            }
            carry = Some(exit);
        }
        (carry.expect("a tape has at least one segment"), tape)
    }

    /// Runs every segment backward, from the last to the first; `after` gets the gradients of each as they become
    /// final. `root` is what is differentiated. Returns the gradients of the carry that entered the first segment, if
    /// one did.
    pub fn backward(
        mut self,
        mut root: Option<Tensor<1>>,
        mut before: impl FnMut(usize),
        mut after: impl FnMut(usize, Option<Gradients>),
    ) -> CarryGradients {
        let mut found = CarryGradients::new();
        while let Some(entrance) = self.entrances.pop() {
            let index = self.first + self.entrances.len();
            before(index);
            let gradients = root.take().filter(Tensor::is_tracked).map(|root| root.backward());
            let seed = self.exits.pop();
            let Some(mut gradients) = gradients else {
                // Nothing in this segment, nor before it, asks for a gradient.
                found = CarryGradients::new();
                after(index, None);
                continue;
            };
            let mut collect = Collect { gradients: &mut gradients, found: CarryGradients::new() };
            let _ = entrance.map(|carry| carry.map(&mut collect));
            found = collect.found;
            root = seed.and_then(|seed| seed.root(core::mem::take(&mut found)));
            after(index, Some(gradients));
        }
        found
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

/// Scalars whose backward hands gradients to the tensors of a carry, which come later. The carry itself may be dropped
/// until then.
pub(crate) struct Seed(Vec<Option<Scalar>>);

/// None for a tensor that is not tracked.
struct Scalar {
    root: Tensor<1>,
    /// What its backward hands on.
    gradient: Arc<Mutex<Option<DispatchTensor>>>,
}

impl Seed {
    /// The scalars of a carry's tensors.
    pub fn of<C: Carry>(carry: &C) -> Self {
        let mut seed = Self(Vec::new());
        let _ = carry.clone().map(&mut seed);
        seed
    }

    /// The sum of the scalars of those tensors that have a gradient; none if no tracked one has.
    pub fn root(self, gradients: CarryGradients) -> Option<Tensor<1>> {
        assert!(
            gradients.is_empty() || gradients.len() == self.0.len(),
            "a carry has as many tensors at its exit as at the next entrance"
        );
        let seeded = |(scalar, gradient): (Option<Scalar>, Option<DispatchTensor>)| {
            let (Scalar { root, gradient: place }, gradient) = scalar.zip(gradient)?;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
            Some(root)
        };
        self.0.into_iter().zip(gradients).filter_map(seeded).reduce(|sum, root| sum + root)
    }
}

impl CarryMapper for Seed {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push(tensor.is_tracked().then(|| Scalar::of(tensor.clone())));
        tensor
    }
}

impl Scalar {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        let gradient = Arc::new(Mutex::new(None));
        let (shape, place) = (tensor.shape(), gradient.clone());
        let take = move || place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let root = custom_vjp(
            (tensor,),
            |(tensor,)| (Tensor::<1>::zeros([1], &tensor.device()).cast(tensor.dtype()), ()),
            // Another stage sends a gradient in a row.
            move |(), _| (take().map(|gradient| Tensor::<D>::from_dispatch(gradient).reshape(shape.clone())),),
        );
        Self { root, gradient }
    }
}
