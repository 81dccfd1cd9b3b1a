//! Decide how a Burn model is laid out over ranks, then run training steps.
//!
//! ```text
//! Config -> Cluster + Mesh -> Context + Place -> model (lazy) -> Plan -> drawn parameters -> Engine -> Trainer
//! what      who exists        one per rank       Burn modules    one      (seed, path)       one       many
//! was said                                                       record                      step      steps
//!                                                                a parameter
//! ```
//!
//! Data flows from left to right; nothing after [`Plan`] reads the configuration.
#![warn(missing_docs)]

pub mod config;
pub mod cluster;
pub mod schedule;
mod error;
mod context;
mod place;
pub mod plan;
mod segment;
pub mod optim;
pub mod engine;
mod launch;
pub mod testing;

pub use context::{Context, Groups, Pass};
pub use engine::{Engine, EngineSettings, EvalReport, MicroBatch, StepReport};
pub use error::{Error, Result};
pub use launch::{Epl, launch};
pub use place::Place;
pub use plan::{Cut, ParamRecord, Plan};
pub use segment::{Carry, CarryMapper, Loss, OneSegment, Segmented, Term, WholeModel, Weights};
