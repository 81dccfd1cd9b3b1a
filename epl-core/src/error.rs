//! What can go wrong before and during a step.

use epl_comm::{LaunchError, Rank};

/// An error of the core: the user's input, a peer, or a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed, on this rank or on a peer.
    #[error(transparent)]
    Communication(#[from] epl_comm::Error),
    /// The configuration is wrong; found before the first step.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The ranks that exist do not make the mesh that was asked for.
    #[error(transparent)]
    Cluster(#[from] crate::topology::cluster::ClusterError),
    /// The scopes around the model's parts cannot be laid out.
    #[error(transparent)]
    Layout(#[from] crate::topology::layout::LayoutError),
    /// The model cannot be laid out as asked; found before the first step.
    #[error("parameter `{name}`: {reason}")]
    Parameter {
        /// The parameter's path in the module.
        name: String,
        /// What is wrong, with the numbers and the remedy.
        reason: String,
    },
    /// The model, the optimizer and the configuration do not fit together.
    #[error("{0}")]
    Invalid(String),
    /// A file could not be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// Another run is under way in the folder of a run.
    #[error("{path} is in use by {holder}; wait for the end of that run, or choose another folder")]
    InUse {
        /// The folder.
        path: String,
        /// The process and its host, and since when, as far as they are known.
        holder: String,
    },
    /// The program was run for its plan, which is made: see `epl plan`.
    #[error("the plan is made, and the program ends here: EPL_PLAN asks for no more")]
    PlanOnly,
    /// A rank failed and ended the run.
    #[error("{rank}: {cause}")]
    Rank {
        /// The rank that failed first.
        rank: Rank,
        /// Why.
        cause: Box<Error>,
    },
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Communication(error.into())
    }
}

impl Error {
    /// An [`Error::Invalid`] with this message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// An [`Error::InUse`] of the folder `path`.
    pub(crate) fn in_use(path: &std::path::Path, holder: String) -> Self {
        Self::InUse { path: path.display().to_string(), holder }
    }

    /// The exit code for a program that ends with this error: 2 for a folder that [another run](Self::InUse) uses, 0 for a
    /// [plan](Self::PlanOnly) that was asked for, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::PlanOnly => 0,
            Self::InUse { .. } => 2,
            Self::Rank { cause, .. } => cause.exit_code(),
            _ => 1,
        }
    }

    /// An [`Error::File`] about `path`.
    pub fn file(path: impl AsRef<std::path::Path>, reason: impl ToString) -> Self {
        Self::File { path: path.as_ref().display().to_string(), reason: reason.to_string() }
    }
}

/// How many of the things that are in the way are told: the same may be wrong with every parameter.
const SHOWN: usize = 16;

/// What is in the way of a plan: told together, so that not every run shows one fault more.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<Error>);

impl Refusals {
    /// Adds one.
    pub fn add(&mut self, error: Error) {
        self.0.push(error);
    }

    /// What was found, or none, and the error is added.
    pub fn of<T>(&mut self, found: Result<T, impl Into<Error>>) -> Option<T> {
        found.map_err(|error| self.add(error.into())).ok()
    }

    /// Nothing where there is none.
    ///
    /// # Errors
    ///
    /// The only one as it is, or all of them as one.
    pub fn into_result(mut self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            count => {
                let mut all: Vec<String> = self.0.iter().take(SHOWN).map(|error| format!("- {error}")).collect();
                if count > SHOWN {
                    all.push(format!("- and {} more", count - SHOWN));
                }
                Err(Error::invalid(format!("{count} things are in the way:\n{}", all.join("\n"))))
            }
        }
    }
}
