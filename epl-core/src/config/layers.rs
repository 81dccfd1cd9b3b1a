//! Puts the layers of a configuration on top of each other.

use core::fmt::Display;
use std::collections::BTreeMap;
use std::path::Path;

use toml::de::DeTable;
use toml::{Table, Value};

use super::environment;
use super::error::{ConfigError, Result};
use super::nearest::nearest;
use super::origin::Origin;
use super::resolved::{known, not_allowed};
use super::sections::{Config, OPTIONS, OptionSpec};

/// Layers of a configuration that is being put together. A later call overrides earlier ones, so
/// call them in this order: [`file`](Self::file), [`environment`](Self::environment),
/// [`command_line`](Self::command_line), [`resolve`](Self::resolve). [`Config::load`] does.
///
/// Keys and types are checked as they are given. Whether a value is implemented yet, and whether
/// values agree, is checked once all layers are there, since a later layer may repair an earlier.
///
/// ```
/// use epl_core::config::{ConfigError, Layers};
///
/// let file = "[train]\nseed = 1\n[zero]\nlevel = 'v1'";
/// let config = Layers::new()
///     .toml(file, "run.toml")?
///     .environment([("EPL_TRAIN_SEED", "2"), ("HOME", "/home")])?
///     .command_line(["pipeline.num_micro_batch=4"])?
///     .resolve()?;
/// assert_eq!((config.train.seed, config.pipeline.num_micro_batch), (2, 4));
/// let error = Layers::new().environment([("EPL_TRAIN_SEEDS", "2")]).unwrap_err().to_string();
/// assert!(error.contains("EPL_TRAIN_SEEDS"), "{error}");
/// # Ok::<_, ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Layers {
    config: Config,
}

impl Layers {
    /// The defaults alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// A TOML file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or see [`toml`](Self::toml).
    pub fn file(self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text =
            std::fs::read_to_string(path).map_err(|cause| ConfigError::Read { path: path.to_path_buf(), cause })?;
        self.toml(&text, path)
    }

    /// The text of a TOML file; `path` is for messages.
    ///
    /// # Errors
    ///
    /// Not TOML, an unknown key, or a value that its option does not take, with the line.
    pub fn toml(self, text: &str, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let line_at = |byte: usize| text[..byte].matches('\n').count() + 1;
        let syntax = |error: toml::de::Error| ConfigError::Syntax {
            path: path.to_path_buf(),
            line: line_at(error.span().map_or(0, |span| span.start)),
            cause: error.message().to_string(),
        };
        let lines = lines_of(&DeTable::parse(text).map_err(syntax)?, line_at);
        let table: Table = text.parse().map_err(syntax)?;
        self.sections(&table, |key| Origin::File {
            path: path.to_path_buf(),
            line: lines.get(key).copied().unwrap_or(1),
        })
    }

    /// A table of sections, such as another configuration format gives.
    ///
    /// # Errors
    ///
    /// An unknown key, or a value that its option does not take.
    pub fn table(self, table: &Table) -> Result<Self> {
        self.sections(table, |_| Origin::Code)
    }

    /// Environment variables: the option `train.seed` is `EPL_TRAIN_SEED`. Variables that do not
    /// start with `EPL_` are not looked at.
    ///
    /// # Errors
    ///
    /// A variable that starts with `EPL_` and names no option, or a value that its option does not
    /// take.
    pub fn environment<N, V>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Result<Self>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        for (name, text) in variables {
            if let Some(option) = environment::option_of(name.as_ref())? {
                let variable = name.as_ref().to_string();
                self.read(option, text.as_ref(), Origin::Environment { variable })?;
            }
        }
        Ok(self)
    }

    /// The environment variables of this process.
    ///
    /// # Errors
    ///
    /// See [`environment`](Self::environment).
    pub fn process_environment(self) -> Result<Self> {
        self.environment(environment::of_process())
    }

    /// Settings of the form `key=value`.
    ///
    /// # Errors
    ///
    /// No `=`, an unknown key, or a value that its option does not take.
    pub fn command_line<S: AsRef<str>>(mut self, settings: impl IntoIterator<Item = S>) -> Result<Self> {
        for setting in settings {
            let setting = setting.as_ref();
            let (key, text) =
                setting.split_once('=').ok_or_else(|| ConfigError::NoSetting { setting: setting.to_string() })?;
            let option = known(key.trim(), &Origin::CommandLine)?;
            self.read(option, text, Origin::CommandLine)?;
        }
        Ok(self)
    }

    /// Options for which a program has flags of its own; those without a value were not given.
    ///
    /// # Errors
    ///
    /// As [`command_line`](Self::command_line).
    pub fn flags<'a, T: Display>(self, flags: impl IntoIterator<Item = (&'a str, Option<T>)>) -> Result<Self> {
        let given = flags.into_iter().filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
        self.command_line(given)
    }

    /// The configuration that the layers make.
    ///
    /// # Errors
    ///
    /// See [`Config::validate`].
    pub fn resolve(self) -> Result<Config> {
        self.config.validate()?;
        Ok(self.config)
    }

    fn read(&mut self, option: &OptionSpec, text: &str, origin: Origin) -> Result<()> {
        match option.kind.read(text) {
            Some(value) => self.config.assign(option, &value, origin),
            None => Err(not_allowed(option, Value::from(text.trim()).to_string(), origin)),
        }
    }

    fn sections(mut self, table: &Table, origin: impl Fn(&str) -> Origin) -> Result<Self> {
        for (section, content) in table {
            let exists = OPTIONS.iter().any(|option| option.section == section);
            let entries = match content {
                Value::Table(entries) if exists || !entries.is_empty() => entries,
                _ if exists => {
                    return Err(ConfigError::NotASection {
                        section: section.clone(),
                        given: content.to_string(),
                        origin: origin(section),
                    });
                }
                // A section that does not exist and is empty, or a key outside any section.
                _ => {
                    return Err(ConfigError::UnknownOption {
                        key: section.clone(),
                        origin: origin(section),
                        nearest: nearest(section).key(),
                    });
                }
            };
            for (name, value) in entries {
                let key = format!("{section}.{name}");
                let option = known(&key, &origin(&key))?;
                self.config.assign(option, value, origin(&key))?;
            }
        }
        Ok(self)
    }
}

/// The line of every section and of every key in it.
fn lines_of(table: &toml::Spanned<DeTable<'_>>, line_at: impl Fn(usize) -> usize) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for (section, content) in table.get_ref() {
        lines.insert(section.get_ref().to_string(), line_at(section.span().start));
        for (name, _) in content.get_ref().as_table().into_iter().flatten() {
            let key = format!("{}.{}", section.get_ref(), name.get_ref());
            lines.insert(key, line_at(name.span().start));
        }
    }
    lines
}

impl Config {
    /// The configuration of a program: defaults, then the TOML file, then the process's
    /// environment, then `key=value` settings of the command line.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong; see [`Layers`].
    pub fn load<S: AsRef<str>>(file: Option<&Path>, settings: impl IntoIterator<Item = S>) -> Result<Self> {
        let layers = match file {
            Some(path) => Layers::new().file(path)?,
            None => Layers::new(),
        };
        layers.process_environment()?.command_line(settings)?.resolve()
    }
}

impl TryFrom<Table> for Config {
    type Error = ConfigError;

    fn try_from(table: Table) -> Result<Self> {
        Layers::new().table(&table)?.resolve()
    }
}
