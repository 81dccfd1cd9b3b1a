//! `evaluation.json`: what an evaluation of the checkpoint found. A checkpoint without one was not evaluated to the end.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checkpoint::durable::{Disk, replace_on};
use crate::error::{Error, Result};
use crate::trainer::record::Evaluation;

const NAME: &str = "evaluation.json";

/// An evaluation as JSON holds it.
#[derive(Serialize, Deserialize)]
struct Note {
    step: u64,
    /// In their order; what is not finite is null.
    values: Vec<(String, Option<f64>)>,
    seconds: f64,
}

/// Writes the note into the folder of a checkpoint.
pub(super) fn write(disk: &dyn Disk, checkpoint: &Path, evaluation: &Evaluation) -> Result<()> {
    let path = checkpoint.join(NAME);
    let values = evaluation.values.iter().map(|(name, value)| (name.clone(), Some(*value).filter(|v| v.is_finite())));
    let note = Note { step: evaluation.step, values: values.collect(), seconds: evaluation.time.as_secs_f64() };
    let text = serde_json::to_vec_pretty(&note).map_err(|error| Error::file(&path, error))?;
    replace_on(disk, &path, &text)
}

/// Reads the note; none if there is none.
pub(super) fn read(checkpoint: &Path) -> Result<Option<Evaluation>> {
    text(checkpoint)?.map(|text| of(checkpoint, &text)).transpose()
}

/// The text of the note; none if there is none.
pub(super) fn text(checkpoint: &Path) -> Result<Option<String>> {
    let path = checkpoint.join(NAME);
    match fs::read_to_string(&path) {
        // A file without anything in it is a damaged note, and not none.
        Ok(text) => Ok(Some(if text.is_empty() { " ".into() } else { text })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(&path, error)),
    }
}

/// What a note says.
pub(super) fn of(checkpoint: &Path, text: &str) -> Result<Evaluation> {
    let damaged = |error: String| Error::file(checkpoint.join(NAME), format!("not the note of an evaluation: {error}"));
    let note: Note = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    let values = note.values.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN)));
    let time = Duration::try_from_secs_f64(note.seconds).map_err(|error| damaged(error.to_string()))?;
    Ok(Evaluation { step: note.step, values: values.collect(), time })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::durable::FileSystem;

    #[test]
    fn a_note_is_read_as_it_was_written_and_nothing_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let values = vec![("valid_loss".to_string(), 1.0 / 3.0), ("bleu".to_string(), f64::NAN)];
        let written = Evaluation { step: 7, values, time: Duration::from_millis(1500) };
        write(&FileSystem, folder.path(), &written).unwrap();
        let got = read(folder.path()).unwrap().unwrap();
        assert_eq!((got.step, got.time, got.get("valid_loss")), (7, written.time, Some(1.0 / 3.0)));
        assert!(got.get("bleu").unwrap().is_nan());
        fs::write(folder.path().join(NAME), "{").unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("evaluation.json"));
    }
}
