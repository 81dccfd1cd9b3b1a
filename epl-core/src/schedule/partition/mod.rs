//! Which segments form a stage: pure functions from costs to ranges.
//!
//! ```text
//! segments   embedding block block block block block block head
//! 4 stages   └───── 0 ─────┘└── 1 ─────┘└── 2 ─────┘└── 3 ────┘
//! ```
//!
//! [`stages_of`] and [`parts_of`] give exactly as many stages as asked. [`epl`] holds EPL's own functions, which may
//! give fewer. [`custom_stage_ids`] and [`layer_stage`] are LiBai's two ways of naming a layer's stage.

mod error;
mod units;
mod repeated;
mod least_largest;
mod stages;
mod layers;
pub mod epl;

pub use error::{CostError, PartitionError};
pub use layers::{custom_stage_ids, layer_stage};
pub(crate) use least_largest::least_largest;
pub use stages::{ModelChunk, parts_of, stages_of};
pub(crate) use units::units;
