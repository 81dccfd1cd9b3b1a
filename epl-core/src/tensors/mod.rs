//! Whole tensors by name, wherever they are kept: read in slices, given to a model, written to a file.
//!
//! ```text
//! Engine::parameters()      ─┐                ┌─▶ assign: a laid out model; every rank reads its slices, by an AssignMap
//! a checkpoint, a Burn record┼▶ WholeTensors ─┼─▶ save_burnpack, save_safetensors: a record that plain Burn loads
//! a folder of Hugging Face  ─┘                └─▶ a folder of Hugging Face (epl-models)
//! ```
//!
//! - [`source`]: what can be read;
//! - `slice`: ranges of tensors on the host;
//! - [`map`]: which stored tensor goes where, in the user's words;
//! - `resolve`: the same for every parameter, or all that does not fit;
//! - `assigning`: fills a model;
//! - [`stream`]: safetensors files, written tensor by tensor;
//! - [`record`]: Burn's records;
//! - `stored`: the parameters of a checkpoint.

pub mod source;
mod slice;
pub mod map;
mod resolve;
mod assigning;
pub mod stream;
pub mod record;
mod stored;

pub use assigning::assign;
pub use map::{AssignMap, Assignment};
pub use record::{BurnRecord, save_burnpack, save_safetensors};
pub use resolve::listed;
pub use slice::cut;
pub use source::{TensorInfo, WholeTensors, check_ranges};
pub use stored::StoredParameters;
pub use stream::{Streamed, write_safetensors};
