//! Dropout whose mask does not depend on the layout.

use std::sync::Arc;

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Int, Tensor};
use epl_comm::custom_vjp;
use epl_core::Place;
use epl_core::model::precision::{cast, in_wide, widen};

use crate::draws::{Draws, Elements, row_length};
use crate::host::{self, HostFloat, Owned, Real, host_float};
use crate::invalid::refuse;
use crate::of_epl::OfEpl;
use crate::placement::NOTHING;
use crate::random::{Keep, Noise};

/// Configuration to create a [`Dropout`] layer using the [init function](DropoutConfig::init).
#[derive(Config, Debug)]
pub struct DropoutConfig {
    /// The probability with which an element becomes zero during training.
    pub prob: f64,
}

/// Sets elements to zero at random during training, and multiplies the others by `1 / (1 - prob)`.
///
/// See [Improving neural networks by preventing co-adaptation of feature
/// detectors](https://arxiv.org/abs/1207.0580). Burn's own layer draws from the generator that all threads share,
/// which EPL seeds for each segment and rank; this one draws by global sample number ([`random`](crate::random)), so that
/// neither the cut of the batch nor its padding, nor a split of the tensor, nor recomputation changes the mask. It is active while the context says
/// that the pass is one of training, but where the layer is [frozen](Module::freeze) or of a [valid](Module::valid) model.
///
/// Dim 0 of the input is the batch: rows of a sample have a dim of their own.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_comm::shard_range;
/// use epl_core::{Pass, testing};
/// use epl_modules::DropoutConfig;
///
/// // Four samples, on so many replicas.
/// let rows = |replicas: usize| {
///     let parts = testing::run((replicas, 1, 1), |epl| {
///         let dropout = DropoutConfig::new(0.5).init(epl.place());
///         let own: Vec<u64> = shard_range(4, replicas, epl.context().data().rank()).map(|sample| sample as u64).collect();
///         let x = Tensor::<2>::ones([own.len(), 8], epl.place().device());
///         // What an engine does before each forward.
///         epl.context().begin(Pass { step: 0, training: true, samples: own.into(), empty: false });
///         Ok(dropout.forward(x).into_data().iter::<f32>().collect::<Vec<_>>())
///     });
///     parts.concat()
/// };
/// assert_eq!(rows(1), rows(2));
/// ```
///
/// Should be created with [`DropoutConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Dropout {
    /// The probability with which an element becomes zero during training.
    pub prob: f64,
    /// Whether the layer may drop anything; off when it is frozen.
    pub training: Param<Flag>,
    #[module(skip)]
    draws: Draws,
    of_epl: OfEpl,
}

impl DropoutConfig {
    /// Initializes a new [`Dropout`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the probability is not in `[0, 1)`.
    pub fn init(&self, place: &Place) -> Dropout {
        if !(0.0..1.0).contains(&self.prob) {
            refuse(format!("{}: dropout probability {} is not in [0, 1)", place.path(), self.prob));
        }
        Dropout {
            prob: self.prob,
            training: Param::from_bool(true),
            draws: Draws::new("dropout", place),
            of_epl: OfEpl,
        }
    }
}

impl Dropout {
    /// Applies dropout to a whole tensor.
    ///
    /// # Shapes
    ///
    /// - input: `[samples, ...]`
    /// - output: `[samples, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when dim 0 is not the batch of the current pass.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        self.forward_split(input, 0, 0)
    }

    /// Applies dropout to a slice of a tensor: its first index along `dim` is `offset` in the whole tensor.
    ///
    /// # Shapes
    ///
    /// As [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn forward_split<const D: usize>(&self, input: Tensor<D>, dim: usize, offset: usize) -> Tensor<D> {
        match self.mask(&input.dims(), dim, offset) {
            Some(mask) => mask.forward(input),
            None => input,
        }
    }

    /// The mask of the next call, for a tensor of which at least the first of its dims is given; `None` when nothing is
    /// dropped.
    pub(crate) fn mask(&self, dims: &[usize], dim: usize, offset: usize) -> Option<Mask> {
        self.mask_of_parts(dims, 1, (dim, offset))
    }

    /// The same of a tensor that has several rows of each sample, one after the other: so many.
    pub(crate) fn mask_of_parts(&self, dims: &[usize], parts: usize, cut: (usize, usize)) -> Option<Mask> {
        let elements = self.drops().then(|| self.draws.next_elements_of_parts(dims, parts, cut))??;
        Some(Mask { keep: Keep::new(self.prob), elements })
    }

    /// A mask of these rows, whatever tensor they lie in: their first number is `offset`. For a layer that moves rows
    /// between ranks, and with them the names that [`next_call`](Self::next_call) gave them.
    ///
    /// # Shapes
    ///
    /// - rows: `[rows]`, [numbers](crate::random::Row::to_number)
    pub(crate) fn mask_of_rows<const D: usize>(&self, rows: Tensor<1, Int>, offset: usize) -> Mask {
        Mask { keep: Keep::new(self.prob), elements: Elements::listed::<D>(rows, offset) }
    }

    /// The random numbers of the next call, and the samples of its `rows`; `None` when nothing is dropped.
    pub(crate) fn next_call(&self, rows: usize) -> Option<(Noise, Arc<[u64]>)> {
        let (noise, samples) = self.drops().then(|| self.draws.next_call())??;
        self.draws.check_rows(rows, samples.len());
        Some((noise, samples))
    }

    fn drops(&self) -> bool {
        self.prob != 0.0 && self.training.is_enabled()
    }
}

