//! A carry, or its gradients, taken apart for a link between two stages.
//!
//! ```text
//! header   [ kind, micro-batch, part ┆ counts ┆ one line a tensor: type, dims ]
//! tensors  each in a row, in the carry's order; one that is not there has the type 0
//! ```

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Tensor};

use crate::error::{Error, Result};
use crate::model::carry::{self, Carry, CarryMapper, Stored};
use crate::model::graph::CarryGradients;
use crate::topology::cluster::ParcelLabel;

/// Tensors without their numbers of dims, and how to put them together again.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub label: ParcelLabel,
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
    pub fn of_carry<C: Carry>(label: ParcelLabel, carry: C) -> Self {
        let mut parcel = Self { label, counts: Vec::new(), tensors: Vec::new() };
        let _ = carry.map(&mut parcel);
        parcel
    }

    /// The gradients of a carry on their way to the part before.
    pub fn of_gradients(label: ParcelLabel, gradients: CarryGradients) -> Self {
        let flat = |tensor: DispatchTensor| Flat::of(Tensor::<1>::from_dispatch(tensor));
        let tensors = gradients.into_iter().map(|gradient| gradient.map(flat)).collect();
        Self { label, counts: Vec::new(), tensors }
    }

    /// The carry.
    pub fn into_carry<C: Carry>(self) -> Result<C> {
        let (part, tensors): (usize, Vec<Flat>) = (self.label.part, self.tensors.into_iter().flatten().collect());
        carry::read(self.counts, tensors, || format!("the carry that enters part {part}"))
    }

    /// The gradients, each in a row.
    pub fn into_gradients(self) -> CarryGradients {
        self.tensors.into_iter().map(|tensor| tensor.map(|flat| flat.values.into_dispatch())).collect()
    }

    /// Refuses a parcel of which not every tensor has as many rows as the micro-batch, where rows are divided.
    pub fn check_rows(&self, rows: usize, own: usize, others: usize) -> Result<()> {
        let wrong = |flat: &&Flat| flat.shape.first() != Some(&rows);
        let Some(Flat { shape, .. }) = self.tensors.iter().flatten().find(wrong) else { return Ok(()) };
        Err(Error::invalid(format!(
            "the carry between a stage of {own} devices and one of {others} has a tensor of shape {shape:?}, and the \
             micro-batch has {rows} rows: between stages of different widths rows are gathered and divided anew, so the \
             first dim of every tensor counts them; give what is one for all rows, such as a sum, a row a sample, or give \
             both scopes as many devices"
        )))
    }

    /// Some of the rows.
    pub fn of_rows(&self, rows: &[usize]) -> Self {
        let pick = |flat: &Flat| Flat::of_rows(&[flat], rows.iter().map(|row| Some((0, *row))).collect());
        let tensors = self.tensors.iter().map(|tensor| tensor.as_ref().map(pick)).collect();
        Self { label: self.label, counts: self.counts.clone(), tensors }
    }

    /// One parcel of so many rows: those of several, each with the places that its rows take. Of gradients, rows that are
    /// nobody's are zero.
    ///
    /// # Errors
    ///
    /// When they are not alike but for the number of rows.
    pub fn join(pieces: Vec<(Self, Vec<usize>)>, rows: usize) -> Result<Self> {
        let (first, _) = pieces.first().expect("every member gets something from some member");
        let (label, counts) = (first.label, first.counts.clone());
        let len = pieces.iter().map(|(parcel, _)| parcel.tensors.len()).max().unwrap_or(0);
        if pieces.iter().any(|(parcel, _)| parcel.counts != counts) {
            let all: Vec<_> = pieces.iter().map(|(parcel, _)| &parcel.counts).collect();
            return Err(Error::invalid(format!(
                "the devices of a stage send carries with other numbers of parts: {all:?}; between stages of different \
                 widths let them depend on the model only"
            )));
        }
        let tensors = (0..len).map(|index| join(&pieces, index, rows)).collect::<Result<_>>()?;
        Ok(Self { label, counts, tensors })
    }

    /// The tensors that travel.
    pub fn into_values(self) -> impl Iterator<Item = Tensor<1>> {
        self.tensors.into_iter().flatten().map(|flat| flat.values)
    }

    /// All but the values.
    pub fn header(&self) -> Result<Vec<i64>> {
        let ParcelLabel { backward, micro_batch, part } = self.label;
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
        let label = ParcelLabel { backward: next()? > 0, micro_batch: next()?, part: next()? };
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

/// One tensor of the rows of several parcels; none where none has it.
fn join(pieces: &[(Parcel, Vec<usize>)], index: usize, rows: usize) -> Result<Option<Flat>> {
    let mut places = vec![None; rows];
    let mut flats: Vec<&Flat> = Vec::new();
    for (parcel, mine) in pieces {
        let Some(flat) = parcel.tensors.get(index).and_then(Option::as_ref) else { continue };
        mine.iter().enumerate().for_each(|(row, place)| places[*place] = Some((flats.len(), row)));
        flats.push(flat);
    }
    let Some(first) = flats.first() else { return Ok(None) };
    match flats.iter().find(|other| other.shape[1..] != first.shape[1..]) {
        None => Ok(Some(Flat::of_rows(&flats, places))),
        Some(other) => Err(Error::invalid(format!(
            "the devices of a stage send carries of shapes {:?} and {:?} to one of another width, which puts their rows \
             together: pad all rows of a step to one length, or give both scopes as many devices",
            first.shape, other.shape
        ))),
    }
}

impl Flat {
    /// Rows of several tensors, which are alike but for their numbers of rows: of which tensor, and where there. None is
    /// a row of zeros.
    fn of_rows(flats: &[&Flat], rows: Vec<Option<(usize, usize)>>) -> Self {
        let mut shape = flats[0].shape.clone();
        shape[0] = rows.len();
        let (device, dtype) = (flats[0].values.device(), flats[0].values.dtype());
        let row: usize = shape[1..].iter().product();
        // Rows that stand side by side travel side by side.
        let next = |a: &Option<(usize, usize)>, b: &Option<(usize, usize)>| match (a, b) {
            (Some((flat, row)), Some(after)) => (*flat, row + 1) == *after,
            (None, None) => true,
            _ => false,
        };
        let run = |run: &[Option<(usize, usize)>]| match run[0] {
            None => Tensor::zeros([run.len() * row], (&device, dtype)),
            Some((flat, start)) => flats[flat].values.clone().slice([start * row..(start + run.len()) * row]),
        };
        let mut parts: Vec<Tensor<1>> = match row {
            0 => Vec::new(),
            _ => rows.chunk_by(next).map(run).collect(),
        };
        let values = match parts.len() {
            0 => Tensor::empty([0], (&device, dtype)),
            1 => parts.remove(0),
            _ => Tensor::cat(parts, 0),
        };
        Self { shape, values }
    }

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

impl Stored for Flat {
    fn dims(&self) -> usize {
        self.shape.len()
    }

    fn into_tensor<const D: usize>(self) -> Tensor<D> {
        let Self { shape, values } = self;
        let dims: [usize; D] = core::array::from_fn(|dim| shape[dim]);
        match dims.contains(&0) {
            true => Tensor::empty(dims, (&values.device(), values.dtype())),
            false => values.reshape(dims),
        }
    }
}
