//! Values of options to and from TOML values.
//!
//! TOML has no null, so an absent value is the word `none`: it must be possible to say it, because
//! a later layer may take back what an earlier one gave.

use toml::Value;

/// The word for an option without a value.
pub(crate) const NONE: &str = "none";

/// What can be given to [`Config::set`](super::Config::set).
pub trait ToSetting {
    /// The value as TOML.
    fn to_setting(&self) -> Value;
}

/// What the field of an option can be read from.
pub trait FromSetting: Sized {
    /// The field's value, or `None` where this type cannot hold it.
    fn from_setting(value: &Value) -> Option<Self>;
}

macro_rules! integers {
    ($($type:ty),+) => {$(
        impl ToSetting for $type {
            fn to_setting(&self) -> Value {
                // TOML's integers have 64 bits and a sign. What does not fit becomes a text, which
                // the option then refuses, with the number in the message.
                i64::try_from(*self).map_or_else(|_| Value::String(self.to_string()), Value::Integer)
            }
        }
        impl FromSetting for $type {
            fn from_setting(value: &Value) -> Option<Self> {
                value.as_integer().and_then(|number| number.try_into().ok())
            }
        }
    )+};
}
integers!(i32, u32, i64, u64, usize);

impl ToSetting for f64 {
    fn to_setting(&self) -> Value {
        Value::Float(*self)
    }
}

impl FromSetting for f64 {
    fn from_setting(value: &Value) -> Option<Self> {
        value.as_float()
    }
}

impl ToSetting for bool {
    fn to_setting(&self) -> Value {
        Value::Boolean(*self)
    }
}

impl FromSetting for bool {
    fn from_setting(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl ToSetting for &str {
    fn to_setting(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl ToSetting for String {
    fn to_setting(&self) -> Value {
        Value::String(self.clone())
    }
}

impl FromSetting for String {
    fn from_setting(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_string)
    }
}

impl<T: ToSetting> ToSetting for Vec<T> {
    fn to_setting(&self) -> Value {
        Value::Array(self.iter().map(T::to_setting).collect())
    }
}

impl<T: FromSetting> FromSetting for Vec<T> {
    fn from_setting(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::from_setting).collect()
    }
}

impl<T: ToSetting> ToSetting for Option<T> {
    fn to_setting(&self) -> Value {
        self.as_ref().map_or_else(|| NONE.to_setting(), T::to_setting)
    }
}

impl<T: FromSetting> FromSetting for Option<T> {
    fn from_setting(value: &Value) -> Option<Self> {
        if value.as_str() == Some(NONE) {
            return Some(None);
        }
        T::from_setting(value).map(Some)
    }
}

impl ToSetting for Value {
    fn to_setting(&self) -> Value {
        self.clone()
    }
}