impl ModuleDisplay for Dropout {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("prob", &self.prob).add("placement", NOTHING).optional()
    }
}

/// Which elements of one tensor are kept. It is drawn again when it is needed again, not stored.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    keep: Keep,
    elements: Elements,
}

impl Mask {
    /// A mask of a whole tensor of these samples.
    #[cfg(test)]
    pub(crate) fn new(prob: f64, noise: Noise, samples: Arc<[u64]>) -> Self {
        Self { keep: Keep::new(prob), elements: Elements::of_samples(noise, samples) }
    }

    /// Multiplies a tensor by the mask. Differentiable.
    pub(crate) fn forward<const D: usize>(self, input: Tensor<D>) -> Tensor<D> {
        custom_vjp((input,), |(input,)| self.apply(input), |mask, grad| (Some(mask.apply(grad).0),))
    }

    /// Multiplies the elements of a row of a tensor of this shape, from element `first` on, by the mask.
    pub(crate) fn apply_to_row<T: Real, const D: usize>(
        &self,
        shape: [usize; D],
        (row, first): (usize, usize),
        values: &mut [T],
    ) {
        self.keep.apply(self.elements.row(shape, row), self.elements.first::<D>() + first, values);
    }

    /// Multiplies a tensor by the mask. The second result applies the same mask to the gradient.
    fn apply<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Applied<D>) {
        // In 16 bits the scale would be rounded, and all that is kept would come out too large or too small.
        let (dtype, x) = (x.dtype(), widen(x));
        let (y, applied) = match host_float(&x) {
            Some(HostFloat::Single) => (self.apply_host::<f32, D>(x), Applied::Drawn(self)),
            Some(HostFloat::Double) => (self.apply_host::<f64, D>(x), Applied::Drawn(self)),
            None => {
                let mask = self.tensor(x.dims(), &x.device()).cast(x.dtype());
                (x * mask.clone(), Applied::Stored(mask))
            }
        };
        (cast(y, dtype), applied)
    }

    fn apply_host<T: Real, const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (shape, device) = (x.dims(), x.device());
        let length = row_length(shape);
        let rows = host::rows_a_task(length);
        let mut values = Owned::<T>::take(x);
        host::for_blocks(values.slice_mut(), (rows * length).max(1), |block, values| {
            for (index, values) in values.chunks_exact_mut(length).enumerate() {
                self.apply_to_row(shape, (block * rows + index, 0), values);
            }
        });
        values.into_tensor(&device)
    }

    /// The factors of all elements, in f32: zero, or the scale of those that are kept. They are drawn on the device.
    pub(crate) fn tensor<const D: usize>(&self, shape: [usize; D], device: &Device) -> Tensor<D> {
        let names = self.elements.names(shape, device);
        self.keep.factors(names, self.elements.first::<D>(), row_length(shape)).reshape(shape)
    }
}

/// How the same mask is applied a second time.
enum Applied<const D: usize> {
    /// In host memory it is drawn again: that costs less than keeping it.
    Drawn(Mask),
    /// On a device it is kept.
    Stored(Tensor<D>),
}

impl<const D: usize> Applied<D> {
    fn apply(self, grad: Tensor<D>) -> (Tensor<D>, Self) {
        match self {
            Self::Drawn(mask) => mask.apply(grad),
            Self::Stored(mask) => (in_wide(grad, |grad| grad * mask.clone()), Self::Stored(mask)),
        }
    }
}
