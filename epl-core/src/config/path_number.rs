//! A number for the parameters at a path.

use std::fmt;

use toml::Value;

use super::setting::{FromSetting, ToSetting};

/// A number for the parameters that a pattern covers (`optimizer.rate_factor`), written `path=number`.
#[derive(Clone, Debug, PartialEq)]
pub struct PathNumber {
    /// The pattern; nothing is the whole model.
    pub path: String,
    /// A finite number of at least 0.
    pub number: f64,
}

impl PathNumber {
    /// Reads `path=number`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (path, number) = text.rsplit_once('=')?;
        let number: f64 = number.trim().parse().ok()?;
        (number.is_finite() && number >= 0.0).then(|| Self { path: path.trim().to_string(), number })
    }
}

impl fmt::Display for PathNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path, self.number)
    }
}

impl ToSetting for PathNumber {
    fn to_setting(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl FromSetting for PathNumber {
    fn from_setting(value: &Value) -> Option<Self> {
        value.as_str().and_then(Self::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, path, number) in [("**.bias=0", "**.bias", 0.0), (" a.b = 1e-3 ", "a.b", 1e-3), ("=2.5", "", 2.5)] {
            let read = PathNumber::read(text).unwrap();
            assert_eq!(read, PathNumber { path: path.to_string(), number });
            assert_eq!(PathNumber::from_setting(&read.to_setting()), Some(read));
        }
        for wrong in ["a", "a=", "a=-1", "a=nan", "a=inf", "a=b"] {
            assert_eq!(PathNumber::read(wrong), None, "{wrong}");
        }
    }
}
