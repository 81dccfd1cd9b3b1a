//! Settings as a checkpoint keeps them.

use ciborium::Value as Cbor;
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

/// Refuses settings of which one is no finite number: nothing trains with it, and a checkpoint could not keep it.
///
/// # Errors
///
/// The first such setting, by its name.
pub(crate) fn check_finite(what: &str, settings: &impl Serialize) -> Result<()> {
    // Unlike JSON's, its numbers may be any.
    let value = Cbor::serialized(settings)
        .map_err(|error| Error::invalid(format!("the settings of {what} cannot be read: {error}")))?;
    match not_finite("", &value) {
        Some(found) => Err(Error::invalid(format!("{what}: {found} is not finite; give it a number"))),
        None => Ok(()),
    }
}

/// The first number that is not finite, with its path.
fn not_finite(path: &str, value: &Cbor) -> Option<String> {
    let below = |name: String| if path.is_empty() { name } else { format!("{path}.{name}") };
    match value {
        Cbor::Float(number) => (!number.is_finite()).then(|| format!("{path} = {number}")),
        Cbor::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| not_finite(&below(index.to_string()), item))
        }
        Cbor::Map(entries) => entries.iter().find_map(|(name, item)| {
            let name = name.as_text().map_or_else(|| format!("{name:?}"), str::to_string);
            not_finite(&below(name), item)
        }),
        Cbor::Tag(_, value) => not_finite(path, value),
        _ => None,
    }
}
