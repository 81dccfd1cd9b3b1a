//! What the links of a chain hand on, each in a type of its own.
//!
//! ```text
//! link 0 ──▶ Tensor<4> ──▶ counts, tensors ──▶ Tensor<4> ──▶ link 1 ──▶ Tensor<2> ──▶ counts, tensors ──▶ Tensor<2> ──▶ loss
//!                          ChainCarry                                                 ChainCarry
//! ```
//!
//! A model has one type of carry, and each link of a chain may have another: so between two links the tensors lie beside their
//! numbers of dims, and the link that takes them knows of what type they are.

use core::fmt;
use core::marker::PhantomData;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use crate::error::Result;
use crate::model::carry::{self, Carry, CarryMapper, CarryReader, Stored};

/// What a link of a [`Chain`](crate::Chain) hands to the next one, whatever its type is; `C` is that of what the last one
/// returns.
pub struct ChainCarry<C> {
    handed: Handed,
    last: PhantomData<fn() -> C>,
}

/// A carry without its type: the numbers of parts where they may vary, and the tensors.
#[derive(Clone, Default)]
pub(super) struct Handed {
    counts: Vec<usize>,
    tensors: Vec<HandedTensor>,
}

/// A tensor, and its number of dims.
#[derive(Clone)]
struct HandedTensor(usize, DispatchTensor);

impl<C> ChainCarry<C> {
    pub(super) fn new(handed: Handed) -> Self {
        Self { handed, last: PhantomData }
    }

    pub(super) fn handed(self) -> Handed {
        self.handed
    }
}

impl<C> Clone for ChainCarry<C> {
    fn clone(&self) -> Self {
        Self::new(self.handed.clone())
    }
}

/// The shapes of its tensors.
impl<C> fmt::Debug for ChainCarry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = |HandedTensor(_, tensor): &HandedTensor| Tensor::<1>::from_dispatch(tensor.clone()).shape();
        f.debug_tuple("ChainCarry").field(&self.handed.tensors.iter().map(shape).collect::<Vec<_>>()).finish()
    }
}

impl Handed {
    /// Takes its type from a carry.
    pub(super) fn of<C: Carry>(carry: C) -> Self {
        let mut handed = Self::default();
        let _ = carry.map(&mut handed);
        handed
    }

    /// Gives it its type back.
    ///
    /// # Errors
    ///
    /// When it has another.
    pub(super) fn typed<C: Carry>(self) -> Result<C> {
        carry::read(self.counts, self.tensors, || {
            format!("what a chain hands on as a `{}`", core::any::type_name::<C>())
        })
    }
}

impl CarryMapper for Handed {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if !(1..=MOST_DIMS).contains(&D) {
            epl_comm::unwind(epl_comm::Error::invalid(format!(
                "a link of a chain hands on a tensor of {D} dims, and tensors of 1 to {MOST_DIMS} are handed on; reshape it"
            )));
        }
        self.tensors.push(HandedTensor(D, tensor.clone().into_dispatch()));
        tensor
    }

    fn count(&mut self, parts: usize) {
        self.counts.push(parts);
    }
}

impl Stored for HandedTensor {
    fn dims(&self) -> usize {
        self.0
    }

    fn into_tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_dispatch(self.1)
    }
}

/// Of a tensor that is handed on.
const MOST_DIMS: usize = 8;

/// Evaluates an expression with the constant `$number` of dims that is known when the program runs.
macro_rules! with_dims {
    ($dims:expr, $number:ident => $value:expr) => {
        with_dims!($dims, $number => $value; 1, 2, 3, 4, 5, 6, 7, 8)
    };
    ($dims:expr, $number:ident => $value:expr; $($known:literal),+) => {
        match $dims {
            $($known => {
                const $number: usize = $known;
                $value
            })+
            other => epl_comm::unwind(epl_comm::Error::invalid(format!(
                "a chain is handed a tensor of {other} dims, and tensors of 1 to {MOST_DIMS} are handed on"
            ))),
        }
    };
}

impl<C: Carry> Carry for ChainCarry<C> {
    type Output = C;

    /// Also the numbers of counts and tensors, and each tensor's number of dims, which whoever reads it does not know.
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        let Handed { counts, tensors } = self.handed;
        mapper.count(counts.len());
        counts.iter().for_each(|count| mapper.count(*count));
        mapper.count(tensors.len());
        let tensors = tensors.into_iter().map(|HandedTensor(dims, tensor)| {
            mapper.count(dims);
            let mapped = with_dims!(dims, D => mapper.float(Tensor::<D>::from_dispatch(tensor)).into_dispatch());
            HandedTensor(dims, mapped)
        });
        let tensors = tensors.collect();
        Self::new(Handed { counts, tensors })
    }

    fn read<R: CarryReader>(reader: &mut R) -> Self {
        let counts = (0..reader.count()).map(|_| reader.count()).collect();
        let tensors = (0..reader.count()).map(|_| {
            let dims = reader.count();
            HandedTensor(dims, with_dims!(dims, D => reader.float::<D>().into_dispatch()))
        });
        let tensors = tensors.collect();
        Self::new(Handed { counts, tensors })
    }

    fn into_output(self) -> Result<C> {
        self.handed.typed()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Adds one to each tensor, and notes what it is told.
    #[derive(Default)]
    struct Noting(Vec<usize>);

    impl CarryMapper for Noting {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor + 1.0
        }

        fn count(&mut self, parts: usize) {
            self.0.push(parts);
        }
    }

    #[test]
    fn a_carry_of_any_type_is_handed_on_and_mapped() -> Result<()> {
        let device = Device::flex();
        let (images, rows) = (Tensor::<4>::ones([2, 1, 3, 3], &device), Tensor::<2>::ones([2, 5], &device));
        let handed = ChainCarry::<()>::new(Handed::of((images, Some(rows), Vec::<Tensor<1>>::new())));
        assert!(format!("{handed:?}").contains("[2, 1, 3, 3]"), "{handed:?}");
        let mut noting = Noting::default();
        let mapped = handed.map(&mut noting);
        assert_eq!(noting.0, [2, 1, 0, 2, 4, 2], "two counts, two tensors of four and two dims");
        let (images, rows, none) = mapped.handed().typed::<(Tensor<4>, Option<Tensor<2>>, Vec<Tensor<1>>)>()?;
        let rows = rows.expect("there are rows");
        assert_eq!((images.dims(), rows.dims(), none.len()), ([2, 1, 3, 3], [2, 5], 0));
        assert_eq!(images.sum().into_scalar::<f32>() + rows.sum().into_scalar::<f32>(), 36.0 + 20.0);
        Ok(())
    }

    #[test]
    fn another_type_is_refused() {
        let carry = || ChainCarry::<Tensor<2>>::new(Handed::of(Tensor::<4>::ones([1, 1, 1, 1], &Device::flex())));
        let error = carry().into_output().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("a tensor of 2 dims was asked for where one of 4 comes"), "{error}");
        assert!(carry().handed().typed::<()>().is_err() && carry().handed().typed::<(Tensor<4>, Tensor<4>)>().is_err());
    }
}
