//! What a rank does in a step, as a list: no tensors, and no ranks but the one of the plan.
//!
//! ```text
//! Plan, StepShapes ──▶ StepProgram   receive ▸ gather ▸ forward ▸ send ▸ … ▸ start bucket ▸ … ▸ norm ▸ update
//! ```
//!
//! It is a pure function, for layouts and worlds that are not there. `tests/training/simulate.rs` holds it equal, call for call
//! and byte for byte, to the trace of the engine.
//!
//! - `call`: a collective, by what a trace shows of it.
//! - `shapes`: what of a step does not follow from the plan.
//! - `list`: the list while it grows.
//! - `links`: what stages send each other, as `engine/links.rs` does.
//! - `parameters`: what is gathered for segments, as `engine/parameters.rs` does.
//! - `reductions`: buckets, as `engine/reduce.rs` does.
//! - `program`: the step, as `engine/run.rs`, `tape.rs` and `update.rs` do.
//! - `timeline`: when, of all ranks.

mod call;
mod shapes;
mod list;
mod links;
mod parameters;
mod reductions;
mod program;
mod timeline;

pub use call::{Called, Members};
pub use list::{Op, RunKind};
pub use program::StepProgram;
pub use shapes::{CarryShape, SegmentCalls, StepShapes, TensorShape};
pub use timeline::{Costs, StepTimeline, TimedOp, simulate_step};
