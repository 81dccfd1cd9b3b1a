//! The folder of a run, before anything is written into it.

use std::path::PathBuf;

use epl::trainer::check_unused;
use epl::trainer::launch_mark::goes_on;

/// What a command line says of the folder.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Whether a run in it is to go on.
    pub resume: bool,
    /// Whether a run that it may hold is replaced.
    pub replace: bool,
    /// Whether nothing is trained.
    pub plan: bool,
}

impl Wanted {
    /// Refuses a folder in which a run is under way; one that holds another run, since its data belong to its checkpoints; and one
    /// that holds none to go on with.
    pub fn check(self, out: PathBuf) -> epl::Result<PathBuf> {
        if !self.plan {
            check_unused(&out)?;
        }
        let (name, holds_run) = (out.display(), out.join("checkpoints").exists());
        if self.resume && !holds_run {
            return Err(epl::Error::invalid(format!(
                "{name} holds no checkpoint to go on from; give the folder of an earlier run, or leave --resume out"
            )));
        }
        if holds_run && !(self.resume || self.plan || self.replace) && !goes_on(&out)? {
            return Err(epl::Error::invalid(format!(
                "{name} holds a run; go on with it by `--out {name} --resume`, or choose another folder"
            )));
        }
        Ok(out)
    }
}
