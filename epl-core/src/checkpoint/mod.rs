//! Checkpoints that belong to no layout.
//!
//! ```text
//! FOLDER/index.json               every tensor by its global name: shape, element type, which slice lies in which file
//!        rank-00000.safetensors   the slices that one rank wrote
//!        rank-00001.safetensors
//!
//! layout A   rank 0 [ a a a ┆ b ]  rank 1 [ b b b ┆ c ]       each rank writes what it keeps, replicas share the work
//! file                  index: a = 0..3, b = 0..4, ...
//! layout B   rank 0 [ a a ]  rank 1 [ a b b ]  rank 2 [ ... ]  each rank reads the elements that it keeps
//! ```
//!
//! A tensor is written in slices that are named by their place in the whole, so that any layout can read what any other
//! has written, each rank its own part, and no rank the whole. Every block of a file has a checksum; the index has one,
//! too, and is written last: a folder without it is no checkpoint.
//!
//! - [`durable`]: files and folders that outlive a crash.
//! - [`names`]: what tensors are called.
//! - [`region`]: some elements of a tensor, and what two such selections share.
//! - `element`: element types, as Burn and as safetensors names them.
//! - `blocks`: files in blocks with checksums.
//! - [`index`]: the file `index.json`.
//! - [`snapshot`]: what a rank keeps at one moment, and its file.
//! - [`reader`]: an opened checkpoint.
//! - `differences`, [`mod@compare`]: where two checkpoints differ.

pub mod durable;
pub mod names;
pub mod region;
mod element;
mod blocks;
pub mod index;
pub mod snapshot;
pub mod reader;
mod differences;
pub mod compare;

pub use blocks::FileEntry;
pub use compare::{Compared, compare};
pub use element::burn_dtype;
pub(crate) use element::stored_dtype;
pub use index::{Index, Scalar, Slice, TensorEntry};
pub use reader::Checkpoint;
pub use region::Region;
pub use snapshot::{Away, Snapshot, SnapshotPiece, TensorValues};

pub(crate) use differences::{Difference, differences};
pub(crate) use snapshot::{LOOK, finish, part_path};
