//! The folder of a run, before anything is written into it.

use std::path::{Path, PathBuf};

use epl::Config;
use epl::config::{ConfigError, Origin, ResumeMode};
use epl::trainer::launch_mark::goes_on;
use epl::trainer::{Checkpoints, check_unused};

/// Where a run lies, and how it begins.
#[derive(Clone, Debug)]
pub struct Folder {
    pub path: PathBuf,
    /// Whether a run that it may hold is replaced.
    pub replaces: bool,
}

/// Whether a run in this folder has come to a checkpoint.
pub fn is_saved(path: &Path) -> epl::Result<bool> {
    Ok(!Checkpoints::new(path, 1).steps()?.is_empty())
}

/// Where nobody names a folder, the run lies in this one.
pub fn by_default(mut config: Config, folder: &str) -> Result<Config, ConfigError> {
    if config.train.out.is_empty() {
        config.set("train.out", folder)?;
    }
    Ok(config)
}

impl Folder {
    /// That of a run which may be `short`, a matter of minutes: then it replaces an earlier one in a folder that the user has not
    /// named. `plan`: nothing is trained, as where `epl plan` runs the program.
    ///
    /// Refuses a folder in which a run is under way; one that holds another run, since its data belong to its checkpoints; and one
    /// that holds none to go on with.
    pub fn of(config: &Config, short: bool, plan: bool) -> epl::Result<Self> {
        let path = PathBuf::from(&config.train.out);
        let plan = plan || epl::is_planned();
        if !plan {
            check_unused(&path)?;
        }
        let (name, holds_run) = (path.display(), is_saved(&path)?);
        if config.train.resume == ResumeMode::Latest && !holds_run {
            return Err(epl::Error::invalid(format!(
                "{name} holds no checkpoint to go on from; give the folder of an earlier run, or leave --resume out"
            )));
        }
        let resumes = config.train.resume != ResumeMode::Never && holds_run;
        let replaces = short && !resumes && config.origin("train.out") == Origin::Code;
        if holds_run && !(resumes || plan || replaces) && !goes_on(&path)? {
            return Err(epl::Error::invalid(format!(
                "{name} holds a run; go on with it by `--out {name} --resume`, or choose another folder"
            )));
        }
        Ok(Self { path, replaces })
    }
}
