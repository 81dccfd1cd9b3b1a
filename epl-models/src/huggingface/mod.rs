//! Reads folders that Hugging Face's `transformers` saved, and writes such.
//!
//! ```text
//! config.json ──────────> JsonConfig ──> the model's own configuration (in the model's folder)
//! model.safetensors ────> Folder     ──┐
//!   or an index + parts                ├─> load: every rank reads the rows it holds of one tensor after another
//! names (path <-> stored name) ────────┤
//! whole tensors ───────────────────────┴─> export: config.json and model.safetensors, tensor by tensor
//! io.safetensors ───────> Reference  ──> what transformers computed: inputs, logits, loss, gradients
//! ```
//!
//! - [`TensorFile`]: one safetensors file, tensor by tensor, row by row;
//! - [`JsonConfig`]: `config.json`, with errors that name the key;
//! - [`folder`]: a model's folder: configuration and weights, in one file or in parts;
//! - [`source`]: how a parameter is put together from stored tensors;
//! - [`name_table`]: the names of a model's parameters, ours and theirs, for both directions;
//! - [`assign`]: fills a laid out model from a folder; [`imported`]: a folder under our names, for a part of it;
//! - [`mod@export`]: writes a folder;
//! - [`mod@reference`]: inputs and outputs stored beside a model, for parity tests; `in_memory`: other names of gradients.
//!
//! The names of a model's parameters stand with the model: see [`t5`](crate::t5).

mod error;
mod tensor_file;
mod json_config;
pub mod folder;
pub mod source;
pub mod name_table;
pub mod assign;
pub mod imported;
pub mod export;
mod in_memory;
pub mod reference;

pub use assign::{Names, load};
pub use error::{Error, Result, WrongShape};
pub use export::Exported;
pub(crate) use export::{class_names, stage_names};
pub use folder::Folder;
pub use imported::Imported;
pub use json_config::JsonConfig;
pub(crate) use json_config::{activation_name, written_tokens};
pub use name_table::NameTable;
pub use reference::{Reference, read_io};
pub use source::Source;
pub use tensor_file::TensorFile;
