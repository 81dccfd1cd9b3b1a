//! Which checkpoints a path names.

use std::path::{Path, PathBuf};

use epl::checkpoint::Checkpoint;
use epl::trainer::{CheckpointId, Checkpoints};
use epl::{Error, Result};

/// The folder itself, if it is a checkpoint; else those of the run, ascending. As the loader finds them: what a crash left
/// without its name is under the one that it has.
pub fn find(path: &Path) -> Result<Vec<PathBuf>> {
    if let Some(found) = Checkpoint::find(path) {
        return Ok(vec![found]);
    }
    let run = if path.ends_with("checkpoints") { path.parent().unwrap_or(path) } else { path };
    let checkpoints = Checkpoints::new(run, 1);
    let steps = checkpoints.steps()?.into_iter();
    // A run that trains may have removed one meanwhile.
    let found: Vec<PathBuf> = steps.filter_map(|step| checkpoints.find(CheckpointId::Step(step)).ok()).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(Error::file(
            path,
            "here is no checkpoint; give the folder of a run, such as out/numbers, or of a checkpoint, such as \
             out/numbers/checkpoints/step-100",
        )),
    }
}
