//! What ranks over NCCL are given, whether they are threads or processes.

use std::sync::Arc;

use super::gate::Gate;
use super::library::Library;
use super::memory::Memory;
use super::transport::{Engine, Safeguards};
use crate::error::Result;
use crate::host::watchdog::Options;
use crate::launch::Launcher;
use crate::pending::check_lanes;

/// How many started calls of a rank are in flight together unless it is said otherwise: two hide each other's latency,
/// and more take multiprocessors away from what is computed.
const LANES: usize = 2;

/// Ranks over NCCL, of which `P` says whether they are threads or processes.
#[derive(Clone, Debug)]
pub struct Nccl<P> {
    pub(super) place: P,
    pub(super) library: Option<Arc<Library>>,
    pub(super) safeguards: Safeguards,
    /// The CUDA device of each rank of this process.
    #[cfg(feature = "cuda")]
    pub(super) devices: Vec<usize>,
}

impl<P> Nccl<P> {
    /// So many ranks of this process.
    pub(super) fn new(place: P, _ranks: usize) -> Self {
        Self {
            place,
            library: None,
            safeguards: Safeguards::default(),
            #[cfg(feature = "cuda")]
            devices: (0.._ranks).collect(),
        }
    }
}

impl<P> Launcher<Nccl<P>> {
    /// NCCL itself, where it is not to be looked for.
    pub fn library(mut self, library: Arc<Library>) -> Self {
        self.kind.library = Some(library);
        self
    }

    /// The CUDA device of each rank of this process, by its index among those that the process sees; 0, 1, … if nothing is said.
    #[cfg(feature = "cuda")]
    pub fn devices(mut self, indices: &[usize]) -> Self {
        self.kind.devices = indices.to_vec();
        self
    }

    #[doc(hidden)]
    pub fn safeguards(mut self, safeguards: Safeguards) -> Self {
        self.kind.safeguards = safeguards;
        self
    }

    /// NCCL, if ranks can be run.
    pub(super) fn loaded(&self) -> Result<Arc<Library>> {
        check_lanes(self.options.lanes)?;
        self.kind.library.clone().map_or_else(Library::open, Ok)
    }

    /// What the groups of one rank share.
    pub(super) fn engine<M: Memory>(&self, library: &Arc<Library>, memory: M, gate: &Arc<Gate>) -> Arc<Engine<M>> {
        let Options { time_limit, lanes, .. } = self.options;
        let (library, memory, gate) = (library.clone(), Arc::new(memory), gate.clone());
        let (lanes, safeguards) = (lanes.unwrap_or(LANES), self.kind.safeguards);
        Arc::new(Engine { library, memory, time_limit, lanes, gate, order: Arc::default(), safeguards })
    }
}
