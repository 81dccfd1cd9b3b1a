//! A checkpoint of the engine in a folder, written at once. (The trainer writes its own while training goes on.)

use std::collections::BTreeMap;
use std::path::Path;

use epl_comm::ProcessGroup;

use super::Engine;
use crate::checkpoint::durable::{AtomicFolder, Disk, FileSystem};
use crate::checkpoint::finish;
use crate::error::{Error, Result};
use crate::model::segment::Segmented;
use crate::texts::faults;

impl<M: Segmented> Engine<M> {
    /// Writes a checkpoint into a folder, all ranks their parts: [`load`](Self::load) reads it under any layout. One that is
    /// there is replaced once the new one is whole. Collective; all ranks must see the same folder.
    ///
    /// # Errors
    ///
    /// When a file cannot be written, on this rank or on another.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.save_on(&FileSystem, folder)
    }

    /// The same on any disk.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    pub fn save_on(&self, disk: &dyn Disk, folder: impl AsRef<Path>) -> Result<()> {
        let (path, world) = (folder.as_ref(), self.context.world());
        let folder = AtomicFolder::new(path)?;
        let is_first = world.rank() == 0;
        agree(path, world, if is_first { folder.open(disk) } else { Ok(()) })?;
        let snapshot = self.snapshot();
        agree(path, world, snapshot.as_ref().map(drop).map_err(|error| Error::invalid(error.to_string())))?;
        agree(path, world, snapshot.and_then(|snapshot| snapshot.write_together(world, disk, folder.partial())))?;
        // Nobody reads it before it is whole.
        agree(path, world, if is_first { commit(disk, &folder, world.size()) } else { Ok(()) })
    }
}

/// What went wrong on any rank. Collective.
fn agree(folder: &Path, world: &ProcessGroup, own: Result<()>) -> Result<()> {
    match faults(world, &own.map_err(|error| error.to_string()))? {
        Some(reason) => Err(Error::file(folder, format!("the checkpoint could not be written: {reason}"))),
        None => Ok(()),
    }
}

/// Completes a checkpoint and gives it its name, in the place of one that is there.
fn commit(disk: &dyn Disk, folder: &AtomicFolder, ranks: usize) -> Result<()> {
    finish(disk, folder.partial(), ranks, BTreeMap::new())?;
    folder.commit(disk)?;
    folder.forget_replaced(disk)
}
