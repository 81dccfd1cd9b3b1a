//! What a parameter group says, whatever the optimizer's type is.

use serde::Serialize;
use serde_json::Value;

/// The patterns of a parameter group, and what it says of what they cover; what it does not say is as before.
#[derive(Clone, Debug, Serialize)]
pub struct GroupSettings {
    pub(super) patterns: Vec<String>,
    pub(super) rate_factor: Option<f64>,
    pub(super) weight_decay: Option<f64>,
    pub(super) frozen: Option<bool>,
    /// The optimizer's own settings for the group.
    pub(super) optimizer: Option<Value>,
}

impl GroupSettings {
    /// One of these paths that says nothing yet.
    pub(super) fn of(patterns: Vec<String>) -> Self {
        Self { patterns, rate_factor: None, weight_decay: None, frozen: None, optimizer: None }
    }
}
