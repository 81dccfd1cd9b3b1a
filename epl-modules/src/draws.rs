//! Which random numbers a layer draws for the elements of its tensors: those of the elements' samples.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use epl_core::offload::is_host;
use epl_core::{Context, Place};

use crate::host;
use crate::invalid::refuse;
use crate::random::{Noise, Row};

/// A layer as one that draws.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    what: &'static str,
    context: Context,
    key: u64,
}

impl Draws {
    /// A layer of this kind at a place.
    pub(crate) fn new(what: &'static str, place: &Place) -> Self {
        Self { what, context: place.context().clone(), key: place.layer_key(what) }
    }

    /// The random numbers of the next call, and the samples of the micro-batch; `None` outside training.
    pub(crate) fn next_call(&self) -> Option<(Noise, Arc<[u64]>)> {
        self.context.is_training().then(|| (Noise::next_call(&self.context, self.key), self.context.samples()))
    }

    /// The numbers of the next call for the elements of a tensor, whose first index along `dim` is `offset` in the whole
    /// tensor; `None` outside training. Of its dims at least the first is given.
    pub(crate) fn next_elements(&self, dims: &[usize], dim: usize, offset: usize) -> Option<Elements> {
        self.next_elements_of_parts(dims, 1, (dim, offset))
    }

    /// The same of a tensor that has several rows of each sample, one after the other: so many.
    pub(crate) fn next_elements_of_parts(
        &self,
        dims: &[usize],
        parts: usize,
        (dim, offset): (usize, usize),
    ) -> Option<Elements> {
        let (noise, samples) = self.next_call()?;
        self.check_rows(dims[0], samples.len() * parts);
        Some(Elements { rows: Rows::Samples { noise, samples, parts }, dim, offset })
    }

    /// Refuses another number of rows than there are samples.
    pub(crate) fn check_rows(&self, rows: usize, samples: usize) {
        if rows != samples {
            refuse(format!(
                "{} got {rows} rows, but the micro-batch has {samples} samples: dim 0 of its input must be the batch; give \
                 the rows of a sample a dim of their own",
                self.what
            ));
        }
    }
}

/// The random numbers of the elements of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct Elements {
    rows: Rows,
    /// The dim of which the tensor is a slice, and where the slice begins.
    dim: usize,
    offset: usize,
}

/// How the rows along the last dim are named.
#[derive(Clone, Debug)]
enum Rows {
    /// By the sample and its part, then by the coordinates up to the last one.
    Samples {
        noise: Noise,
        samples: Arc<[u64]>,
        /// How many there are of a sample along dim 0.
        parts: usize,
    },
    /// One after the other.
    Listed(Arc<[Row]>),
    /// One after the other, as numbers on a device. Shape `[rows]`.
    OnDevice(Box<Tensor<1, Int>>),
}

impl Elements {
    /// Of a whole tensor of these samples.
    #[cfg(test)]
    pub(crate) fn of_samples(noise: Noise, samples: Arc<[u64]>) -> Self {
        Self { rows: Rows::Samples { noise, samples, parts: 1 }, dim: 0, offset: 0 }
    }

    /// Of a tensor of D dims with these rows along the last one, in which its first element has number `offset`. The rows are
    /// [numbers](Row::to_number); on a device they stay there.
    pub(crate) fn listed<const D: usize>(rows: Tensor<1, Int>, offset: usize) -> Self {
        let rows = match is_host(&rows.device()) {
            true => Rows::Listed(rows.into_data().iter::<i64>().map(Row::from_number).collect()),
            false => Rows::OnDevice(Box::new(rows)),
        };
        Self { rows, dim: D - 1, offset }
    }

    /// The rows of a tensor of this shape along the last dim, as [numbers](Row::to_number) on a device.
    ///
    /// # Shapes
    ///
    /// - output: `[rows]`
    pub(crate) fn names<const D: usize>(&self, shape: [usize; D], device: &Device) -> Tensor<1, Int> {
        if let Rows::OnDevice(names) = &self.rows {
            return Tensor::clone(names);
        }
        let count = shape.iter().product::<usize>() / row_length(shape).max(1);
        let names: Vec<i64> = (0..count).map(|row| self.row(shape, row).to_number()).collect();
        Tensor::from_data(TensorData::new(names, [count]), (device, DType::I64))
    }

    /// The random numbers of row `row`, of all rows along the last dim of a tensor of this shape.
    pub(crate) fn row<const D: usize>(&self, shape: [usize; D], row: usize) -> Row {
        let (noise, samples, parts) = match &self.rows {
            Rows::Samples { noise, samples, parts } => (noise, samples, *parts),
            Rows::Listed(rows) => return rows[row],
            Rows::OnDevice(_) => unreachable!("elements in host memory have their rows there"),
        };
        let inside: usize = shape[1..D.max(2) - 1].iter().product();
        let outside = row / inside;
        let mut numbers = noise.sample(samples[outside / parts]);
        if parts > 1 {
            numbers = numbers.at(outside % parts);
        }
        let (mut rest, mut below) = (row % inside, inside);
        for (dim, extent) in shape.iter().enumerate().take(D.max(2) - 1).skip(1) {
            below /= extent;
            let first = if dim == self.dim { self.offset } else { 0 };
            numbers = numbers.at(first + rest / below);
            rest %= below;
        }
        numbers
    }

    /// The number of a row's first element.
    pub(crate) fn first<const D: usize>(&self) -> usize {
        if D > 1 && self.dim == D - 1 { self.offset } else { 0 }
    }

    /// `number(row, element)` of every element.
    pub(crate) fn tensor<const D: usize>(
        &self,
        shape: [usize; D],
        (device, dtype): (&Device, DType),
        number: impl Fn(Row, usize) -> f64 + Sync,
    ) -> Tensor<D> {
        let length = row_length(shape);
        let (rows, first) = (host::rows_a_task(length), self.first::<D>());
        let mut values = vec![0.0; shape.iter().product()];
        host::for_blocks(&mut values, (rows * length).max(1), |block, values| {
            for (index, values) in values.chunks_exact_mut(length).enumerate() {
                let row = self.row(shape, block * rows + index);
                values.iter_mut().enumerate().for_each(|(element, value)| *value = number(row, first + element));
            }
        });
        Tensor::from_data(TensorData::new(values, shape), (device, dtype))
    }
}

/// The elements that one row of numbers is for: those along the last dim, where it is not the samples'.
pub(crate) fn row_length<const D: usize>(shape: [usize; D]) -> usize {
    if D > 1 { shape[D - 1] } else { 1 }
}
