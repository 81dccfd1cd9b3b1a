//! `index.json`: what a checkpoint holds, and where.
//!
//! ```text
//! {"crc32": 1234567890, "index": {
//!    "format": 2, "versions": {..}, "state": {..}, "scalars": {..},
//!    "tensors": {"model/encoder.weight": {"dtype": "F32", "shape": [8, 6], "slices": [
//!        {"file": "rank-00000.safetensors", "start": [0, 0], "shape": [8, 3], "flat": [0, 24]}, ..]}, ..},
//!    "files": {"rank-00000.safetensors": {"bytes": 1234, "blocks": [..]}, ..}
//! }}
//! ```
//!
//! A slice is named by its place in the whole tensor, not by the rank or the layout that wrote it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use burn::tensor::DType;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::blocks::FileEntry;
use super::element::burn_dtype;
use super::region::{Region, check_tiling, numel_of};
use crate::checkpoint::durable::{Disk, replace_on};
use crate::error::{Error, Result};

/// The file's name.
pub(super) const NAME: &str = "index.json";

/// The format that is written. Format 1 was one file a rank, of one layout.
const FORMAT: u32 = 2;

/// The version of Burn that this is written for.
const BURN: &str = "0.22.1";

/// What a checkpoint holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// The version of the format.
    pub format: u32,
    /// The versions of what wrote it.
    pub versions: BTreeMap<String, String>,
    /// What else there is to know, by who keeps it: `engine`, `run`.
    pub state: BTreeMap<String, Value>,
    /// Single numbers of the optimizer's state, such as `optimizer/encoder.weight/time`.
    pub scalars: BTreeMap<String, Scalar>,
    /// All tensors, by name: `model/<path>`, `optimizer/<path>/<field>`.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The files that hold them.
    pub files: BTreeMap<String, FileEntry>,
}

/// A whole tensor, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The element type, as safetensors names it.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its slices: each element lies in one of them.
    pub slices: Vec<Slice>,
}

/// Some elements of a tensor in a file, where they have the tensor's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The file.
    pub file: String,
    /// Where the box begins that it is of.
    pub start: Vec<usize>,
    /// The shape of this box.
    pub shape: Vec<usize>,
    /// The elements of the box, flattened, that it has: the first, and the one after the last.
    pub flat: [usize; 2],
}

/// A number of the optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// A whole number of at least zero.
    Uint(u64),
    /// A whole number.
    Int(i64),
    /// Any number.
    Float(f64),
    /// Yes or no.
    Bool(bool),
}

impl From<burn_pack::Scalar> for Scalar {
    fn from(value: burn_pack::Scalar) -> Self {
        match value {
            burn_pack::Scalar::UInt(value) => Self::Uint(value),
            burn_pack::Scalar::Int(value) => Self::Int(value),
            burn_pack::Scalar::Float(value) => Self::Float(value),
            burn_pack::Scalar::Bool(value) => Self::Bool(value),
        }
    }
}

impl From<Scalar> for burn_pack::Scalar {
    fn from(value: Scalar) -> Self {
        match value {
            Scalar::Uint(value) => Self::UInt(value),
            Scalar::Int(value) => Self::Int(value),
            Scalar::Float(value) => Self::Float(value),
            Scalar::Bool(value) => Self::Bool(value),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uint(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Bool(value) => write!(f, "{value}"),
        }
    }
}

/// The index with its checksum.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Sealed<'a> {
    crc32: u32,
    #[serde(borrow)]
    index: &'a RawValue,
}

impl Index {
    /// An index of nothing.
    pub(super) fn new() -> Self {
        let versions = [("epl", env!("CARGO_PKG_VERSION")), ("burn", BURN)];
        let versions = versions.map(|(name, version)| (name.to_string(), version.to_string())).into();
        Self { format: FORMAT, versions, ..Self::default() }
    }

    /// Writes it into a folder.
    pub(super) fn write(&self, disk: &dyn Disk, folder: &Path, name: &str) -> Result<()> {
        let path = folder.join(name);
        let failed = |error: serde_json::Error| Error::file(&path, error);
        let index = serde_json::value::to_raw_value(self).map_err(failed)?;
        let sealed = Sealed { crc32: crc_of(index.get()), index: &index };
        replace_on(disk, &path, &serde_json::to_vec(&sealed).map_err(failed)?)
    }

