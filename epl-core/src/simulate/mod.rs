//! What a rank does in a step, as a list: no tensors, and no ranks but the one of the plan.
//!
//! ```text
//! Plan, StepShapes ──▶ StepProgram   receive ▸ gather ▸ forward ▸ send ▸ … ▸ start bucket ▸ … ▸ norm ▸ update
//! ```
//!
//! It is a pure function, for layouts and worlds that are not there. The tests of layouts (`tests/layouts/parity/program.rs`) hold it
//! equal, call for call and byte for byte, to the trace of the engine.
//!
//! - `call`: a collective, by what a trace shows of it.
//! - `shapes`: what of a step does not follow from the plan.
//! - `protocol`: lengths that are the same for every model.
//! - `pieces`: the segments of an action.
//! - `list`: the list while it grows.
//! - `links`: what stages send each other, as `engine/{links,row_exchange}.rs` do.
//! - `parameters`: what is gathered for segments, as `engine/parameters.rs` does.
//! - `reductions`: buckets, as `engine/reduce.rs` does.
//! - `program`: the step, as `engine/run.rs`, `tape.rs` and `update.rs` do.
//! - `over_rows`: shapes for any number of rows.
//! - `timeline`: when, of all ranks.
//! - `parts`: where the time goes; `measured`: where it went, by a rank's trace.

mod call;
mod shapes;
pub(crate) mod protocol;
pub(crate) mod pieces;
mod list;
mod links;
mod parameters;
mod reductions;
mod program;
mod over_rows;
mod timeline;
mod parts;
mod measured;

pub use call::{Called, Members};
pub use list::{Op, Purpose, RunKind};
pub(crate) use measured::{
    FLATTENS, LOSS, NORM, SENT, START_BUCKET, START_GATHER, START_ROWS, UPDATE, WAIT_BUCKET, WAIT_UNIT,
};
pub(crate) use over_rows::ShapesOverRows;
pub use parts::StepTime;
pub(crate) use parts::alone;
pub use program::StepProgram;
pub use shapes::StepShapes;
pub(crate) use shapes::{CarryShape, SegmentCalls, TableRows, TensorShape};
pub use timeline::{Costs, StepTimeline, TimedOp, simulate_step};
