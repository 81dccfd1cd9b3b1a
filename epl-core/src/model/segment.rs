//! What the engine asks of a model: a chain of segments; and of one that writes token by token, a state a segment.

use burn::module::Module;
use burn::tensor::{Int, Tensor};

use crate::model::batch::BatchTensors;
use crate::model::carry::Carry;
use crate::model::loss::{Loss, LossWeights};

/// A model: a chain of segments, each the smallest run of layers that is scheduled and reduced as one.
///
/// A model of one segment has the carry `()`, a `forward_segment` that does nothing, and all of its forward in `loss`: correct
/// on every layout without stages, without overlap of its reductions. [`WithLoss`](crate::WithLoss) makes one of a model and
/// a mean loss, [`Chain`](crate::Chain) one of several segments.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::Linear;
/// # use burn::tensor::Tensor;
/// use epl_core::{Loss, LossWeights, Model};
///
/// #[derive(Module, Debug)]
/// struct Net {
///     linear: Linear,
/// }
///
/// impl Model for Net {
///     type Batch = Tensor<2>;
///     type Carry = ();
///
///     fn segments(&self) -> usize {
///         1
///     }
///
///     fn forward_segment(&self, _: usize, _: Option<()>, _: &Tensor<2>) {}
///
///     fn weights(&self, rows: &Tensor<2>) -> LossWeights {
///         LossWeights::new().with("squares", rows.dims()[0] as f64)
///     }
///
///     fn loss(&self, (): (), rows: &Tensor<2>) -> Loss {
///         Loss::new().with("squares", self.linear.forward(rows.clone()).powi_scalar(2).sum(), 1.0)
///     }
/// }
/// ```
pub trait Model: Module {
    /// What one forward reads.
    type Batch: Send;
    /// What crosses a boundary between segments.
    type Carry: Carry;

    /// How many segments the model has, at least one.
    fn segments(&self) -> usize;

    /// What a segment is called: in the plan, a profile, and by who names what is kept. Its number, if the model does not
    /// say.
    fn segment_name(&self, index: usize) -> String {
        index.to_string()
    }

    /// The segments that use the parameter at `path`; several for a tied weight. A model of more than one must say. It is also
    /// asked for a layer of Burn that draws random numbers, such as a Dropout: where it says none, any may.
    fn segments_of(&self, _path: &str) -> Vec<usize> {
        // None where it does not say: the plan refuses that.
        (0..self.segments()).filter(|_| self.segments() == 1).collect()
    }

    /// Runs one segment. The first one gets no carry.
    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &Self::Batch) -> Self::Carry;

    /// Runs all segments, one after the other, on a rank that has the whole model.
    fn forward_all(&self, batch: &Self::Batch) -> Self::Carry {
        let first = self.forward_segment(0, None, batch);
        (1..self.segments()).fold(first, |carry, index| self.forward_segment(index, Some(carry), batch))
    }

    /// The weights of the loss terms, from the batch alone.
    fn weights(&self, batch: &Self::Batch) -> LossWeights;

    /// The loss, from what the last segment returned.
    fn loss(&self, carry: Self::Carry, batch: &Self::Batch) -> Loss;

    /// What is known of the tensors of a batch. By default nothing, and every segment gets it as it is: what one that computes
    /// in 16 bits takes of it, it casts. With [`BatchTensors::of`] such a segment gets it in 16 bits, and the loss as it is.
    fn batch_tensors(&self) -> BatchTensors<Self::Batch> {
        BatchTensors::unknown()
    }
}

/// What leaves a model, for who runs it forward: its carry, and of a [`Chain`](crate::Chain) what the last link returned.
pub type ModelOutput<M> = <<M as Model>::Carry as Carry>::Output;

/// A model that runs in steps, each going on from where the one before ended: token by token, with a state a segment, such
/// as the keys and values of its attention. [`Engine::decoding`](crate::Engine::decoding) runs it through the stages.
pub trait Incremental: Model {
    /// What a segment keeps from one step to the next.
    type State: SegmentState;

    /// The segment with which every step but the first begins: where the decoder does, behind an encoder that runs once.
    fn first_of_step(&self) -> usize {
        0
    }

    /// Runs one segment on what is new in this step, from where `state` is, which it leaves for the next step. The first
    /// segment of a step gets no carry.
    fn forward_step(
        &self,
        index: usize,
        carry: Option<Self::Carry>,
        batch: &Self::Batch,
        state: &mut Self::State,
    ) -> Self::Carry;
}

/// What a segment keeps between the steps of generation; at first nothing.
pub trait SegmentState: Default {
    /// Keeps these rows of the batch, in this order: sequences that ended are dropped, beams are reordered.
    ///
    /// # Shapes
    ///
    /// - rows: `[new_batch_size]`
    #[must_use]
    fn select(self, rows: Tensor<1, Int>) -> Self;
}
