//! `files.json`: the sizes and checksums of one rank's files.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::trainer::durable::{replace, sync_folder};

const NAME: &str = "files.json";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    crc32: u32,
}

/// Makes the files of a folder durable and notes their sizes and checksums.
pub(super) fn seal(folder: &Path) -> Result<()> {
    let error = |error| Error::file(folder, error);
    let mut entries = Vec::new();
    for file in fs::read_dir(folder).map_err(error)? {
        let path = file.map_err(error)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = File::open(&path).map_err(|error| Error::file(&path, error))?;
        file.sync_all().map_err(|error| Error::file(&path, error))?;
        entries.push(measure(name, &path, file)?);
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let text = serde_json::to_vec_pretty(&entries).map_err(|error| Error::file(folder.join(NAME), error))?;
    replace(&folder.join(NAME), &text)?;
    sync_folder(folder)
}

/// Checks that the files of a folder are those that were sealed.
pub(super) fn verify(folder: &Path) -> Result<()> {
    let path = folder.join(NAME);
    let text = fs::read(&path).map_err(|error| Error::file(&path, error))?;
    let entries: Vec<Entry> =
        serde_json::from_slice(&text).map_err(|error| Error::file(&path, format!("not a list of files: {error}")))?;
    for entry in entries {
        let path = folder.join(&entry.name);
        let file = File::open(&path).map_err(|error| Error::file(&path, error))?;
        let found = measure(entry.name.clone(), &path, file)?;
        if found != entry {
            return Err(Error::file(
                &path,
                format!(
                    "the file is damaged: {}, and {} were saved; resume from another checkpoint",
                    shown(found.bytes, found.crc32),
                    shown(entry.bytes, entry.crc32)
                ),
            ));
        }
    }
    Ok(())
}

/// What tells some bytes from others in a checkpoint, such as a tokenizer that is too large to be kept in it: see
/// [`Trainer::with_invariant`](crate::Trainer::with_invariant).
pub fn fingerprint(bytes: &[u8]) -> String {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    shown(bytes.len() as u64, crc.sum())
}

fn shown(bytes: u64, crc32: u32) -> String {
    format!("{bytes} bytes with checksum {crc32:08x}")
}

fn measure(name: String, path: &Path, mut file: File) -> Result<Entry> {
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let count = file.read(&mut buffer).map_err(|error| Error::file(path, error))?;
        if count == 0 {
            return Ok(Entry { name, bytes, crc32: crc.sum() });
        }
        crc.update(&buffer[..count]);
        bytes += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_have_another_fingerprint() {
        assert_eq!(fingerprint(b"123456789"), "9 bytes with checksum cbf43926");
        assert_ne!(fingerprint(b"123456789"), fingerprint(b"123456798"));
    }

    #[test]
    fn a_changed_a_shortened_and_a_missing_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.bin");
        fs::write(&file, [1, 2, 3, 4]).unwrap();
        seal(folder.path()).unwrap();
        verify(folder.path()).unwrap();
        for damaged in [&[1, 2, 3, 5][..], &[1, 2]] {
            fs::write(&file, damaged).unwrap();
            let message = verify(folder.path()).unwrap_err().to_string();
            assert!(message.contains("model.bin") && message.contains("damaged"), "{message}");
        }
        fs::remove_file(&file).unwrap();
        assert!(verify(folder.path()).unwrap_err().to_string().contains("model.bin"));
    }
}
