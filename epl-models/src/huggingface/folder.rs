//! A model's folder: its configuration and its weights, in one file or in parts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData};
use epl_core::tensors::{TensorInfo, WholeTensors, check_ranges, cut};
use serde::Deserialize;

use super::error::{Error, Result};
use super::json_config::JsonConfig;
use super::tensor_file::TensorFile;

/// A folder as `save_pretrained` writes it. Opening it reads headers only.
///
/// ```
/// # use epl_core::{Config, launch};
/// # use epl_models::decoder::{self, DecoderConfig};
/// use epl_models::huggingface::Folder;
///
/// # let path = tempfile::tempdir().expect("there is room for a folder");
/// # let path = path.path();
/// # let shape = DecoderConfig::new(50).with_d_model(16).with_d_ff(32).with_heads(2).with_layers(1).with_positions(8);
/// # launch(&Config::new(), |epl| Ok(decoder::export(&shape, &epl.build(|at| shape.init(at))?.parameters()?, path)?))?;
/// std::fs::write(path.join("generation_config.json"), r#"{"eos_token_id": [7, 9]}"#).expect("it can be written");
/// let folder = Folder::open(path)?; // a small GPT-2
/// assert_eq!(folder.model_type()?, "gpt2");
/// assert_eq!(folder.shape("transformer.wte.weight"), Some(&[50, 16][..]));
/// assert_eq!(folder.rows("transformer.wte.weight", 3..5)?.shape().to_vec(), [2, 16]); // no more of the file is read
/// assert_eq!(folder.end_tokens(&[])?, [7, 9]); // not what `config.json` says
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    config: JsonConfig,
    /// `generation_config.json`, if there is one.
    generation: Option<JsonConfig>,
    files: Vec<TensorFile>,
    /// In which file a tensor is.
    places: HashMap<String, usize>,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    /// Reads `config.json`, `generation_config.json` if there is one, and the headers of the weights.
    ///
    /// # Errors
    ///
    /// [`Error::NoWeights`], [`Error::File`], [`Error::Format`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let config = JsonConfig::open(path.join("config.json"))?;
        let generation = path.join("generation_config.json");
        let generation = if generation.is_file() { Some(JsonConfig::open(generation)?) } else { None };
        let (whole, index) = (path.join("model.safetensors"), path.join("model.safetensors.index.json"));
        let files = if whole.is_file() {
            vec![TensorFile::open(whole)?]
        } else if index.is_file() {
            open_parts(&path, &index)?
        } else {
            return Err(Error::NoWeights { folder: path });
        };
        let names = |(index, file): (usize, &TensorFile)| file.names().into_iter().map(move |name| (name, index));
        let places = files.iter().enumerate().flat_map(names).collect();
        Ok(Self { path, config, generation, files, places })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys of its `config.json`.
    pub fn config(&self) -> &JsonConfig {
        &self.config
    }

    /// The tokens that end a text, which `eos_token_id` says as a number, a list, or null for none: that of
    /// `generation_config.json`, where that file has the key, as it may name more of them than `config.json`; else that of
    /// `config.json`; and `default` where neither has it. Where a `generation_config.json` lacks the key, nothing ends a text in
    /// `transformers`.
    ///
    /// Nothing else of that file is read: a [`GenerationConfig`](crate::generation::GenerationConfig) alone says how tokens are
    /// chosen, and `config.json` what pads and begins a text.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when it is something else, with the file.
    pub fn end_tokens(&self, default: &[i64]) -> Result<Vec<i64>> {
        let saying = self.generation.iter().chain([&self.config]).find(|json| json.says("eos_token_id"));
        saying.map_or_else(|| Ok(default.to_vec()), |json| json.tokens("eos_token_id"))
    }

    /// The architecture, such as `t5`; of a folder of timm, which calls it so, such as `resmlp_12_224`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `config.json` does not say.
    pub fn model_type(&self) -> Result<&str> {
        let is_timm = !self.config.says("model_type") && self.config.says("architecture");
        self.config.text(if is_timm { "architecture" } else { "model_type" })
    }

    /// Refuses a folder of another architecture than the one that is read.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] with both names, [`Error::Config`] when `config.json` does not say.
    pub(crate) fn require(&self, supported: &'static str) -> Result<()> {
        match self.model_type()? {
            model_type if model_type == supported => Ok(()),
            other => Err(self.unsupported(other, supported)),
        }
    }

    /// That a folder's architecture is not among those that are read.
    pub(crate) fn unsupported(&self, model_type: &str, supported: &'static str) -> Error {
        Error::Unsupported { folder: self.path().to_path_buf(), model_type: model_type.to_string(), supported }
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The shape of a tensor, if it is stored.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.file(name)?.shape(name)
    }

    /// The element type of a tensor, if it is stored and Burn has that type.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.file(name)?.dtype(name)
    }

    /// A whole tensor.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] when it is not stored, or of a type that Burn has not; [`Error::File`].
    pub fn read(&self, name: &str) -> Result<TensorData> {
        self.file_of(name)?.read(name)
    }

    /// Some rows (entries of the first dim) of a tensor.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<TensorData> {
        self.file_of(name)?.rows(name, rows)
    }

    fn file(&self, name: &str) -> Option<&TensorFile> {
        self.places.get(name).map(|index| &self.files[*index])
    }

    fn file_of(&self, name: &str) -> Result<&TensorFile> {
        let missing = || Error::Format { path: self.path.clone(), reason: format!("it has no tensor `{name}`") };
        self.file(name).ok_or_else(missing)
    }
}

/// Under the stored names, as they are stored; [`Imported`](super::Imported) gives them ours.
impl WholeTensors for Folder {
    fn names(&self) -> Vec<String> {
        Folder::names(self).map(String::from).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        Some(TensorInfo { shape: self.shape(name)?.to_vec(), dtype: self.dtype(name)? })
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> epl_core::Result<TensorData> {
        let shape = self.shape(name).unwrap_or_default();
        check_ranges(name, shape, ranges)?;
        let [rows, inner @ ..] = ranges else { return Ok(Folder::read(self, name)?) };
        let read = self.rows(name, rows.clone())?;
        Ok(cut(read, &[&[0..rows.len()], inner].concat()))
    }
}

/// The files that an index names, each once.
fn open_parts(folder: &Path, index: &Path) -> Result<Vec<TensorFile>> {
    let text = std::fs::read(index).map_err(|cause| Error::File { path: index.to_path_buf(), cause })?;
    let damaged = |reason: String| Error::Format { path: index.to_path_buf(), reason };
    let parsed: Index = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let parts: BTreeSet<&str> = parsed.weight_map.values().map(String::as_str).collect();
    if let Some(part) = parts.iter().find(|part| Path::new(part).file_name() != Some(part.as_ref())) {
        return Err(damaged(format!("`{part}` is not the name of a file in the folder")));
    }
    let files: Vec<TensorFile> = parts.iter().map(|part| TensorFile::open(folder.join(part))).collect::<Result<_>>()?;
    let stored: BTreeSet<String> = files.iter().flat_map(TensorFile::names).collect();
    match parsed.weight_map.keys().find(|name| !stored.contains(*name)) {
        Some(name) => Err(damaged(format!("`{name}` should be in {}, but is not", parsed.weight_map[name]))),
        None => Ok(files),
    }
}
