//! What a checkpoint holds, in words.

use std::io::{self, Write};
use std::path::Path;

use epl::checkpoint::{Checkpoint, TensorEntry, names};
use serde_json::Value;

/// One line.
pub fn line(checkpoint: &Checkpoint, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", in_words(checkpoint))
}

/// Its name, steps, tensors and bytes.
pub fn in_words(checkpoint: &Checkpoint) -> String {
    let index = checkpoint.index();
    let steps = index.state.get("engine").and_then(|engine| engine["steps"].as_u64());
    format!(
        "{} · {} steps · {} tensors in {} files · {}",
        checkpoint.folder().display(),
        steps.map_or("unknown".to_string(), |steps| steps.to_string()),
        index.tensors.len(),
        index.files.len(),
        bytes(index.files.values().map(|file| file.bytes).sum())
    )
}

/// A checkpoint that cannot be read.
pub fn damaged(folder: &Path, error: &epl::Error) -> String {
    format!("damaged: {} · {error}", folder.display())
}

/// All that there is to know but the elements.
pub fn one(checkpoint: &Checkpoint, tensors: bool, out: &mut impl Write) -> io::Result<()> {
    let index = checkpoint.index();
    line(checkpoint, out)?;
    let versions: Vec<String> = index.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    writeln!(out, "written by {} in format {}", versions.join(", "), index.format)?;
    for (who, state) in &index.state {
        let Value::Object(fields) = state else { continue };
        for (field, value) in fields.iter().filter(|(_, value)| !value.is_object()) {
            writeln!(out, "{who}.{field}: {value}")?;
        }
    }
    for kind in names::KINDS {
        let of_kind = || index.tensors.iter().filter(|(name, _)| name.starts_with(kind)).map(|(_, entry)| entry);
        let (elements, size) =
            (of_kind().map(TensorEntry::numel).sum::<usize>(), of_kind().map(TensorEntry::bytes).sum());
        writeln!(out, "{kind}: {} tensors, {elements} elements, {}", of_kind().count(), bytes(size))?;
    }
    for (name, entry) in index.tensors.iter().filter(|_| tensors) {
        writeln!(out, "{name}  {:?} {:?}", entry.dtype, entry.shape)?;
        for slice in &entry.slices {
            let [from, to] = slice.flat;
            writeln!(out, "    {}: {:?} at {:?}, elements {from}..{to}", slice.file, slice.shape, slice.start)?;
        }
    }
    Ok(())
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
    let mut unit = 0;
    let mut value = count as f64;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    if unit == 0 { format!("{count} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}
