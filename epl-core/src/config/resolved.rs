//! What can be done with a configuration: read, change, compare, write.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::error::{ConfigError, Result};
use super::nearest::{find, nearest};
use super::origin::Origin;
use super::sections::{Config, OPTIONS, OptionSpec, Status};
use super::setting::ToSetting;

/// The one option whose absence says something: it then follows from the two batch sizes.
const DERIVED: &str = "pipeline.num_micro_batch";

impl Config {
    /// Every option at its default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an option by its key: [`set`](Self::set), to be chained.
    ///
    /// # Errors
    ///
    /// See [`set`](Self::set).
    pub fn with(mut self, key: &str, value: impl ToSetting) -> Result<Self> {
        self.set(key, value)?;
        Ok(self)
    }

    /// Sets an option by its key.
    ///
    /// # Errors
    ///
    /// An unknown key, a value that the option does not take, or one that is not implemented yet.
    pub fn set(&mut self, key: &str, value: impl ToSetting) -> Result<()> {
        let option = known(key, &Origin::Code)?;
        self.assign(option, &value.to_setting(), Origin::Code)?;
        self.check(option)
    }

    /// The value of an option, or `None` where no option has this key.
    pub fn get(&self, key: &str) -> Option<Value> {
        find(key).map(|option| (option.get)(self))
    }

    /// Where the value of an option came from.
    pub fn origin(&self, key: &str) -> Origin {
        let value = self.get(key);
        match self.given.get(key) {
            Some((given, origin)) if Some(given) == value.as_ref() => origin.clone(),
            // A field was written directly.
            _ if value != Self::default().get(key) => Origin::Code,
            _ => Origin::Default,
        }
    }

    /// Whether somebody gave the option a value, be it the default.
    pub fn is_given(&self, key: &str) -> bool {
        self.origin(key) != Origin::Default
    }

    /// The resolved configuration as a TOML file: every option, in the order of the table. Read
    /// back, it is the same configuration.
    ///
    /// A `pipeline.num_micro_batch` that nobody gave is a comment: it follows from the batch sizes
    /// and the number of replicas, which may be another when the file is used again.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for option in OPTIONS {
            if option.section != section {
                section = option.section;
                let gap = if text.is_empty() { "" } else { "\n" };
                let _ = writeln!(text, "{gap}[{section}]");
            }
            let mark = if self.is_written(option) { "" } else { "# " };
            let _ = writeln!(text, "{mark}{} = {}", option.name, (option.get)(self));
        }
        text
    }

    /// Puts a checked value into its field and remembers where it came from.
    pub(crate) fn assign(&mut self, option: &OptionSpec, value: &Value, origin: Origin) -> Result<()> {
        match option.kind.check(value) {
            Some(value) if (option.put)(self, &value) => {
                self.given.insert(option.key(), (value, origin));
                Ok(())
            }
            _ => Err(not_allowed(option, value.to_string(), origin)),
        }
    }

    /// Whether the option's value is one it takes, and works in this version.
    pub(crate) fn check(&self, option: &OptionSpec) -> Result<()> {
        let (value, default) = ((option.get)(self), option.default());
        let origin = self.origin(&option.key());
        if option.kind.check(&value).is_none() {
            return Err(not_allowed(option, value.to_string(), origin));
        }
        match option.status {
            Status::NotYet if value != default => Err(ConfigError::NotYet {
                key: option.key(),
                given: value.to_string(),
                implemented: default.to_string(),
                origin,
            }),
            _ => Ok(()),
        }
    }

    fn is_written(&self, option: &OptionSpec) -> bool {
        option.key() != DERIVED || self.is_given(DERIVED)
    }
}

/// The option with this key, or an error that names the nearest.
pub(crate) fn known(key: &str, origin: &Origin) -> Result<&'static OptionSpec> {
    find(key).ok_or_else(|| ConfigError::UnknownOption {
        key: key.to_string(),
        origin: origin.clone(),
        nearest: nearest(key).key(),
    })
}

pub(crate) fn not_allowed(option: &OptionSpec, given: String, origin: Origin) -> ConfigError {
    ConfigError::NotAllowed { key: option.key(), given, allowed: option.kind.to_string(), origin }
}

/// Two configurations are equal when all their values are, wherever those came from.
impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        OPTIONS.iter().all(|option| (option.get)(self) == (option.get)(other))
    }
}

impl From<Config> for Table {
    fn from(config: Config) -> Table {
        let mut table = Table::new();
        for option in OPTIONS.iter().filter(|option| config.is_written(option)) {
            let section = table.entry(option.section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                section.insert(option.name.to_string(), (option.get)(&config));
            }
        }
        table
    }
}
