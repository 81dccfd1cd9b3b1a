//! What crosses the boundary between two segments.

use burn::tensor::{Device, Tensor};

use crate::error::{Error, Result};

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
    /// What it is for who runs a model forward, and not what is inside of it: itself, but for what a
    /// [`Chain`](crate::Chain) hands on.
    type Output;

    /// Hands every tensor to `mapper`, always in the same order; and every number of tensors that may vary, before
    /// them.
    #[must_use]
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self;

    /// Puts one together from tensors that come in the order in which [`map`](Self::map) hands them out.
    fn read<R: CarryReader>(reader: &mut R) -> Self;

    /// What it is outside of the model.
    ///
    /// # Errors
    ///
    /// When a [`Chain`](crate::Chain) hands on something else there than at its end.
    fn into_output(self) -> Result<Self::Output>;
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
    type Output = Self;

    fn map<M: CarryMapper>(self, _mapper: &mut M) -> Self {}

    fn read<R: CarryReader>(_reader: &mut R) -> Self {}

    fn into_output(self) -> Result<Self> {
        Ok(self)
    }
}

impl<const D: usize> Carry for Tensor<D> {
    type Output = Self;

    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }

    fn read<R: CarryReader>(reader: &mut R) -> Self {
        reader.float()
    }

    fn into_output(self) -> Result<Self> {
        Ok(self)
    }
}

impl<C: Carry> Carry for Option<C> {
    type Output = Self;

    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.count(usize::from(self.is_some()));
        self.map(|carry| carry.map(mapper))
    }

    fn read<R: CarryReader>(reader: &mut R) -> Self {
        (reader.count() > 0).then(|| C::read(reader))
    }

    fn into_output(self) -> Result<Self> {
        Ok(self)
    }
}

impl<C: Carry> Carry for Vec<C> {
    type Output = Self;

    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.count(self.len());
        self.into_iter().map(|carry| Carry::map(carry, mapper)).collect()
    }

    fn read<R: CarryReader>(reader: &mut R) -> Self {
        (0..reader.count()).map(|_| C::read(reader)).collect()
    }

    fn into_output(self) -> Result<Self> {
        Ok(self)
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
            type Output = Self;

            fn map<M: $crate::CarryMapper>(self, mapper: &mut M) -> Self {
                Self { $($field: $crate::Carry::map(self.$field, mapper)),* }
            }

            fn read<R: $crate::CarryReader>(reader: &mut R) -> Self {
                Self { $($field: $crate::Carry::read(reader)),* }
            }

            fn into_output(self) -> $crate::Result<Self> {
                Ok(self)
            }
        }
    };
    ($($part:ident: $index:tt),+) => {
        impl<$($part: $crate::Carry),+> $crate::Carry for ($($part,)+) {
            type Output = Self;

            fn map<M: $crate::CarryMapper>(self, mapper: &mut M) -> Self {
                ($($crate::Carry::map(self.$index, mapper),)+)
            }

            fn read<R: $crate::CarryReader>(reader: &mut R) -> Self {
                ($(<$part as $crate::Carry>::read(reader),)+)
            }

            fn into_output(self) -> $crate::Result<Self> {
                Ok(self)
            }
        }
    };
}

carry!(A: 0, B: 1);
carry!(A: 0, B: 1, C: 2);
carry!(A: 0, B: 1, C: 2, D: 3);

/// A tensor of which a carry is made, whose number of dims is not in its type.
pub(crate) trait Stored {
    /// Its number of dims.
    fn dims(&self) -> usize;

    /// The tensor, whose number of dims `D` is.
    fn into_tensor<const D: usize>(self) -> Tensor<D>;
}

/// Makes a carry of what [`Carry::map`] has handed out: the numbers of parts, and the tensors.
///
/// # Errors
///
/// When it is not read as it was mapped; `what` tells which one it is.
pub(crate) fn read<C: Carry>(
    counts: Vec<usize>,
    tensors: Vec<impl Stored>,
    what: impl FnOnce() -> String,
) -> Result<C> {
    let (counts, tensors) = (counts.into_iter(), tensors.into_iter());
    let mut reader = StoredReader { counts, tensors, dims: None, missing: false };
    let carry = epl_comm::catch(|| C::read(&mut reader))?;
    if reader.tensors.next().is_none() && !reader.missing && reader.dims.is_none() {
        return Ok(carry);
    }
    let (what, dims) = (what(), reader.dims);
    let dims =
        dims.map(|(asked, found)| format!(": a tensor of {asked} dims was asked for where one of {found} comes"));
    Err(Error::invalid(format!(
        "{what} is not read as it was mapped{}; read its tensors in the order in which `map` hands them out, or write both \
         with `carry!`",
        dims.unwrap_or_default()
    )))
}

struct StoredReader<T> {
    counts: std::vec::IntoIter<usize>,
    tensors: std::vec::IntoIter<T>,
    /// The first tensor that did not fit: how many dims were asked for, and how many it has.
    dims: Option<(usize, usize)>,
    /// Whether more was asked for than there is.
    missing: bool,
}

impl<T: Stored> CarryReader for StoredReader<T> {
    fn float<const D: usize>(&mut self) -> Tensor<D> {
        match self.tensors.next() {
            Some(tensor) if tensor.dims() == D => return tensor.into_tensor(),
            Some(tensor) => _ = self.dims.get_or_insert((D, tensor.dims())),
            None => self.missing = true,
        }
        Tensor::empty([0; D], &Device::default())
    }

    fn count(&mut self) -> usize {
        self.counts.next().unwrap_or_else(|| {
            self.missing = true;
            0
        })
    }
}
