//! How many bytes a rank needs, by kind and place, without a tensor: pure numbers in, a table out.
//!
//! ```text
//!  Plan, or numbers on paper ──> MemoryInputs ──estimate──> MemoryEstimate ──check──> fits, or OverBudget
//!  Activations (measured) ────────────^                     lines with their source
//! ```
//!
//! With f32 parameters and Adam, Ψ parameters and N replicas, parameters, gradients and optimizer state are
//!
//! | `zero.level` | bytes a rank |
//! |---|---|
//! | | 16Ψ |
//! | v0 | 8Ψ + 8Ψ/N |
//! | v1, v2 | 4Ψ + 12Ψ/N (v1 as v0 while it accumulates) |
//! | v3 | 16Ψ/N |
//!
//! Beside them a step needs buckets, under v3 or with offloaded parameters two segments, and activations.
//!
//! - `kind`: what bytes are for, where they lie and how they are known.
//! - `state`: how many elements an optimizer keeps for a parameter.
//! - `estimate`: lines, when they count, and their sums; `display`: the printed table.
//! - `inputs`: what an estimate is made from.
//! - `formula`: how.
//! - `activations`: what segments store, from measures of two batch sizes.
//! - `budget`: whether it fits, by how much not, and with which setting it would.

mod kind;
mod state;
mod estimate;
mod display;
mod activations;
mod inputs;
mod formula;
mod budget;

pub use activations::{Activations, Fit, Flow, SegmentActivations, StoredActivations};
pub use budget::{Fits, OverBudget, Setting, check};
pub use display::{Amount, Table};
pub use estimate::{MemoryEstimate, MemoryLine, StepPhase, When};
pub use inputs::{ElementBytes, MemoryInputs, ParamMemory, Tiers};
pub use kind::{FigureSource, MemoryKind, Tier};
pub use state::OptimizerState;
