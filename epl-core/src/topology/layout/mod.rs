//! Which devices run which part of a model: EPL's words, resolved. No tensors.
//!
//! - `strategy`: `replicate(n)` and `split(n)`; a part of the model under one of them is a task graph.
//! - `error`: what cannot be laid out.
//! - `resolve`: task graphs and ranks → replicas, devices, the mesh.
//! - `display`: the printed layout.

mod strategy;
mod error;
mod resolve;
mod display;

pub use error::{LayoutError, WholeLayer};
pub use resolve::{Arrangement, Layout};
pub use strategy::{Strategy, StrategyKind, TaskGraph};
