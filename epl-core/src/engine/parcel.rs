//! A carry, or its gradients, taken apart for a link between two stages.
//!
//! ```text
//! header   [ kind, micro-batch, part ┆ counts ┆ one line a tensor: type, dims ]
//! tensors  each in a row, in the carry's order; one that is not there has the type 0
//! ```

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, Tensor};

use crate::carry::{Carry, CarryMapper, CarryReader};
use crate::error::{Error, Result};
use crate::graph::CarryGradients;

/// What a parcel is: for the forward or the backward of a micro-batch in a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Label {
    pub backward: bool,
    pub micro_batch: usize,
    /// The part that it enters.
    pub part: usize,
}

/// Tensors without their numbers of dims, and how to put them together again.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub label: Label,
    /// The numbers of parts where they may vary.
    counts: Vec<usize>,
    tensors: Vec<Option<Flat>>,
}

#[derive(Debug)]
struct Flat {
    shape: Vec<usize>,
    values: Tensor<1>,
}

/// The types that travel; a type's number in a header is its place, from 1.
const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

impl Parcel {
    /// A carry on its way to the next part.
    pub fn of_carry<C: Carry>(label: Label, carry: C) -> Self {
        let mut parcel = Self { label, counts: Vec::new(), tensors: Vec::new() };
        let _ = carry.map(&mut parcel);
        parcel
    }

    /// The gradients of a carry on their way to the part before.
    pub fn of_gradients(label: Label, gradients: CarryGradients) -> Self {
        let flat = |tensor: DispatchTensor| Flat::of(Tensor::<1>::from_dispatch(tensor));
        let tensors = gradients.into_iter().map(|gradient| gradient.map(flat)).collect();
        Self { label, counts: Vec::new(), tensors }
    }

    /// The carry.
    pub fn into_carry<C: Carry>(self) -> Result<C> {
        let label = self.label;
        let mut reader =
            Reader { counts: self.counts.into_iter(), tensors: self.tensors.into_iter(), dims: None, missing: false };
        let read = epl_comm::catch(|| C::read(&mut reader))?;
        match (reader.tensors.next().is_some() || reader.missing, reader.dims) {
            (false, None) => Ok(read),
            (_, dims) => Err(Error::invalid(format!(
                "the carry that enters part {} is not read as it was mapped{}; read its tensors in the order in which \
                 `map` hands them out, or write both with `carry!`",
                label.part,
                dims.map(|(wanted, found)| format!(
                    ": a tensor of {wanted} dims was asked for where one of {found} comes"
                ))
                .unwrap_or_default()
            ))),
        }
    }

    /// The gradients, each in a row.
    pub fn into_gradients(self) -> CarryGradients {
        self.tensors.into_iter().map(|tensor| tensor.map(|flat| flat.values.into_dispatch())).collect()
    }

    /// The tensors that travel.
    pub fn into_values(self) -> impl Iterator<Item = Tensor<1>> {
        self.tensors.into_iter().flatten().map(|flat| flat.values)
    }

    /// All but the values.
    pub fn header(&self) -> Result<Vec<i64>> {
        let Label { backward, micro_batch, part } = self.label;
        let mut header = vec![usize::from(backward), micro_batch, part, self.counts.len()];
        header.extend(&self.counts);
        header.push(self.tensors.len());
        for tensor in &self.tensors {
            let Some(Flat { shape, values }) = tensor else {
                header.push(0);
                continue;
            };
            let dtype = values.dtype();
            let Some(place) = DTYPES.iter().position(|other| *other == dtype) else {
                return Err(Error::invalid(format!(
                    "a carry has a tensor of {}, which does not travel between stages; cast it to a float type of 16, \
                     32 or 64 bits",
                    dtype.name()
                )));
            };
            header.extend([place + 1, shape.len()]);
            header.extend(shape);
        }
        Ok(header.into_iter().map(|number| number as i64).collect())
    }

    /// The parcel with this header, whose values `receive` gives, one after the other, of this many elements and this
    /// type.
    pub fn from_header(header: &[i64], mut receive: impl FnMut(usize, DType) -> Result<Tensor<1>>) -> Result<Self> {
        let mut numbers = header.iter().map(|number| *number as usize);
        let mut next = || numbers.next().ok_or_else(|| Error::invalid("a parcel's header ends too early"));
        let label = Label { backward: next()? > 0, micro_batch: next()?, part: next()? };
        let counts = (0..next()?).map(|_| next()).collect::<Result<_>>()?;
        let mut tensors = Vec::new();
        for _ in 0..next()? {
            let tensor = match next()? {
                0 => None,
                dtype => {
                    let shape = (0..next()?).map(|_| next()).collect::<Result<Vec<usize>>>()?;
                    let dtype = DTYPES.get(dtype - 1).ok_or_else(|| Error::invalid("a parcel of an unknown type"))?;
                    Some(Flat { values: receive(shape.iter().product(), *dtype)?, shape })
                }
            };
            tensors.push(tensor);
        }
        Ok(Self { label, counts, tensors })
    }
}

impl Flat {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        let shape = tensor.shape();
        let elements = shape.num_elements();
        let values = match elements {
            // In a reshape, 0 stands for the old extent.
            0 => Tensor::empty([0], (&tensor.device(), tensor.dtype())),
            _ => tensor.reshape([elements]),
        };
        Self { shape: shape.to_vec(), values }
    }
}

impl CarryMapper for Parcel {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        // A tensor that only passes through is a tracked leaf; detached, it would still be one.
        let values = if tensor.is_autodiff() { tensor.inner() } else { tensor };
        self.tensors.push(Some(Flat::of(values.clone())));
        values
    }

    fn count(&mut self, parts: usize) {
        self.counts.push(parts);
    }
}

struct Reader {
    counts: std::vec::IntoIter<usize>,
    tensors: std::vec::IntoIter<Option<Flat>>,
    /// The first tensor that did not fit: how many dims were asked for, and how many it has.
    dims: Option<(usize, usize)>,
    /// Whether more was asked for than there is.
    missing: bool,
}

impl CarryReader for Reader {
    fn float<const D: usize>(&mut self) -> Tensor<D> {
        let Some(Flat { shape, values }) = self.tensors.next().flatten() else {
            self.missing = true;
            return Tensor::empty([0; D], &Device::default());
        };
        match <[usize; D]>::try_from(shape.as_slice()) {
            Ok(shape) if shape.contains(&0) => Tensor::empty(shape, (&values.device(), values.dtype())),
            Ok(shape) => values.reshape(shape),
            Err(_) => {
                self.dims.get_or_insert((D, shape.len()));
                Tensor::empty([0; D], &values.device())
            }
        }
    }

    fn count(&mut self) -> usize {
        self.counts.next().unwrap_or_else(|| {
            self.missing = true;
            0
        })
    }
}
