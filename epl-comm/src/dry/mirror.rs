//! The result of a collective whose other members bring what this one brings.

use burn::tensor::kind::{Basic, Numeric};
use burn::tensor::{Bool, Float, Int, Tensor};

use crate::buffer::Buffer;
use crate::operation::{Call, Operation, ReduceOp};

/// This member's result. `size`: how many members there are.
pub(super) fn result(call: &Call, buffer: Buffer, size: usize, me: usize) -> Buffer {
    if !gets_result(call.operation, me) {
        return buffer;
    }
    let part = match buffer.dtype() {
        dtype if dtype.is_float() => Buffer::from_tensor::<1, Float>(moved(call, buffer.into_flat(), me)),
        dtype if dtype.is_bool() => Buffer::from_tensor::<1, Bool>(moved(call, buffer.into_flat(), me)),
        _ => Buffer::from_tensor::<1, Int>(moved(call, buffer.into_flat(), me)),
    };
    match call.operation.reduction() {
        None => part,
        Some(op) if part.dtype().is_float() => Buffer::from_tensor::<1, Float>(reduced(part.into_flat(), op, size)),
        Some(op) => Buffer::from_tensor::<1, Int>(reduced(part.into_flat(), op, size)),
    }
}

/// Whether a member gets something else than its own tensor back.
fn gets_result(operation: Operation, me: usize) -> bool {
    match operation {
        Operation::Reduce { root, .. } | Operation::Gather { root } => root == me,
        _ => true,
    }
}

/// What this member gets if nothing is reduced.
fn moved<K: Basic>(call: &Call, x: Tensor<1, K>, me: usize) -> Tensor<1, K> {
    match call.operation {
        Operation::ReduceScatter(_) | Operation::Scatter { .. } => {
            let before = call.send.before(me);
            columns(&x, call.rows, before, call.send[me]).flatten(0, 1)
        }
        Operation::AllGather | Operation::Gather { .. } => {
            let own = columns(&x, call.rows, 0, call.receive[me]);
            side_by_side(call, &own)
        }
        Operation::AllToAll => {
            let before = call.send.before(me);
            let own = x.slice([before..before + call.send[me]]);
            let width = call.send[me] / call.rows.max(1);
            side_by_side(call, &matrix(own, call.rows, width))
        }
        _ => x,
    }
}

fn reduced<K: Numeric>(x: Tensor<1, K>, op: ReduceOp, size: usize) -> Tensor<1, K> {
    match op {
        ReduceOp::Sum => x * size as i64,
        ReduceOp::Product => (1..size).fold(x.clone(), |product, _| product * x.clone()),
        ReduceOp::Mean | ReduceOp::Min | ReduceOp::Max => x,
    }
}

/// Some columns of a flat row-major matrix.
fn columns<K: Basic>(x: &Tensor<1, K>, rows: usize, start: usize, width: usize) -> Tensor<2, K> {
    let all = x.shape().num_elements() / rows.max(1);
    matrix(x.clone(), rows, all).slice([0..rows, start..start + width])
}

fn matrix<K: Basic>(x: Tensor<1, K>, rows: usize, columns: usize) -> Tensor<2, K> {
    match rows * columns {
        // In a reshape, 0 stands for the old extent.
        0 => Tensor::empty([rows, columns], (&x.device(), x.dtype())),
        _ => x.reshape([rows, columns]),
    }
}

/// From every member a part as wide as the call says: `own` where that is as wide, zeros elsewhere.
fn side_by_side<K: Basic>(call: &Call, own: &Tensor<2, K>) -> Tensor<1, K> {
    let part = |width: usize| match width == own.dims()[1] {
        true => own.clone(),
        false => Tensor::zeros([call.rows, width], (&own.device(), own.dtype())),
    };
    Tensor::cat(call.receive.iter().map(part).collect(), 1).flatten(0, 1)
}
