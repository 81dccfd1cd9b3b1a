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

use burn::tensor::{Int, Tensor};
use epl_comm::differentiable::all_to_all_uneven;
use epl_comm::{ProcessGroup, unwind};

use super::arrangement::Arrangement;

/// The way of the rows of one routing decision.
pub(super) struct Dispatch {
    group: ProcessGroup,
    send: Vec<usize>,
    receive: Vec<usize>,
    pub arrangement: Arrangement,
}

impl Dispatch {
    /// Tells every rank of the expert group how many rows it gets for each of its experts: `counts` has those of all.
    /// Collective.
    pub(super) fn new(counts: &[usize], group: &ProcessGroup) -> Self {
        let local = counts.len() / group.size();
        let received = exchange_counts(counts, group);
        let sums = |counts: &[usize]| counts.chunks_exact(local).map(|counts| counts.iter().sum()).collect();
        Self {
            send: sums(counts),
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

    /// Sends a number of each row where [`send`](Self::send) sends the row.
    ///
    /// # Shapes
    ///
    /// As there, without the width.
    pub(super) fn send_numbers(&self, numbers: Tensor<1, Int>) -> Tensor<1, Int> {
        let sent = self.group.all_to_all_uneven(numbers, &self.send, &self.receive);
        sent.unwrap_or_else(|error| unwind(error))
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
