//! Reads folders that Hugging Face's `transformers` saved.
//!
//! ```text
//! config.json ──────────> JsonConfig ──> the model's own configuration (in the model's folder)
//! model.safetensors ────> Folder     ──┐
//!   or an index + parts                ├─> load: every rank reads the rows it holds of one tensor after another
//! names (path -> Source) ──────────────┘
//! io.safetensors ───────> Reference  ──> what transformers computed: inputs, logits, loss, gradients
//! ```
//!
//! - [`tensor_file`]: one safetensors file, tensor by tensor, row by row;
//! - [`json_config`]: `config.json`, with errors that name the key;
//! - [`folder`]: a model's folder: configuration and weights, in one file or in parts;
//! - [`source`]: how a parameter is put together from stored tensors;
//! - [`assign`]: fills a laid out model from a folder;
//! - [`mod@reference`]: inputs and outputs stored beside a model, for parity tests.
//!
//! The names of a model's parameters stand with the model: see [`t5`](crate::t5).

mod error;
pub mod tensor_file;
pub mod json_config;
pub mod folder;
pub mod source;
pub mod assign;
pub mod reference;

pub use assign::{Names, load};
pub use error::{Error, Result, WrongShape};
pub use folder::Folder;
pub use json_config::JsonConfig;
pub use reference::{Reference, read_io};
pub use source::Source;
pub use tensor_file::TensorFile;
