//! Outputs of the parts of a batch, put together: what Burn's metrics are shown is what one rank's step would return.

use burn::tensor::Tensor;
use burn::tensor::kind::{Autodiff, Basic};
use burn_train::{ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput, SequenceOutput};
use epl_comm::{ProcessGroup, ReduceOp};
pub use epl_core::Result;

/// What a step returns for metrics, of which those of the parts of a batch make that of the batch.
///
/// Burn's outputs are; [`step_output!`](crate::step_output) writes it for a struct of tensors.
pub trait StepOutput: Sized {
    /// The output of a batch. Collective: all ranks ask for the same fields, in the same order; the first rank gets the whole.
    ///
    /// # Errors
    ///
    /// When a peer fails.
    fn join(parts: &Parts<'_, Self>) -> Result<Self>;
}

/// What this rank has of the outputs of a batch, in the order of the rows.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use burn_train::metric::{LossInput, LossMetric};
/// # use epl_core::{evaluate::{BatchMeasure, BatchPart}, testing};
/// # use epl_train::{BurnMetrics, Parts, Result, StepOutput};
/// struct Distances { mean: Tensor<1>, each: Tensor<1> }
///
/// impl StepOutput for Distances {
///     fn join(parts: &Parts<'_, Self>) -> Result<Self> {
///         Ok(Self { mean: parts.mean(|part| part.mean.clone())?, each: parts.rows(|part| part.each.clone())? })
///     }
/// }
/// # let seen = testing::run((2, 1, 1), |epl| {
/// #     let world = epl.context().world();
/// #     let largest = |output: &Distances| LossInput::new(output.each.clone().max() - output.mean.clone());
/// #     let mut metrics = BurnMetrics::new().with_input(LossMetric::new(), largest);
/// #     let own = Tensor::<1>::from_floats([[1.0, 2.0], [6.0, 7.0]][world.rank()], &Device::flex());
/// #     let output = Distances { mean: own.clone().mean(), each: own };
/// #     metrics.add(&BatchPart { output: &output, rows: 2, replica: 0, replicas: 1, group: world })?;
/// #     if world.rank() == 0 { metrics.finish() } else { Ok(Vec::new()) }
/// # });
/// // One of two ranks has the distances 1 and 2, the other 6 and 7. What a metric is shown: how far the largest is from the mean.
/// assert_eq!(seen[0], [7.0 - 4.0]);
/// ```
pub struct Parts<'a, O> {
    parts: &'a [Part<'a, O>],
    /// The replicas.
    group: &'a ProcessGroup,
}

/// The output of some rows.
pub(crate) struct Part<'a, O> {
    pub output: &'a O,
    /// How much of the batch's mean it is; none, if it counts for nothing, as it stands in for rows that there are not.
    pub share: Option<f64>,
}

