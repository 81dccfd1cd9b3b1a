//! Moves rows from the rank of a token to the rank of its expert, and back.
//!
//! ```text
//!  x [tokens, d]
//!    │ select, by expert               ▲ weighted, added to the token's row
//!    ▼                                 │
//!  rows, by destination rank         rows, as they were sent
//!    │ all-to-all                      ▲ all-to-all, with the counts exchanged
//!    ▼                                 │
//!  rows, by source rank ──── experts ──┘
//! ```
//!
//! Every rank takes part in every exchange, forward and backward, also when it sends or receives no row: the
//! number and order of the collectives depend on the layout alone.

use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use epl_comm::differentiable::all_to_all_uneven;
use epl_comm::{ProcessGroup, custom_vjp, unwind};
use epl_core::Context;
use epl_core::model::precision::in_wide;
use epl_core::offload::is_host;

use super::arrangement::Arrangement;
use super::router::Routed;
use super::routing::{Assignment, Routing};
use crate::embedding::rows_at;
use crate::host::{self, HostFloat, Real, View, host_float};
use crate::random::Row;

/// The way of the rows of one routing decision.
pub(super) struct Dispatch {
    group: ProcessGroup,
    send: Vec<usize>,
    receive: Vec<usize>,
    pub arrangement: Arrangement,
}

impl Dispatch {
    /// Tells every rank of the expert group how many rows it gets for each of its experts. Collective.
    pub(super) fn new(routing: &Routing, experts: usize, group: &ProcessGroup) -> Self {
        let local = experts / group.size();
        let counts = routing.counts(experts);
        let received = exchange_counts(&counts, group);
        let sums = |counts: &[usize]| counts.chunks_exact(local).map(|counts| counts.iter().sum()).collect();
        Self {
            send: sums(&counts),
            receive: sums(&received),
            arrangement: Arrangement::new(&received, local),
            group: group.clone(),
        }
    }

    /// Sends each row to the rank of its expert. Differentiable.
    ///
    /// # Shapes
    ///
    /// - rows: `[assignments of this rank's tokens, d_model]`
    /// - output: `[assignments of this rank's experts, d_model]`
    pub(super) fn send(&self, rows: Tensor<2>) -> Tensor<2> {
        all_to_all_uneven(rows, &self.send, &self.receive, &self.group)
    }

    /// Sends the name of each row's random numbers where [`send`](Self::send) sends the row.
    pub(super) fn send_names(&self, names: impl Iterator<Item = Row>, device: &Device, context: &Context) -> Vec<Row> {
        let numbers: Vec<i64> = names.map(Row::to_number).collect();
        let shape = [numbers.len()];
        let device = device.clone().without_autodiff();
        // All 64 bits, whatever the default of the device.
        let numbers = Tensor::<1, Int>::from_data(TensorData::new(numbers, shape), (&device, DType::I64));
        let sent = self.group.all_to_all_uneven(numbers, &self.send, &self.receive);
        let received = sent.unwrap_or_else(|error| unwind(error));
        context.read(received).iter::<i64>().map(Row::from_number).collect()
    }

    /// Sends each row back to where it came from: the inverse of [`send`](Self::send). Differentiable.
    pub(super) fn send_back(&self, rows: Tensor<2>) -> Tensor<2> {
        all_to_all_uneven(rows, &self.receive, &self.send, &self.group)
    }
}

fn exchange_counts(counts: &[usize], group: &ProcessGroup) -> Vec<usize> {
    let counts: Vec<i64> = counts.iter().map(|count| *count as i64).collect();
    let received = group.all_to_all_counts(&counts).unwrap_or_else(|error| unwind(error));
    received.into_iter().map(|count| usize::try_from(count).expect("a peer counts its rows")).collect()
}

/// The tokens that the experts take, one row an assignment.
///
/// # Shapes
///
/// - x: `[tokens, d_model]`
/// - output: `[assignments, d_model]`
pub(super) fn rows_of(x: Tensor<2>, routing: &Routing) -> Tensor<2> {
    let tokens = indices(routing.assignments.iter().map(|assignment| assignment.token), &x.device());
    if is_host(&x.device()) { rows_at(x, tokens) } else { x.select(0, tokens) }
}

