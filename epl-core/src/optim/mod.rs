//! Which of Burn's optimizers the engine can drive, and how.
//!
//! An element-wise optimizer updates each element from its own gradient and state, so it may run on slices. One
//! that looks at a whole tensor (factored moments, a norm, an orthogonalisation) would compute something else on a
//! slice, and is refused for parameters that are divided.
//!
//! ```text
//! program   ParamGroups ─┐   patterns, and what they say
//! options   optimizer.* ─┴─▶ ResolvedOptimizer ─▶ PerParameter, or the one-pass optimizers of `offload`
//!                            of each parameter: a variant of the optimizer, a factor on the rate, or frozen
//! ```
//!
//! - `optimizers`: which ones they are.
//! - `groups`, `group_settings`: what is another for some parameters, in the user's words.
//! - `bert_adam`: Adam without bias correction.
//! - `variant`: an optimizer of any type.
//! - `resolved`: which variant updates each parameter, and how far.
//! - `per_parameter`: an optimizer, and what it keeps of each parameter.
//! - [`loss_scale`]: the factor on the loss under mixed precision.

mod variant;
mod group_settings;
mod bert_adam;
mod optimizers;
mod groups;
mod per_parameter;
mod resolved;
pub mod loss_scale;

pub use bert_adam::{BertAdam, BertAdamConfig};
pub use group_settings::GroupSettings;
pub use groups::{ParamGroup, ParamGroups};
pub use loss_scale::{LossScaleState, LossScaler};
pub use optimizers::OptimizerConfig;
pub(crate) use per_parameter::PerParameter;
pub use per_parameter::{StateField, StateFields, WholeStates};
pub(crate) use resolved::{ResolvedGroups, ResolvedOptimizer};
pub use variant::Variant;
