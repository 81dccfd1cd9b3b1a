//! Sums of squares, scaling and adding, in place.

use core::ops::Range;

use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::array::FlatArray;
use super::lane::{Lane, each_window, folder_of, window_elements, windows};
use super::number::{BLOCK, Number};
use super::values::FlatValues;
use crate::error::{Error, Result};

impl FlatArray {
    /// The sum of squares of a range in f64, in a fixed order, which neither threads nor windows change.
    ///
    /// # Errors
    ///
    /// When the range does not fit, the elements are of 16 bits, or the file cannot be read.
    pub fn sum_of_squares(&self, range: Range<usize>) -> Result<f64> {
        self.range(range.clone())?;
        match self.dtype {
            DType::F64 => squares::<f64>(self, range),
            DType::F32 => squares::<f32>(self, range),
            _ => Err(self.only_stored("summed")),
        }
    }

    /// Multiplies a range by a number, which is rounded to the element type first, as Flex does.
    ///
    /// # Errors
    ///
    /// As [`sum_of_squares`](Self::sum_of_squares), or when the file cannot be written.
    pub fn scale(&mut self, range: Range<usize>, factor: f64) -> Result<()> {
        self.range(range.clone())?;
        match self.dtype {
            DType::F64 => change::<f64>(self, range, |_, own| own.iter_mut().for_each(|own| *own *= factor)),
            DType::F32 => change::<f32>(self, range, |_, own| own.iter_mut().for_each(|own| *own *= factor as f32)),
            _ => Err(self.only_stored("scaled")),
        }
    }

    /// Adds a tensor's elements to the range that begins at `start`.
    ///
    /// # Errors
    ///
    /// When the tensor has another element type or does not fit, and as [`scale`](Self::scale).
    pub fn add(&mut self, start: usize, tensor: &Tensor<1>) -> Result<()> {
        let values = FlatValues::of(tensor)?;
        values.expect_dtype("a tensor", self.dtype)?;
        let range = start..start.saturating_add(values.len());
        self.range(range.clone())?;
        match self.dtype {
            DType::F64 => add::<f64>(self, range, values.slice()),
            DType::F32 => add::<f32>(self, range, values.slice()),
            _ => Err(self.only_stored("added to")),
        }
    }

    pub(super) fn only_stored(&self, what: &str) -> Error {
        Error::invalid(format!(
            "an array of {} is stored and read, and cannot be {what}; keep it in f32 or f64",
            self.dtype.name()
        ))
    }
}

fn squares<E: Number>(array: &FlatArray, range: Range<usize>) -> Result<f64> {
    let folder = folder_of(&[array])?;
    let _turn = folder.as_ref().map(|folder| folder.turn());
    let windows = windows(range, window_elements(&[array], folder.as_ref()));
    let mut partial = Vec::new();
    each_window(&mut Lane::<&[E]>::read(array), &windows, |lane, window| {
        partial.extend(squares_of_blocks(lane.slice(window)));
        Ok(())
    })?;
    Ok(partial.into_iter().sum())
}

/// The sum of squares in f64, in a fixed order: Flex's own sum follows rayon's stealing from 4 Mi elements on.
pub(crate) fn sum_of_squares<E: Number>(values: &[E]) -> f64 {
    squares_of_blocks(values).into_iter().sum()
}

/// The sum of squares of each block.
fn squares_of_blocks<E: Number>(values: &[E]) -> Vec<f64> {
    match values.len() {
        // Not worth waking another thread.
        0..=BLOCK => vec![squares_of_block(values)],
        _ => values.par_chunks(BLOCK).map(squares_of_block).collect(),
    }
}

fn squares_of_block<E: Number>(values: &[E]) -> f64 {
    // Eight independent sums, so that the additions are vectorised; their order is part of the result.
    let mut lanes = [0.0_f64; 8];
    let blocks = values.chunks_exact(8);
    let rest = blocks.remainder();
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane += value.wide() * value.wide();
        }
    }
    let rest: f64 = rest.iter().map(|value| value.wide() * value.wide()).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Runs `work` on the blocks of a range, each with the place of its first element in it.
fn change<E: Number>(array: &mut FlatArray, range: Range<usize>, work: impl Fn(usize, &mut [E]) + Sync) -> Result<()> {
    let folder = folder_of(&[array])?;
    let _turn = folder.as_ref().map(|folder| folder.turn());
    let start = range.start;
    let windows = windows(range, window_elements(&[array], folder.as_ref()));
    each_window(&mut Lane::<&mut [E]>::change(array), &windows, |lane, window| {
        let values = lane.slice_mut(window);
        match values.len() {
            0..=BLOCK => work(window.start - start, values),
            _ => {
                let blocks = values.par_chunks_mut(BLOCK).enumerate();
                blocks.for_each(|(index, block)| work(window.start - start + index * BLOCK, block));
            }
        }
        Ok(())
    })
}

fn add<E: Number>(array: &mut FlatArray, range: Range<usize>, values: &[E]) -> Result<()> {
    change::<E>(array, range, |at, own| {
        for (own, value) in own.iter_mut().zip(&values[at..]) {
            *own = *own + *value;
        }
    })
}
