//! What programs share that train on corpora of tokens: they are given, or made below the folder of a run.
//!
//! - `out`: the folder of a run, before anything is written into it.

pub mod out;

use std::error::Error;
use std::path::{Path, PathBuf};

use epl::checkpoint::durable;
use epl::models::indexed::{IndexedCorpus, held_out_prefix, write};

/// The folder below a run's that holds what is made of these things, in whose name they are: made now, unless it was before. One
/// process of a machine makes it, and the others wait.
pub fn made(
    out: &Path,
    of: Vec<String>,
    make: impl FnOnce(&Path) -> Result<(), Box<dyn Error>>,
) -> Result<PathBuf, Box<dyn Error>> {
    let fingerprint = epl::trainer::fingerprint(of);
    let folder = out.join("data").join(fingerprint.rsplit(' ').next().unwrap_or("corpus"));
    durable::once(&folder, |partial| {
        println!("making corpora in {}", folder.display());
        make(partial)
    })?;
    Ok(folder)
}

/// The corpus of held-out texts beside another one.
pub fn held_out(prefix: &Path) -> epl::Result<IndexedCorpus> {
    let held_out = held_out_prefix(prefix);
    if let Some(missing) = write::files(&held_out).into_iter().find(|path| !path.exists()) {
        return Err(epl::Error::invalid(format!(
            "{} is not there, and a run is judged by it: write it with `epl-corpus --held-out N`",
            missing.display()
        )));
    }
    IndexedCorpus::open(held_out)
}
