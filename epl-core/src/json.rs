//! Settings as a checkpoint keeps them.

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};

/// A value as it is after it was written and read, so that it can be compared with one that was saved. What is not
/// finite becomes null.
///
/// # Errors
///
/// When it is nothing that JSON can hold, such as a table whose keys are lists.
pub(crate) fn json(what: &str, value: &impl Serialize) -> Result<Value> {
    let text = serde_json::to_string(value);
    let value = text.and_then(|text| serde_json::from_str(&text));
    value.map_err(|error| Error::invalid(format!("the {what} cannot be kept in a checkpoint: {error}")))
}
