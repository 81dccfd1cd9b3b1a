//! `config.json`, with errors that name the key.

use std::path::{Path, PathBuf};

use epl_modules::Activation;
use serde_json::Value;

use super::error::{Error, Result};

/// What `transformers` calls the functions of feed-forward parts.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("gelu", Activation::Gelu),
    ("gelu_new", Activation::GeluNew),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("gelu_pytorch_tanh", Activation::GeluNew),
    ("swish", Activation::Silu),
];

/// What `transformers` calls a function.
pub(crate) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluNew => "gelu_new",
        Activation::Relu => "relu",
        Activation::Silu => "silu",
    }
}

/// Tokens as [`JsonConfig::tokens`] reads them.
pub(crate) fn written_tokens(tokens: &[i64]) -> Value {
    match tokens {
        [] => Value::Null,
        [token] => (*token).into(),
        tokens => tokens.into(),
    }
}

/// The keys of a `config.json`.
#[derive(Clone, Debug)]
pub struct JsonConfig {
    path: PathBuf,
    /// What stands before the keys in errors: the key of the object that they are of.
    prefix: String,
    values: Value,
}

impl JsonConfig {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be read, [`Error::Format`] when it is not a JSON object.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let text = std::fs::read(&path).map_err(|cause| Error::File { path: path.clone(), cause })?;
        match serde_json::from_slice(&text) {
            Ok(values @ Value::Object(_)) => Ok(Self { path, prefix: String::new(), values }),
            Ok(_) => Err(Error::Format { path, reason: "it is not a JSON object".into() }),
            Err(error) => Err(Error::Format { path, reason: error.to_string() }),
        }
    }

    /// Whether the key is there, be it null.
    pub fn says(&self, key: &str) -> bool {
        self.values.get(key).is_some()
    }

    /// Whether the key is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|value| !value.is_null())
    }

    /// A count.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when it is missing or no count; likewise for the others.
    pub fn count(&self, key: &str) -> Result<usize> {
        self.get(key, "a count", |value| value.as_u64().and_then(|count| usize::try_from(count).ok()))
    }

    /// A count, or another one when the key is missing or null.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.has(key) { self.count(key) } else { Ok(default) }
    }

    /// Counts, in order.
    pub fn counts(&self, key: &str) -> Result<Vec<usize>> {
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        self.get(key, "a list of counts", |value| value.as_array()?.iter().map(count).collect())
    }

    /// How many entries an object has.
    pub fn entries(&self, key: &str) -> Result<usize> {
        self.get(key, "an object", |value| value.as_object().map(|object| object.len()))
    }

    /// The keys of an object.
    pub fn object(&self, key: &str) -> Result<Self> {
        let values = self.get(key, "an object", |value| value.is_object().then(|| value.clone()))?;
        Ok(Self { path: self.path.clone(), prefix: format!("{}{key}.", self.prefix), values })
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<f64> {
        self.get(key, "a number", Value::as_f64)
    }

    /// A number, or another one when the key is missing or null.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        if self.has(key) { self.number(key) } else { Ok(default) }
    }

    /// What `read` reads; `default` when the key is missing, and nothing when it is null.
    pub(crate) fn unless_null<T>(
        &self,
        key: &str,
        default: Option<T>,
        read: impl FnOnce(&Self, &str) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.values.get(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(_) => read(self, key).map(Some),
        }
    }

    /// A token's number, or another one when the key is missing or null.
    pub fn token_or(&self, key: &str, default: i64) -> Result<i64> {
        if self.has(key) { self.get(key, "the number of a token", Value::as_i64) } else { Ok(default) }
    }

    /// Tokens: a number, a list of numbers, or none where the key is missing or null.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when it is something else.
    pub fn tokens(&self, key: &str) -> Result<Vec<i64>> {
        let tokens = |value: &Value| match value {
            Value::Array(tokens) => tokens.iter().map(Value::as_i64).collect(),
            token => token.as_i64().map(|token| vec![token]),
        };
        if self.has(key) { self.get(key, "the number of a token, or a list", tokens) } else { Ok(Vec::new()) }
    }

    /// A token's number, if the key is there and not null; none where it is negative, as in the first published Llamas.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when it is no number.
    pub fn token(&self, key: &str) -> Result<Option<i64>> {
        let token = if self.has(key) { self.token_or(key, 0).map(Some)? } else { None };
        Ok(token.filter(|token| *token >= 0))
    }

    /// The function of a feed-forward part, or another one when the key is missing or null.
    pub(crate) fn activation_or(&self, key: &str, default: Activation) -> Result<Activation> {
        if !self.has(key) {
            return Ok(default);
        }
        let name = self.text(key)?;
        let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
        let unknown = || {
            let names: Vec<&str> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
            self.error(key, format!("is `{name}`; supported are {}", names.join(", ")))
        };
        known.map(|(_, activation)| *activation).ok_or_else(unknown)
    }

    /// True or false, or another default when the key is missing or null.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        if self.has(key) { self.get(key, "true or false", Value::as_bool) } else { Ok(default) }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.get(key, "a text", Value::as_str)
    }

    /// A text, or another one when the key is missing or null.
    pub fn text_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str> {
        if self.has(key) { self.text(key) } else { Ok(default) }
    }

    /// Texts, in order.
    pub fn texts(&self, key: &str) -> Result<Vec<&str>> {
        self.get(key, "a list of texts", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// The number of classes: two are what `transformers` assumes, and does not write.
    pub(crate) fn classes(&self) -> Result<usize> {
        if self.has("id2label") { self.entries("id2label") } else { self.count_or("num_labels", 2) }
    }

    /// An [`Error::Config`] about a key.
    pub fn error(&self, key: &str, reason: impl Into<String>) -> Error {
        Error::Config { path: self.path.clone(), key: format!("{}{key}", self.prefix), reason: reason.into() }
    }

    /// A configuration that was read, once its own numbers are checked.
    pub(crate) fn checked<C>(&self, config: C, checked: epl_core::Result<()>) -> Result<C> {
        match checked {
            Ok(()) => Ok(config),
            Err(error) => Err(self.error("model_type", format!("is known, but: {error}"))),
        }
    }

    fn get<'a, T>(&'a self, key: &str, kind: &str, as_kind: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        match self.values.get(key) {
            None => Err(self.error(key, format!("is missing; it should be {kind}"))),
            Some(value) => as_kind(value).ok_or_else(|| self.error(key, format!("is {value}; it should be {kind}"))),
        }
    }
}
