//! Files as one dataset, of which a rank opens those of its replica.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use epl_comm::ReduceOp;

use super::slicing::{FileSlices, starts};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::context::Context;

/// A list of files as one dataset: the samples of the first file, then those of the second, and so on.
///
/// With `io.slicing` a rank opens the files of its replica only, and reading another one's sample is an error; a
/// [`FileSampler`](super::FileSampler) never asks for it.
///
/// ```
/// # use burn::data::dataset::InMemDataset;
/// # use epl_core::data::{FileSamplerConfig, SlicedFiles};
/// # use epl_core::{Engine, Epl, Error, Result, Model};
/// # fn example<M: Model>(epl: &Epl, engine: &Engine<M>, paths: Vec<std::path::PathBuf>) -> Result<()> {
/// let files = SlicedFiles::open(paths, epl.config(), engine.context(), |path| {
///     let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
///     Ok(InMemDataset::new(text.lines().map(str::to_string).collect()))
/// })?;
/// let sampler = FileSamplerConfig::new(128, 7).with_epochs(1).init(files.sizes(), files.slices())?;
/// // TrainData::new(files, batcher, sampler)
/// # Ok(())
/// # }
/// ```
///
/// Evaluation reads whole datasets: give it files that every rank opens.
pub struct SlicedFiles<I> {
    paths: Vec<PathBuf>,
    /// Those of this replica.
    opened: Vec<Option<Arc<dyn Dataset<I>>>>,
    sizes: Vec<usize>,
    /// The index at which each file begins.
    starts: Vec<usize>,
    slices: FileSlices,
    replica: usize,
}

impl<I> SlicedFiles<I> {
    /// Opens this replica's files, and learns the sizes of the others from the ranks that open them. Collective.
    ///
    /// The first rank warns where files that are to be divided do not divide.
    ///
    /// # Errors
    ///
    /// When there is no file, one of them cannot be opened, or a peer failed.
    pub fn open<D: Dataset<I> + 'static>(
        paths: impl IntoIterator<Item = impl Into<PathBuf>>,
        config: &Config,
        context: &Context,
        mut open: impl FnMut(&Path) -> Result<D>,
    ) -> Result<Self> {
        let mut paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        let slices = FileSlices::of(paths.len(), config, context)?;
        let rank = context.world().rank();
        if let (Some(warning), 0) = (slices.warning(), rank) {
            eprintln!("warning: {warning}");
        }
        paths.truncate(slices.files());
        let replica = context.mesh().replica(rank);
        let mut open = |(file, path): (usize, &PathBuf)| -> Result<Option<Arc<dyn Dataset<I>>>> {
            let mine = slices.replicas_of(file).contains(&replica);
            mine.then(|| open(path)).transpose().map(|file| file.map(|file| Arc::new(file) as _))
        };
        let opened = paths.iter().enumerate().map(&mut open).collect::<Result<Vec<_>>>()?;
        let own: Vec<Option<usize>> = opened.iter().map(|file| file.as_ref().map(|file| file.len())).collect();
        let sizes = agreed(&own, &paths, context)?;
        Ok(Self { opened, starts: starts(&sizes), sizes, paths, slices, replica })
    }

    /// How many samples each file has.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Who reads which file.
    pub fn slices(&self) -> &FileSlices {
        &self.slices
    }
}

/// The sizes of all files, from those that each rank knows. Collective.
fn agreed(own: &[Option<usize>], paths: &[PathBuf], context: &Context) -> Result<Vec<usize>> {
    let world = context.world();
    let known: Vec<f64> = own.iter().map(|size| size.unwrap_or(0) as f64).collect();
    let largest = if world.size() > 1 { world.all_reduce_values(&known, ReduceOp::Max)? } else { known };
    let check = |((own, largest), path): ((&Option<usize>, f64), &PathBuf)| match (own, largest as usize) {
        (Some(own), largest) if *own != largest => Err(Error::file(
            path,
            format!("it has {own} samples on this rank and {largest} on another; every rank must see the same file"),
        )),
        (_, largest) => Ok(largest),
    };
    own.iter().zip(largest).zip(paths).map(check).collect()
}

/// Another replica's sample was asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "sample {index} is in {path}, which replicas {readers:?} read, and this is replica {replica}; draw from the files with \
     a `FileSampler`"
)]
struct NotOpened {
    index: usize,
    path: String,
    readers: std::ops::Range<usize>,
    replica: usize,
}

impl<I> Dataset<I> for SlicedFiles<I> {
    fn get(&self, index: usize) -> Result<I, DatasetError> {
        assert!(index < self.len(), "sample {index} of {}", self.len());
        // The last file that begins there or before: an empty one begins where the next does.
        let file = self.starts.partition_point(|start| *start <= index) - 1;
        match &self.opened[file] {
            Some(opened) => opened.get(index - self.starts[file]),
            None => Err(DatasetError::new(NotOpened {
                index,
                path: self.paths[file].display().to_string(),
                readers: self.slices.replicas_of(file),
                replica: self.replica,
            })),
        }
    }

    fn len(&self) -> usize {
        self.sizes.iter().sum()
    }
}
