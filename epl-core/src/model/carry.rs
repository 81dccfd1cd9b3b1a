//! What crosses the boundary between two segments.

use burn::tensor::Tensor;

/// The float tensors that cross the boundary between two segments, which may be one between two ranks.
///
/// Between stages of different widths (`replicate(2)`, then `replicate(1)`) rows are gathered and divided anew: there the
/// first dim of every tensor counts the rows of the micro-batch.
///
/// [`carry!`](crate::carry) writes it for a struct:
///
/// ```
/// # use burn::tensor::Tensor;
/// #[derive(Clone, Debug)]
/// struct Hidden { states: Tensor<3>, memory: Option<Tensor<3>> }
///
/// epl_core::carry!(Hidden { states, memory });
/// ```
pub trait Carry: Sized + Clone + Send {
    /// Hands every tensor to `mapper`, always in the same order; and every number of tensors that may vary, before
    /// them.
    #[must_use]
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self;

    /// Puts one together from tensors that come in the order in which [`map`](Self::map) hands them out.
    fn read<R: CarryReader>(reader: &mut R) -> Self;
}

/// Does something with each tensor of a [`Carry`].
pub trait CarryMapper {
    /// Maps one tensor.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;

    /// Learns how many parts follow, where that may vary.
    fn count(&mut self, _parts: usize) {}
}

/// Gives the tensors of a [`Carry`], one after the other.
pub trait CarryReader {
    /// The next tensor.
    fn float<const D: usize>(&mut self) -> Tensor<D>;

    /// How many parts follow, where that may vary.
    fn count(&mut self) -> usize;
}

impl Carry for () {
    fn map<M: CarryMapper>(self, _mapper: &mut M) -> Self {}

    fn read<R: CarryReader>(_reader: &mut R) -> Self {}
}

impl<const D: usize> Carry for Tensor<D> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }

    fn read<R: CarryReader>(reader: &mut R) -> Self {
        reader.float()
    }
}

impl<C: Carry> Carry for Option<C> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.count(usize::from(self.is_some()));
        self.map(|carry| carry.map(mapper))
    }

    fn read<R: CarryReader>(reader: &mut R) -> Self {
        (reader.count() > 0).then(|| C::read(reader))
    }
}

impl<C: Carry> Carry for Vec<C> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.count(self.len());
        self.into_iter().map(|carry| Carry::map(carry, mapper)).collect()
    }

    fn read<R: CarryReader>(reader: &mut R) -> Self {
        (0..reader.count()).map(|_| C::read(reader)).collect()
    }
}

/// Makes a struct whose fields are all a [`Carry`] one, or a tuple.
///
/// ```
/// # use burn::tensor::Tensor;
/// #[derive(Clone, Debug)]
/// struct Pair { left: Tensor<2>, right: Option<Tensor<2>> }
///
/// epl_core::carry!(Pair { left, right });
/// ```
#[macro_export]
macro_rules! carry {
    ($carry:ident { $($field:ident),* $(,)? }) => {
        impl $crate::Carry for $carry {
            fn map<M: $crate::CarryMapper>(self, mapper: &mut M) -> Self {
                Self { $($field: $crate::Carry::map(self.$field, mapper)),* }
            }

            fn read<R: $crate::CarryReader>(reader: &mut R) -> Self {
                Self { $($field: $crate::Carry::read(reader)),* }
            }
        }
    };
    ($($part:ident: $index:tt),+) => {
        impl<$($part: $crate::Carry),+> $crate::Carry for ($($part,)+) {
            fn map<M: $crate::CarryMapper>(self, mapper: &mut M) -> Self {
                ($($crate::Carry::map(self.$index, mapper),)+)
            }

            fn read<R: $crate::CarryReader>(reader: &mut R) -> Self {
                ($(<$part as $crate::Carry>::read(reader),)+)
            }
        }
    };
}

carry!(A: 0, B: 1);
carry!(A: 0, B: 1, C: 2);
carry!(A: 0, B: 1, C: 2, D: 3);
