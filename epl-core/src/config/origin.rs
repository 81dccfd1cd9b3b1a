//! Where a value came from.

use std::fmt;
use std::path::PathBuf;

/// The layer that an option's value came from, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody gave one.
    Default,
    /// A TOML file.
    File {
        /// The file.
        path: PathBuf,
        /// The line the key stands in, counted from one.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// `--set key=value`.
    CommandLine,
    /// The program itself.
    Code,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::File { path, line } => write!(f, "file {}, line {line}", path.display()),
            Origin::Environment { variable } => write!(f, "environment variable {variable}"),
            Origin::CommandLine => write!(f, "command line"),
            Origin::Code => write!(f, "code"),
        }
    }
}
