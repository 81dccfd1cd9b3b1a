//! Decide how a Burn model is laid out over ranks, then run training steps.
//!
//! ```text
//! Config -> Cluster + Mesh -> Context + Place -> model (lazy) -> Plan -> drawn parameters -> Engine -> Trainer
//! what      who exists        one per rank       Burn modules    one      (seed, path)       one       many
//! was said                                                       record                      step      steps
//!                                                                a parameter
//! ```
//!
//! Data flows from left to right; no step reads the configuration. Modules are listed in the order in
//! which they may import from each other.
//!
//! # Features
//!
#![doc = document_features::document_features!()]
#![warn(missing_docs)]

mod system;
pub mod config;
pub mod topology;
pub mod schedule;
pub mod memory;
mod error;
mod json;
mod texts;
mod stable_hash;
mod pattern;
pub mod offload;
pub mod checkpoint;
pub mod model;
pub mod params;
pub mod plan;
pub mod simulate;
pub mod cost;
pub mod tensors;
pub mod optim;
pub mod probe;
mod launch;
pub mod search;
pub mod engine;
pub mod data;
pub mod auto;
pub mod evaluate;
pub mod trainer;
pub mod testing;

pub use config::{Config, ConfigError};
pub use engine::{Decoding, Engine, EngineSettings, EvalReport, MicroBatch, StepReport, TraceWindow};
pub use error::{Error, Result};
pub use launch::{Epl, LaidOutModel, is_planned, launch, launch_dry, launch_traced};
pub use model::batch::{Batch, BatchTensors};
pub use model::carry::{Carry, CarryMapper, CarryReader};
pub use model::chain::{Chain, Links, Unlinked};
pub use model::chain_carry::ChainCarry;
pub use model::context::{Context, Groups, Pass};
pub use model::decay::{AverageDecay, MovingAverage};
pub use model::loss::{Loss, LossWeights, Term, TermKind};
pub use model::place::Place;
pub use model::precision::HalfPrecision;
pub use model::rerun::checkpoint;
pub use model::segment::{Incremental, Model, ModelOutput, SegmentState};
pub use model::whole::WithLoss;
pub use params::{Cut, ParamRecord};
pub use plan::Plan;
pub use probe::planned::{LazyModel, PlannedMemory};
pub use topology::cluster::{Axis, Cluster, Coordinate, Mesh, MeshRequest, MeshSizes};
pub use topology::layout::{Layout, Strategy};
pub use trainer::learning_rate::{BurnLrSchedule, Decay, LearningRate, LrSchedule, SequentialLr};
pub use trainer::{StopHandle, Trained, Trainer, TrainerConfig};
