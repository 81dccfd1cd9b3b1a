//! Fills a laid out model from stored tensors.

use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};

use super::map::AssignMap;
use super::resolve::{AssignedPart, resolve};
use super::slice::repeat;
use super::source::WholeTensors;
use crate::error::{Error, Result};
use crate::params::walk::{self, At, Change};
use crate::params::{ParamRecord, with_values};

/// Fills a model as an [`AssignMap`] says: every rank reads of each tensor the slice that its records say it holds, one
/// parameter after another; of what another stage holds, nothing.
///
/// Values are cast to the type of the parameter. The parameters have values already, which those keep that the map leaves
/// out; their identifiers stay. [`LaidOutModel::assign`](crate::launch::LaidOutModel::assign) calls it.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use burn::{module::{Module, Param}, nn::Initializer, tensor::{Tensor, TensorData}};
/// # use epl_core::{Axis, WithLoss, tensors::{AssignMap, assign}, testing};
/// # #[derive(Module, Debug)]
/// # struct Scale { features: Param<Tensor<1>> }
/// # let loss = |net: &Scale, rows: &Tensor<1>| (net.features.val().sum() * rows.clone()).mean();
/// // `features` is divided over two tensor ranks; the file has another name for it.
/// let stored = BTreeMap::from([("scale".to_string(), TensorData::from([1.0f32, 2.0, 3.0, 4.0]))]);
/// let map = AssignMap::new().with("scale", "features");
/// let held = testing::run((1, 2, 1), |epl| {
///     let scale = epl.build(|at| {
///         WithLoss::new(Scale { features: at.split_param([4], &[(Axis::Tensor, 0)], Initializer::Ones) }, loss)
///     })?;
///     let records = scale.plan().records().to_vec();
///     Ok(assign(scale.into_inner(), &records, &stored, &map)?.model.features.val().into_data().to_vec::<f32>().unwrap())
/// });
/// assert_eq!(held, [[1.0, 2.0], [3.0, 4.0]]);
/// ```
///
/// # Errors
///
/// [`Error::Invalid`] with all that is missing, unused or of another shape, before anything is read; what reading gives.
///
/// # Panics
///
/// When the records are those of another model: not one for each of its parameters, in its order.
pub fn assign<M: Module>(model: M, records: &[ParamRecord], stored: &impl WholeTensors, map: &AssignMap) -> Result<M> {
    let pieces = resolve(records, stored, map)?;
    walk::change(model, records, &mut AssignFiller { stored, pieces })
}

struct AssignFiller<'a, S> {
    stored: &'a S,
    /// Of each parameter.
    pieces: Vec<Vec<AssignedPart>>,
}

impl<S: WholeTensors> AssignFiller<'_, S> {
    /// The values that this rank holds of a parameter, with its pieces laid over what it has.
    fn filled<const D: usize>(
        &self,
        record: &ParamRecord,
        pieces: &[AssignedPart],
        old: Tensor<D>,
    ) -> Result<Tensor<D>> {
        let (device, held) = (old.device(), record.ranges());
        let mut values = old;
        for piece in pieces {
            let Some(common) = common(&held, &piece.put) else { continue };
            let data = read(self.stored, piece, &common)?.convert_dtype(record.dtype);
            let part = Tensor::<D>::from_data(data, (&device, record.dtype));
            values = match common == held {
                true => part,
                false => values.slice_assign(inside::<D>(&common, &held), part),
            };
        }
        Ok(values)
    }
}

/// What two ranges of every dim have in common, if anything.
fn common(a: &[Range<usize>], b: &[Range<usize>]) -> Option<Vec<Range<usize>>> {
    let both = |(a, b): (&Range<usize>, &Range<usize>)| a.start.max(b.start)..a.end.min(b.end);
    let common: Vec<Range<usize>> = a.iter().zip(b).map(both).collect();
    common.iter().all(|range| range.start < range.end).then_some(common)
}

/// Ranges of the whole as ranges of what is held of it.
fn inside<const D: usize>(ranges: &[Range<usize>], held: &[Range<usize>]) -> [Range<usize>; D] {
    core::array::from_fn(|dim| ranges[dim].start - held[dim].start..ranges[dim].end - held[dim].start)
}

/// Some of a piece, by ranges of the whole parameter.
fn read(stored: &impl WholeTensors, piece: &AssignedPart, ranges: &[Range<usize>]) -> Result<TensorData> {
    let skipped = usize::from(piece.repeated);
    let moved = |((range, put), taken): ((&Range<usize>, &Range<usize>), &Range<usize>)| {
        range.start - put.start + taken.start..range.end - put.start + taken.start
    };
    let asked: Vec<Range<usize>> =
        ranges[skipped..].iter().zip(&piece.put[skipped..]).zip(&piece.taken).map(moved).collect();
    let data = stored.read(&piece.stored, &asked)?;
    Ok(if piece.repeated { repeat(&data, ranges[0].len()) } else { data })
}

impl<S: WholeTensors> Change for AssignFiller<'_, S> {
    type Error = Error;

    fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        let pieces = &self.pieces[at.number];
        if !at.record.held || pieces.is_empty() {
            return Ok(param);
        }
        let old = param.base();
        let old = if old.is_autodiff() { old.inner() } else { old };
        let values = self.filled(at.record, pieces, old)?;
        Ok(with_values(param, values))
    }
}
