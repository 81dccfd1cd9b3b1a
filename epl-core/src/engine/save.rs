//! The engine in a checkpoint: this rank's share of one, one in a folder that is written at once (the trainer writes its own
//! while training goes on), and back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use epl_comm::ProcessGroup;

use super::rank::Engine;
use crate::checkpoint::durable::{AtomicFolder, Disk, FileSystem};
use crate::checkpoint::{Checkpoint, Snapshot, finish};
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::texts::faults;

impl<M: Model> Engine<M> {
    /// This rank's share of a checkpoint: parameters and optimizer state that it keeps, and of what its replicas keep as well,
    /// its part. What lies on a device of its own, and what Burn's optimizer keeps, is copied to the host; a tensor there is
    /// copied once it is changed. No communication.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot<'_>> {
        self.state.snapshot(&self.plan, &self.context)
    }

    /// Goes on where the checkpoint in a folder stands, whichever layout saved it. This rank reads what it keeps, tensor by
    /// tensor. No communication; every rank must do it.
    ///
    /// # Errors
    ///
    /// When there is no checkpoint, it is damaged, or of another model or optimizer: the file, and the tensor. What was read
    /// before that is not taken back: the engine is not to be used then.
    pub fn load(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        self.restore(&Arc::new(Checkpoint::open(folder)?))
    }

    /// The same from an opened checkpoint.
    pub(crate) fn restore(&mut self, checkpoint: &Arc<Checkpoint>) -> Result<()> {
        let (setup, state) = self.parts();
        state.restore(setup, checkpoint)
    }

    /// Writes a checkpoint into a folder, all ranks their parts: [`load`](Self::load) reads it under any layout. One that is
    /// there is replaced once the new one is whole. Collective; all ranks must see the same folder.
    ///
    /// ```
    /// # use burn::{nn::{Linear, LinearConfig}, optim::AdamWConfig, tensor::Tensor};
    /// # use epl_core::{Config, Engine, Epl, Result, WithLoss, checkpoint::Checkpoint, launch};
    /// # fn build(epl: &Epl) -> Result<Engine<WithLoss<Linear, Tensor<2>>>> {
    /// #     let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
    /// #     Engine::build(epl, |at| WithLoss::new(LinearConfig::new(8, 1).init(at), loss), &AdamWConfig::new())
    /// # }
    /// # let folder = tempfile::tempdir().expect("there is room for a folder");
    /// # let folder = folder.path().join("step-1");
    /// launch(&Config::new().with("cluster.ranks", 2)?, |epl| {
    ///     let mut engine = build(&epl)?;
    ///     engine.train_batch(&Tensor::ones([6, 8], epl.place().device()), 0.01)?;
    ///     engine.save(&folder)
    /// })?;
    /// // Three ranks go on.
    /// launch(&Config::new().with("cluster.ranks", 3)?, |epl| {
    ///     let mut engine = build(&epl)?;
    ///     engine.load(&folder)?;
    ///     assert_eq!(engine.steps(), 1);
    ///     Ok(())
    /// })?;
    /// // No rank at all is needed to look into it.
    /// assert_eq!(Checkpoint::open(&folder)?.read_whole("model/weight")?.shape().to_vec(), [8, 1]);
    /// # Ok::<_, epl_core::Error>(())
    /// ```
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
