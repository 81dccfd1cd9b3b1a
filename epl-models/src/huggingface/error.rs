use std::fmt;
use std::io;
use std::path::PathBuf;

use epl_core::tensors::listed;

/// What can be wrong with a folder of weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },

    /// A file is not what its name says.
    #[error("{} is damaged or of another format: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },

    /// The folder holds no weights in a format that is read here.
    #[error(
        "{} holds neither `model.safetensors` nor `model.safetensors.index.json`; \
         save the model with `save_pretrained(folder, safe_serialization=True)`",
        folder.display()
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },

    /// The architecture is not one that this crate has.
    #[error("{} is a `{model_type}`, which is not supported; supported are {supported}", folder.display())]
    Unsupported {
        /// The folder.
        folder: PathBuf,
        /// `model_type` of its `config.json`.
        model_type: String,
        /// The architectures that the reader knows.
        supported: &'static str,
    },

    /// A key of `config.json` is missing or has a value that the model does not have.
    #[error("{}: `{key}` {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with its value.
        reason: String,
    },

    /// The stored tensors do not fit the model.
    #[error("{}: the weights do not fit the model{}{}{}",
        folder.display(),
        listed("missing", missing),
        listed("not in the model", unexpected),
        listed("of another shape", shapes))]
    Weights {
        /// The folder.
        folder: PathBuf,
        /// Tensors that the model needs and the folder lacks.
        missing: Vec<String>,
        /// Stored tensors that the model has no parameter for.
        unexpected: Vec<String>,
        /// Tensors whose shape differs.
        shapes: Vec<WrongShape>,
    },

    /// What is stored contradicts itself.
    #[error("{}: {reason}", path.display())]
    Contradiction {
        /// The folder.
        path: PathBuf,
        /// What contradicts what.
        reason: String,
    },

    /// A model that `transformers` cannot express.
    #[error("`{field}` {reason}")]
    Export {
        /// The field of the model's configuration.
        field: &'static str,
        /// What `transformers` has instead, and what to do.
        reason: String,
    },

    /// A tensor that is to be exported could not be read, or a file not be written.
    #[error(transparent)]
    Core(Box<epl_core::Error>),

    /// Stored inputs that the model cannot be given.
    #[error("{}: {reason}", path.display())]
    Reference {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// A stored tensor whose shape is not the parameter's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongShape {
    /// The stored name or names.
    pub name: String,
    /// The shape that the stored tensors give.
    pub stored: Vec<usize>,
    /// The shape of the parameter.
    pub needed: Vec<usize>,
}

impl fmt::Display for WrongShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?} where the model has {:?}", self.name, self.stored, self.needed)
    }
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl From<Error> for epl_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => *error,
            error => Self::invalid(error.to_string()),
        }
    }
}

impl Error {
    /// What the core said.
    pub(crate) fn core(error: epl_core::Error) -> Self {
        Self::Core(Box::new(error))
    }

    /// A value of a model's configuration that `transformers` has not.
    pub(crate) fn export(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Export { field, reason: reason.into() }
    }
}
