//! Files and folders that are either as before or as after, whenever the machine stops.
//!
//! Everything that must outlive a crash is written through a [`Disk`], so that a test can take one that loses what was not
//! synced, stops in the middle, or is full.
//!
//! - `disk`: what changes files and folders;
//! - `file`: a file that is whole before it has its name;
//! - `folder`: the same for a folder;
//! - `once`: a folder that one process of a machine makes for all.

mod disk;
mod file;
mod folder;
mod once;

pub use disk::{Disk, DiskFile, FileSystem};
pub use file::{Partial, Unpublished, publish_all, replace};
pub use once::once;

pub(crate) use disk::{create_folder, remove_folder, rename, sync_folder, sync_parent};
pub(crate) use file::replace_on;
pub(crate) use folder::{AtomicFolder, found};