impl<'a, O> Parts<'a, O> {
    pub(crate) fn new(parts: &'a [Part<'a, O>], group: &'a ProcessGroup) -> Self {
        Self { parts, group }
    }

    /// A mean over the rows, such as a loss.
    ///
    /// # Shapes
    ///
    /// - of a part, and result: `[1]`, or any, the same of all parts that count
    ///
    /// # Errors
    ///
    /// When a peer fails.
    pub fn mean<const D: usize>(&self, field: impl Fn(&O) -> Tensor<D>) -> Result<Tensor<D>> {
        let weighed = |part: &Part<'_, O>| {
            let value = field(part.output).without_autodiff();
            match part.share {
                Some(1.0) => value,
                // Of what counts for nothing the mean may be no number.
                None | Some(0.0) => value.zeros_like(),
                Some(share) => value * share,
            }
        };
        let own = self
            .parts
            .iter()
            .map(weighed)
            .reduce(|sum, value| sum + value)
            .unwrap_or_else(|| unreachable!("a rank has a part"));
        if self.group.size() == 1 {
            return Ok(own);
        }
        let counts = self.parts.iter().any(|part| part.share.is_some());
        let own = match self.shape_of_owner(usize::from(counts), own.dims())? {
            Some(shape) => Tensor::zeros(shape, (&own.device(), own.dtype())),
            None => own,
        };
        Ok(self.group.all_reduce(own, ReduceOp::Sum)?)
    }

    /// The shape that this member's value must have, if it has another one, and nothing that counts: it has made its own of
    /// another batch than the members whose counts, which may be padded to another length. Collective.
    fn shape_of_owner<const D: usize>(&self, counts: usize, own: [usize; D]) -> Result<Option<[usize; D]>> {
        let told: Vec<i64> = [counts].iter().chain(&own).map(|size| *size as i64).collect();
        let all = self.group.all_gather_counts(&told)?;
        let owner = all.iter().find(|told| told[0] > 0).filter(|_| counts == 0);
        let shape = owner.map(|told| core::array::from_fn(|dim| told[1 + dim] as usize));
        Ok(shape.filter(|shape| *shape != own))
    }

    /// Values of each row, such as logits, or targets: those of all rows, one after the other along the first dim.
    ///
    /// # Shapes
    ///
    /// - of a part: `[rows of the part, ...]`, or a multiple of these; the rest the same of all parts that have rows of the batch
    /// - result: `[rows of the batch, ...]`, or the same multiple
    ///
    /// # Errors
    ///
    /// When a peer fails.
    pub fn rows<const D: usize, K: Basic + Autodiff>(
        &self,
        field: impl Fn(&O) -> Tensor<D, K>,
    ) -> Result<Tensor<D, K>> {
        let of = |part: &Part<'_, O>| {
            let value = field(part.output).without_autodiff();
            if part.share.is_some() { value } else { value.slice_dim(0, 0..0) }
        };
        let own: Vec<_> = self.parts.iter().map(of).collect();
        let own = match own.len() {
            1 => own.into_iter().next().unwrap_or_else(|| unreachable!("it has one")),
            _ => Tensor::cat(own, 0),
        };
        if self.group.size() == 1 {
            return Ok(own);
        }
        let told: Vec<i64> = own.dims().iter().map(|size| *size as i64).collect();
        let all = self.group.all_gather_counts(&told)?;
        let sizes: Vec<usize> = all.iter().map(|dims| dims[0] as usize).collect();
        // Who has no rows has made its own of another batch, which may be padded to another length.
        let owner = all.iter().find(|dims| dims[0] > 0).filter(|dims| sizes[self.group.rank()] == 0 && **dims != told);
        let own = match owner {
            Some(dims) => {
                let shape: [usize; D] = core::array::from_fn(|dim| if dim == 0 { 0 } else { dims[dim] as usize });
                Tensor::empty(shape, (&own.device(), own.dtype()))
            }
            None => own,
        };
        Ok(self.group.gather_uneven(own.clone(), 0, &sizes, 0)?.unwrap_or(own))
    }

    /// The same of what may be missing, in all parts alike.
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    pub fn rows_if<const D: usize, K: Basic + Autodiff>(
        &self,
        field: impl Fn(&O) -> Option<Tensor<D, K>>,
    ) -> Result<Option<Tensor<D, K>>> {
        let is_there = self.parts.iter().all(|part| field(part.output).is_some());
        let there = |output: &O| field(output).unwrap_or_else(|| unreachable!("all parts have it"));
        is_there.then(|| self.rows(there)).transpose()
    }
}

/// Makes a struct of tensors a [`StepOutput`](crate::StepOutput), by saying of each field whether it is a `mean` over the rows, or
/// has values of all `rows`.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// struct Tagged { loss: Tensor<1>, logits: Tensor<3>, tags: Tensor<2, Int> }
///
/// epl_train::step_output!(Tagged { loss: mean, logits: rows, tags: rows });
/// ```
#[macro_export]
macro_rules! step_output {
    ($output:ident { $($field:ident: $how:ident),+ $(,)? }) => {
        impl $crate::StepOutput for $output {
            fn join(parts: &$crate::Parts<'_, Self>) -> $crate::Result<Self> {
                Ok(Self { $($field: parts.$how(|output: &Self| output.$field.clone())?),+ })
            }
        }
    };
}

step_output!(ClassificationOutput { loss: mean, output: rows, targets: rows });
step_output!(MultiLabelClassificationOutput { loss: mean, output: rows, targets: rows });
step_output!(RegressionOutput { loss: mean, output: rows, targets: rows });
step_output!(SequenceOutput { loss: mean, logits: rows, predictions: rows_if, targets: rows });

impl StepOutput for () {
    fn join(_: &Parts<'_, Self>) -> Result<Self> {
        Ok(())
    }
}
