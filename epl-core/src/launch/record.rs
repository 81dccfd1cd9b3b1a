//! The file with what every rank did.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use epl_comm::Trace;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::probe::write_trace;

/// A trace, which keeps nothing where nobody asks for it, and the file `profile.trace` to which it goes, where that is given.
pub(super) struct Record {
    trace: Trace,
    file: Option<PathBuf>,
}

impl Record {
    /// Of one worker, which has a file of its own: that of the option, or beside it. Whether it can be written shows
    /// before the first step, not after the last; what is there stays until then.
    pub(super) fn open(config: &Config, trace: Option<Trace>, worker: usize) -> Result<Self> {
        let file = Some(&config.profile.trace).filter(|file| !file.is_empty()).map(|file| of_worker(file, worker));
        if let Some(file) = &file {
            let opened = OpenOptions::new().append(true).create(true).open(file);
            opened.map_err(|error| Error::file(file, error))?;
        }
        let trace = trace.unwrap_or_else(|| if file.is_some() { Trace::new() } else { Trace::without_list() });
        Ok(Self { trace, file })
    }

    /// For one rank.
    pub(super) fn of_rank(&self) -> Trace {
        self.trace.with_own_switch()
    }

    /// Writes the file.
    pub(super) fn write(&self) -> Result<()> {
        match &self.file {
            // A program that only prints its plan leaves what is there.
            Some(file) if !self.trace.events().is_empty() || is_empty(file) => write_trace(&self.trace, file),
            _ => Ok(()),
        }
    }
}

/// `trace.json` of the first worker, `trace.worker1.json` of the second.
fn of_worker(file: &str, worker: usize) -> PathBuf {
    let path = Path::new(file);
    match (worker, path.file_stem(), path.extension()) {
        (0, ..) | (_, None, _) => path.to_path_buf(),
        (_, Some(stem), extension) => {
            let mut name = stem.to_os_string();
            name.push(format!(".worker{worker}"));
            if let Some(extension) = extension {
                name.push(".");
                name.push(extension);
            }
            path.with_file_name(name)
        }
    }
}

fn is_empty(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.len() == 0)
}

#[cfg(test)]
mod tests {
    use epl_comm::Rank;

    use super::*;

    #[test]
    fn every_worker_has_a_file_of_its_own() {
        let of = |file, worker| of_worker(file, worker).display().to_string();
        assert_eq!([of("out/t.json", 0), of("out/t.json", 1)], ["out/t.json", "out/t.worker1.json"]);
        assert_eq!(of("trace", 2), "trace.worker2");
    }

    #[test]
    fn nothing_is_kept_where_nobody_asks_for_it() {
        let of = |trace: Option<Trace>| Record::open(&Config::new(), trace, 0).unwrap();
        let (alone, given) = (of(None), of(Some(Trace::new())));
        let rank = alone.of_rank();
        // As an engine does whose settings say which steps a trace holds.
        rank.switch(true);
        rank.mark(Rank(0), "here");
        assert!(!rank.is_on() && alone.trace.events().is_empty());
        // Where somebody listens, it is told.
        let watch = rank.watch();
        rank.mark(Rank(0), "here");
        assert_eq!(watch.events().len(), 1);
        alone.write().unwrap();
        given.of_rank().mark(Rank(0), "here");
        assert_eq!(given.trace.events().len(), 1);
    }
}