    /// Reads it from a folder, and checks what can be checked without the files that it names.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let index = Self::read_part(folder, NAME)?;
        index.check().map_err(|error| damaged(&folder.join(NAME), &error.to_string()))?;
        Ok(index)
    }

    /// Reads what one rank has written.
    pub(super) fn read_part(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        let bytes = fs::read(&path).map_err(|error| Error::file(&path, error))?;
        let no_index = |error: serde_json::Error| damaged(&path, &format!("no index: {error}"));
        let sealed: Sealed<'_> = serde_json::from_slice(&bytes).map_err(no_index)?;
        let found = crc_of(sealed.index.get());
        if found != sealed.crc32 {
            return Err(damaged(&path, &format!("the index has checksum {found:08x}, and says {:08x}", sealed.crc32)));
        }
        // The format first: another one has other fields.
        let value: Value = serde_json::from_str(sealed.index.get()).map_err(no_index)?;
        match value.get("format").and_then(Value::as_u64) {
            Some(format) if format != u64::from(FORMAT) => {
                Err(Error::file(&path, format!("a checkpoint of format {format}; this version reads format {FORMAT}")))
            }
            _ => serde_json::from_value(value).map_err(no_index),
        }
    }

    /// Takes in the part of another rank.
    ///
    /// # Errors
    ///
    /// When both have the same file, or see a tensor differently.
    pub(super) fn join(&mut self, part: Self) -> Result<()> {
        for (name, entry) in part.tensors {
            match self.tensors.get_mut(&name) {
                None => drop(self.tensors.insert(name, entry)),
                Some(own) if (own.dtype, &own.shape) == (entry.dtype, &entry.shape) => own.slices.extend(entry.slices),
                Some(own) => {
                    return Err(Error::invalid(format!(
                        "`{name}` is {:?} of {:?} on one rank and {:?} of {:?} on another; build the model the same way \
                         on every rank",
                        own.dtype, own.shape, entry.dtype, entry.shape
                    )));
                }
            }
        }
        for (name, file) in part.files {
            if self.files.insert(name.clone(), file).is_some() {
                return Err(Error::invalid(format!("two ranks wrote {name}; give every rank a number of its own")));
            }
        }
        for (name, value) in part.scalars {
            // Of a parameter that is divided each slice has its own: they are alike.
            if let Some(own) = self.scalars.insert(name.clone(), value).filter(|own| *own != value) {
                return Err(Error::invalid(format!("`{name}` is {own} on one rank and {value} on another")));
            }
        }
        self.state.extend(part.state);
        Ok(())
    }

    /// Whether every tensor is there once, in files that may be there.
    pub(super) fn check(&self) -> Result<()> {
        self.files.iter().try_for_each(|(name, file)| check_file(name, file))?;
        let all = self.files.values().map(|file| file.bytes).fold(0, u64::saturating_add);
        self.tensors.iter().try_for_each(|(name, entry)| {
            self.check_tensor(entry, all).map_err(|error| Error::invalid(format!("tensor `{name}`: {error}")))
        })
    }

    /// `all` are the bytes of all files.
    fn check_tensor(&self, entry: &TensorEntry, all: u64) -> Result<()> {
        entry.burn_dtype()?;
        let numel = numel_of(&entry.shape)
            .ok_or_else(|| Error::invalid(format!("a shape of {:?} has too many elements", entry.shape)))?;
        let mut bytes = 0_u64;
        let mut regions = Vec::new();
        for slice in &entry.slices {
            let Some(file) = self.files.get(&slice.file) else {
                return Err(Error::invalid(format!("a slice is in {:?}, which is none of the files", slice.file)));
            };
            let region = entry.region(slice)?;
            let size = (entry.dtype.bitsize() / 8) as u64;
            bytes = bytes.saturating_add((region.numel() as u64).saturating_mul(size));
            if bytes > all || region.numel() as u64 > file.bytes {
                return Err(Error::invalid(format!(
                    "its slices have {bytes} bytes or more, and {:?} has {}",
                    slice.file, file.bytes
                )));
            }
            regions.push(region);
        }
        // None has more elements than there are bytes.
        let held: usize = regions.iter().map(Region::numel).sum();
        if held != numel {
            return Err(Error::invalid(format!("its slices have {held} elements, and it has {numel}")));
        }
        check_tiling(&regions, &entry.shape)
    }
}

/// A file's name may lead nowhere else.
fn check_file(name: &str, file: &FileEntry) -> Result<()> {
    let stem = name.strip_suffix(".safetensors").unwrap_or_default();
    if stem.is_empty() || !stem.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        return Err(Error::invalid(format!("{name:?} is no name of a file of a checkpoint")));
    }
    match file.count() == Some(file.blocks.len() as u64) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{name} has {} blocks for {} bytes, of which {} are its header's",
            file.blocks.len(),
            file.bytes,
            file.header
        ))),
    }
}

impl TensorEntry {
    /// The element type in Burn.
    ///
    /// # Errors
    ///
    /// When Burn has none such.
    pub fn burn_dtype(&self) -> Result<DType> {
        burn_dtype(self.dtype)
    }

    /// What one of its slices has.
    ///
    /// # Errors
    ///
    /// When it does not lie in the tensor.
    pub fn region(&self, slice: &Slice) -> Result<Region> {
        Region::new(&self.shape, slice.start.clone(), slice.shape.clone(), slice.flat[0]..slice.flat[1])
    }

    /// How many elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.numel() as u64 * (self.dtype.bitsize() as u64 / 8)
    }
}

impl Slice {
    /// The slice of a region in a file.
    pub(super) fn of(region: &Region, file: &str) -> Self {
        let flat = [region.flat().start, region.flat().end];
        Self { file: file.to_string(), start: region.start().to_vec(), shape: region.shape().to_vec(), flat }
    }

    /// The shape that it has in its file: that of the box where it is all of it.
    pub(super) fn stored_shape(region: &Region) -> Vec<usize> {
        if region.is_box() { region.shape().to_vec() } else { vec![region.numel()] }
    }
}

fn damaged(path: &Path, reason: &str) -> Error {
    Error::file(path, format!("{reason}: it is damaged; take another checkpoint"))
}

fn crc_of(text: &str) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(text.as_bytes());
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::BURN;

    #[test]
    fn the_version_of_burn_is_that_of_the_workspace() {
        let workspace = include_str!("../../../Cargo.toml");
        assert!(workspace.contains(&format!("\nburn = {{ version = \"{BURN}\"")), "{BURN}");
    }
}
