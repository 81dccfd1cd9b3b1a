//! Decide how a Burn model is laid out over ranks, then run training steps.
//!
//! ```text
//! Config -> Cluster + Mesh -> Context + Place -> model (lazy) -> Plan -> drawn parameters -> Engine -> Trainer
//! what      who exists        one per rank       Burn modules    one      (seed, path)       one       many
//! was said                                                       record                      step      steps
//!                                                                a parameter
//! ```
//!
//! Data flows from left to right; nothing after [`Plan`] reads the configuration. Modules are listed in the order in
//! which they may import from each other.
#![warn(missing_docs)]

pub mod config;
pub mod cluster;
pub mod schedule;
pub mod layout;
pub mod pipeline;
pub mod recompute;
pub mod memory;
mod error;
mod json;
mod texts;
mod stable_hash;
pub mod durable;
pub mod offload;
pub mod checkpoint;
mod difference;
mod scopes;
pub mod output;
mod context;
mod place;
mod carry;
pub mod precision;
mod graph;
mod stateful;
mod rerun;
mod loss;
mod segment;
mod whole;
mod chain;
pub mod params;
pub mod plan;
pub mod tensors;
pub mod profile;
pub mod optim;
mod planned;
mod launch;
pub mod engine;
pub mod data;
pub mod evaluate;
pub mod trainer;
pub mod testing;

pub use carry::{Carry, CarryMapper, CarryReader};
pub use chain::{Chain, Links, Unlinked};
pub use cluster::{Axis, Cluster, Coordinate, Mesh, MeshRequest, MeshSizes};
pub use config::{Config, ConfigError};
pub use context::{Context, Groups, Pass};
pub use engine::{Decoding, Engine, EngineSettings, EvalReport, MicroBatch, StepReport, TraceWindow};
pub use error::{Error, Result};
pub use launch::{Built, Epl, launch, launch_dry, launch_traced};
pub use layout::{Layout, Strategy};
pub use loss::{Loss, Term, TermKind, Weights};
pub use params::{Cut, ParamRecord};
pub use place::Place;
pub use plan::Plan;
pub use planned::{Planned, PlannedMemory};
pub use precision::HalfPrecision;
pub use rerun::checkpoint;
pub use schedule::LearningRate;
pub use segment::{Incremental, SegmentState, Segmented};
pub use trainer::{Stop, Trained, Trainer, TrainerConfig};
pub use whole::{OneSegment, WholeModel, WithLoss};
