//! Which token goes to which expert, wherever that is known.

use burn::tensor::{DType, Int, Tensor, TensorData};
use epl_core::offload::is_host;

use super::balance::{self, RouterLosses};
use super::gate::{Balance, Gate};
use super::listed;
use super::mask::TokenMask;
use super::router::Routed;
use super::routing::{Assignment, Routing};
use super::slots::Slots;
use crate::random::Row;

/// Which token goes to which expert, in one call of one layer: kept, it can be replayed.
#[derive(Clone, Debug)]
pub enum Decision {
    /// A list on the host, where the layer computes.
    Listed(Routing),
    /// Indices on the device.
    Slots(Box<Slots>),
}

impl Decision {
    /// A decision of the host, for where the layer computes.
    pub(super) fn of_host(routing: Routing, routed: &Routed, gate: Gate) -> Self {
        match is_host(&routed.probabilities.device()) {
            true => Self::Listed(routing),
            false => Self::Slots(Box::new(Slots::listed(&routing, gate, &routed.probabilities))),
        }
    }

    /// The list, where it is on the host.
    pub fn routing(&self) -> Option<&Routing> {
        match self {
            Self::Listed(routing) => Some(routing),
            Self::Slots(_) => None,
        }
    }

    /// The tokens that were routed.
    pub fn mask(&self) -> &TokenMask {
        match self {
            Self::Listed(routing) => &routing.mask,
            Self::Slots(slots) => &slots.mask,
        }
    }

    /// How many rows each of `experts` gets.
    pub(super) fn counts(&self, experts: usize) -> Vec<usize> {
        match self {
            Self::Listed(routing) => routing.counts(experts),
            Self::Slots(slots) => slots.counts.clone(),
        }
    }

    /// The tokens that the experts take, by expert. Differentiable.
    ///
    /// # Shapes
    ///
    /// - x: `[tokens, d_model]`
    /// - output: `[rows, d_model]`
    pub(super) fn rows_of(&self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Listed(routing) => listed::rows_of(x, routing),
            Self::Slots(slots) => slots.rows_of(x),
        }
    }

    /// The random numbers of each row: those of its token, `of_token`, at the number of its expert.
    ///
    /// # Shapes
    ///
    /// - output: `[rows]`
    pub(super) fn names(&self, routed: &Routed, of_token: impl Fn(usize) -> Row) -> Tensor<1, Int> {
        let ([tokens, experts], device) = (routed.probabilities.dims(), routed.probabilities.device());
        // All 64 bits, whatever the default of the device.
        let options = (&device.without_autodiff(), DType::I64);
        match self {
            Self::Listed(Routing { assignments, .. }) => {
                let number = |one: &Assignment| of_token(one.token).at(one.expert).to_number();
                let numbers: Vec<i64> = assignments.iter().map(number).collect();
                Tensor::from_data(TensorData::new(numbers, [assignments.len()]), options)
            }
            Self::Slots(slots) => {
                let of_experts = |row: Row| (0..experts).map(move |expert| row.at(expert).to_number());
                let numbers: Vec<i64> = (0..tokens).map(of_token).flat_map(of_experts).collect();
                slots.numbers_of(Tensor::from_data(TensorData::new(numbers, [tokens, experts]), options))
            }
        }
    }

    /// Adds each row, times its weight, to the row of its token. A token without an expert gets zeros. Differentiable.
    ///
    /// # Shapes
    ///
    /// - rows: `[rows, d_model]`
    /// - output: `[tokens, d_model]`
    pub(super) fn combine(&self, rows: Tensor<2>, routed: &Routed, gate: Gate) -> Tensor<2> {
        match self {
            Self::Listed(routing) => listed::combine(rows, listed::weights(routed, routing, gate), routing),
            Self::Slots(slots) => slots.combine(rows, routed.probabilities.clone()),
        }
    }

    /// The losses of the router.
    pub(super) fn losses(&self, routed: &Routed, balance: Balance) -> RouterLosses {
        let auxiliary = match (balance, self) {
            (Balance::Sequences, Self::Listed(routing)) => {
                balance::of_groups(routed, balance::auxiliary(routing, &routed.probabilities))
            }
            (Balance::Sequences, Self::Slots(slots)) => balance::of_groups(routed, slots.auxiliary.clone()),
            (Balance::Batch, Self::Listed(routing)) => {
                balance::of_batch(routed, balance::asked(routing, &routed.probabilities), &routing.mask)
            }
            (Balance::Batch, Self::Slots(slots)) => balance::of_batch(routed, slots.asked.clone(), &slots.mask),
        };
        RouterLosses::new(routed, auxiliary, self.mask())
    }
}
