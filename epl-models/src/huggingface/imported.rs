//! A folder as if it had been stored under our own names, for assignment maps.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::tensor::TensorData;
use epl_core::tensors::{TensorInfo, WholeTensors, check_ranges};

use super::assign::Names;
use super::folder::Folder;
use super::source::Source;

/// The tensors of a folder under the paths of our parameters, transposed, stacked and taken apart as these are; under their own names
/// where no parameter has one. Copies of tied weights and buffers that a model does not need are not among them.
///
/// ```no_run
/// # use epl_core::{LaidOutModel, Result, tensors::AssignMap};
/// # use epl_models::{T5, huggingface::Imported, t5::{self, T5Names}};
/// # fn example(built: LaidOutModel<T5>) -> Result<()> {
/// let (folder, _) = t5::open("t5-small")?;
/// let names = T5Names::new(&folder)?;
/// // A model of another depth: every block starts as the first one of the folder.
/// let map = AssignMap::identity()
///     .with("encoder.blocks.0", "encoder.blocks.*")
///     .with("decoder.blocks.0", "decoder.blocks.*")
///     .allow_unused("encoder.blocks")
///     .allow_unused("decoder.blocks");
/// let built = built.assign(&Imported::new(&folder, &names), &map)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Imported<'a, N> {
    folder: &'a Folder,
    names: &'a N,
}

impl<'a, N: Names> Imported<'a, N> {
    /// A folder, and the names of its model.
    pub fn new(folder: &'a Folder, names: &'a N) -> Self {
        Self { folder, names }
    }

    /// Where what has a name here stands in the folder.
    fn source(&self, name: &str) -> Source {
        self.names.source(name).unwrap_or_else(|| Source::Same(name.to_string()))
    }
}

impl<N: Names> WholeTensors for Imported<'_, N> {
    fn names(&self) -> Vec<String> {
        let names = |stored: &str| match self.names.paths(stored) {
            paths if !paths.is_empty() => paths,
            _ if self.names.may_be_left(stored) => Vec::new(),
            _ => vec![stored.to_string()],
        };
        self.folder.names().flat_map(names).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let source = self.source(name);
        let dtype = self.folder.dtype(source.names().first()?)?;
        Some(TensorInfo { shape: source.shape(self.folder)?, dtype })
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> epl_core::Result<TensorData> {
        let Some(TensorInfo { shape, .. }) = self.info(name) else {
            let reason = format!("is not in {}", self.folder.path().display());
            return Err(epl_core::Error::Parameter { name: name.to_string(), reason });
        };
        check_ranges(name, &shape, ranges)?;
        if shape.is_empty() {
            return Ok(self.folder.read(name)?);
        }
        Ok(self.source(name).read(self.folder, ranges)?)
    }
}
