//! What the user said: every option, its default, and where its value came from.
//!
//! A configuration is made in layers, each of which overrides those before it:
//!
//! ```text
//!   defaults  <  TOML file  <  environment        <  command line, code
//!                run.toml      EPL_TRAIN_SEED=7      --set train.seed=7
//! ```
//!
//! Unknown keys, wrong types and values out of range are errors that name the key, the value, what
//! is allowed and the layer it came from. An option whose feature does not exist yet is accepted at
//! its default only. Nothing here holds a tensor or reads a device; what the options mean for the
//! ranks that exist is decided in [`cluster`](crate::topology::cluster) and in the plan.
//!
//! ```
//! use epl_core::config::{Config, Layers};
//!
//! # fn main() -> Result<(), epl_core::config::ConfigError> {
//! // In code:
//! let config = Config::new()
//!     .with("train.global_batch_size", 64)?
//!     .with("pipeline.num_micro_batch", 4)?;
//! assert_eq!(config.batch(2)?.micro_batch_size, 8);
//!
//! // From layers; `Config::load` does the same with a file and the process's own environment:
//! let config = Layers::new()
//!     .toml("[train]\nseed = 1\nclip_norm = 1.0", "run.toml")?
//!     .environment([("EPL_TRAIN_SEED", "2")])?
//!     .command_line(["train.clip_norm=none"])?
//!     .resolve()?;
//! assert_eq!((config.train.seed, config.train.clip_norm), (2, None));
//! # Ok(())
//! # }
//! ```
//!
#![doc = include_str!("../../OPTIONS.md")]

mod setting;
mod path_number;
mod kind;
mod choice;
mod origin;
mod error;
mod option;
mod sections;
mod nearest;
mod resolved;
mod validate;
mod batch;
mod layers;
mod environment;
mod table;

pub use batch::Batch;
pub use choice::{
    AmpLevel, CheckpointType, HalfDtype, LossScale, OffloadLevel, PipelineStrategy, RankOrder, ReduceMethod,
    ResumeMode, ScheduleKind, StateTier, TransportChoice, ZeroLevel,
};
pub use environment::variable;
pub use error::{ConfigError, Result};
pub use kind::ValueKind;
pub use layers::Layers;
pub use origin::Origin;
pub use path_number::PathNumber;
pub(crate) use sections::MOST_RANKS;
pub use sections::{
    AmpConfig, AutoConfig, ClusterConfig, CommunicationConfig, Config, DistConfig, GradientCheckpointConfig, IoConfig,
    OPTIONS, OffloadConfig, OptimizerConfig, OptionSpec, PipelineConfig, ProfileConfig, ScheduleConfig, Status,
    TrainConfig, ZeroConfig,
};
pub use setting::{FromSetting, ToSetting};
pub use table::option_table;
