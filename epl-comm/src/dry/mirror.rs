//! The result of a collective whose other members bring what this one brings.

use burn::tensor::kind::{Basic, Numeric};
use burn::tensor::{Float, Int, Tensor};

use crate::buffer::{Buffer, with_kind};
use crate::operation::{Call, Operation, ReduceOp};

/// This member's result. `size`: how many members there are.
pub(super) fn result(call: &Call, buffer: Buffer, size: usize, me: usize) -> Buffer {
    if !gets_result(call.operation, me) {
        return buffer;
    }
    let part = with_kind!(buffer.dtype(), K => Buffer::from_tensor::<1, K>(moved(call, buffer.into_flat(), me)));
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
    let piece = |x: Tensor<1, K>| x.slice([call.piece_for(me)]);
    match call.operation {
        Operation::ReduceScatter(_) | Operation::Scatter { .. } => piece(x),
        Operation::AllGather | Operation::Gather { .. } => from_all(call, &x),
        Operation::AllToAll => from_all(call, &piece(x)),
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

/// From every member as much as the call says: `own` where that is as much, zeros elsewhere.
fn from_all<K: Basic>(call: &Call, own: &Tensor<1, K>) -> Tensor<1, K> {
    let piece = |len: usize| match len == own.dims()[0] {
        true => own.clone(),
        false => Tensor::zeros([len], (&own.device(), own.dtype())),
    };
    Tensor::cat(call.received().iter().map(piece).collect(), 0)
}