/// Adds each row, times its weight, to the row of its token, in f32 at least: the gradient of a weight is a sum over the
/// row, and what the router learns. A token without an expert gets zeros.
///
/// # Shapes
///
/// - rows: `[assignments, d_model]`
/// - weights: `[assignments, 1]`
/// - output: `[tokens, d_model]`
pub(super) fn combine(rows: Tensor<2>, weights: Tensor<2>, routing: &Routing) -> Tensor<2> {
    let (device, [_, width]) = (rows.device(), rows.dims());
    let tokens: Vec<usize> = routing.assignments.iter().map(|assignment| assignment.token).collect();
    let shape = [routing.mask.as_slice().len(), width];
    in_wide(rows, |rows| {
        let weights = weights.cast(rows.dtype());
        match host_float(&rows) {
            Some(HostFloat::Single) => combine_on_host::<f32>(rows, weights, tokens, shape),
            Some(HostFloat::Double) => combine_on_host::<f64>(rows, weights, tokens, shape),
            None => {
                let zeros = Tensor::zeros(shape, (&device, rows.dtype()));
                zeros.select_assign(0, indices(tokens.into_iter(), &device), rows * weights, IndexingUpdateOp::Add)
            }
        }
    })
}

/// [`combine`] as one operation.
fn combine_on_host<T: Real>(rows: Tensor<2>, weights: Tensor<2>, tokens: Vec<usize>, shape: [usize; 2]) -> Tensor<2> {
    custom_vjp(
        (rows, weights),
        move |(rows, weights)| {
            let (device, [x, w]) = (rows.device(), [&rows, &weights].map(|x| View::<T>::new(x.clone())));
            let sums = host::scatter_add(shape, &tokens, x.slice(), Some(w.slice()));
            (host::tensor(sums, shape, &device), (rows, weights, tokens))
        },
        move |(rows, weights, tokens), grad| {
            let (device, dims) = (grad.device(), [rows.dims(), weights.dims()]);
            let [rows, weights, grad] = [rows, weights, grad].map(View::<T>::new);
            let inputs = (rows.slice(), weights.slice());
            let (of_rows, of_weights) = host::scatter_add_backward(shape[1], &tokens, inputs, grad.slice());
            (Some(host::tensor(of_rows, dims[0], &device)), Some(host::tensor(of_weights, dims[1], &device)))
        },
    )
}

/// The weight of each assignment: differentiable in the probabilities.
///
/// A switch gate weighs by the probability. A top-2 gate shares a token between the experts that take it:
///
/// ```text
/// both take it:  p / (p + q)        p of this expert, q of the other one
/// one takes it:  1                  whatever p, so the router learns nothing from it
/// ```
///
/// # Shapes
///
/// - output: `[assignments, 1]`
pub(super) fn weights(routed: &Routed, routing: &Routing, choices: usize) -> Tensor<2> {
    let [tokens, experts] = routed.probabilities.dims();
    let device = routed.probabilities.device();
    let flat = routed.probabilities.clone().reshape([tokens * experts]);
    let select = |expert: fn(&Assignment) -> usize| {
        let places = routing.assignments.iter().map(|assignment| assignment.token * experts + expert(assignment));
        flat.clone().select(0, indices(places, &device))
    };
    let own = select(|assignment| assignment.expert);
    if choices == 1 {
        return own.unsqueeze_dim(1);
    }
    let other = select(|assignment| assignment.partner.unwrap_or(assignment.expert));
    let indicator = |value: fn(bool) -> bool| {
        let values: Vec<f32> =
            routing.assignments.iter().map(|assignment| f32::from(value(assignment.partner.is_some()))).collect();
        let shape = [values.len()];
        Tensor::<1>::from_data(TensorData::new(values, shape), (&device, own.dtype()))
    };
    let (shared, alone) = (indicator(|shared| shared), indicator(|shared| !shared));
    let share = own.clone() * shared.clone() + alone.clone();
    let total = (own + other) * shared + alone;
    (share / total).unsqueeze_dim(1)
}

/// Indices as a tensor.
pub(super) fn indices(values: impl Iterator<Item = usize>, device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.map(|value| value as i64).collect();
    let shape = [values.len()];
    Tensor::from_data(TensorData::new(values, shape), device)
}
