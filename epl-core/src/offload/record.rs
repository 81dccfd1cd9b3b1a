//! State in the form of Burn's own record, so that a checkpoint does not tell where the update ran.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use burn_pack::{Reader, Scalar, Writer};

use super::state::HostState;
use crate::error::{Error, Result};

/// A parameter in a record.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The value of its `ParamId`.
    pub id: u64,
    /// Its path in the module, by which Burn finds its group.
    pub path: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl HostState {
    /// What Burn's `ModuleOptimizer` would save after the same steps; `entries` are the parameters in the order of
    /// [`pieces`](Self::pieces). Tensors are read one at a time, when they are written.
    ///
    /// # Errors
    ///
    /// When the entries are not the parameters.
    pub fn record(&self, entries: &[Entry]) -> Result<Writer> {
        self.expect_entries(entries)?;
        let mut tensors = Vec::new();
        let stepped = || entries.iter().enumerate().filter(|(piece, _)| self.steps[*piece] > 0);
        for (piece, entry) in stepped() {
            for name in self.names(piece) {
                let read = self.reader(piece, name)?;
                let bytes = move || match read() {
                    Ok(data) => Ok(data.into_parts().0),
                    Err(error) => Err(burn_pack::Error::IoError(error.to_string())),
                };
                tensors.push(burn_pack::Tensor::deferred(
                    format!("{}.{name}", entry.id),
                    self.dtype,
                    entry.shape.clone(),
                    Some(entry.id),
                    self.pieces[piece].len() * self.dtype.size(),
                    bytes,
                ));
            }
        }
        let mut writer = Writer::new(tensors);
        for (piece, Entry { id, path, shape }) in stepped() {
            writer = writer.with_scalar(&format!("{id}.__rank"), Scalar::from(shape.len()));
            writer = writer.with_metadata(&id.to_string(), path);
            if let Some((name, steps)) = self.time(piece) {
                writer = writer.with_scalar(&format!("{id}.{name}"), Scalar::from(steps));
            }
        }
        Ok(writer)
    }

    /// Takes over what [`record`](Self::record), or Burn's `ModuleOptimizer`, has written. A parameter that is not in
    /// it has no state.
    ///
    /// # Errors
    ///
    /// When the record is of other parameters, or of another optimizer.
    pub fn load(&mut self, reader: Reader, entries: &[Entry]) -> Result<()> {
        self.expect_entries(entries)?;
        let failed = |error: burn_pack::Error| Error::invalid(format!("the optimizer's state cannot be read: {error}"));
        let scalars = reader.scalars().clone();
        let mut fields: BTreeMap<u64, BTreeMap<String, TensorData>> = BTreeMap::new();
        for tensor in reader.into_tensors().map_err(failed)? {
            let (name, dtype, shape, id, bytes) = tensor.into_parts().map_err(failed)?;
            let (Some(id), Some((_, field))) = (id, name.split_once('.')) else {
                return Err(Error::invalid(format!("`{name}` in a record of an optimizer is of no parameter")));
            };
            fields.entry(id).or_default().insert(field.to_string(), TensorData::from_bytes(bytes, shape, dtype));
        }
        for (piece, entry) in entries.iter().enumerate() {
            let time = match self.kind.time().and_then(|name| scalars.get(&format!("{}.{name}", entry.id))) {
                Some(Scalar::UInt(steps)) => usize::try_from(*steps).ok(),
                Some(other) => return Err(Error::invalid(format!("`{}` has made {other:?} steps", entry.path))),
                None => None,
            };
            let own = fields.remove(&entry.id).unwrap_or_default();
            self.set(piece, time, own)
                .map_err(|error| Error::Parameter { name: entry.path.clone(), reason: error.to_string() })?;
        }
        match fields.keys().next() {
            Some(id) => Err(Error::invalid(format!(
                "the optimizer's record has state of parameter {id}, which is none of the {} here",
                entries.len()
            ))),
            None => Ok(()),
        }
    }

    fn expect_entries(&self, entries: &[Entry]) -> Result<()> {
        if entries.len() != self.pieces.len() {
            return Err(Error::invalid(format!(
                "{} parameters were named, and the optimizer's state has {}",
                entries.len(),
                self.pieces.len()
            )));
        }
        for (entry, piece) in entries.iter().zip(&self.pieces) {
            if entry.shape.iter().product::<usize>() != piece.len() {
                return Err(Error::Parameter {
                    name: entry.path.clone(),
                    reason: format!("its shape is {:?}, and its place has {} elements", entry.shape, piece.len()),
                });
            }
        }
        Ok(())
    }
}
