//! What bytes are for, where they lie, and how they are known.

use std::fmt;

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// The parameters between their uses.
    Parameters,
    /// Their gradients.
    Gradients,
    /// What the optimizer keeps from step to step.
    OptimizerState,
    /// What forwards leave for their backwards.
    Activations,
    /// What is on its way: buckets, gathered or cast segments, temporary results.
    Buffers,
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The memory of the device; on the CPU it is the host's.
    Device,
    /// The memory of the host.
    Host,
    /// Files.
    Disk,
}

/// How a number is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FigureSource {
    /// From shapes and settings.
    Formula,
    /// Measured as it is.
    Measured,
    /// From measures of something smaller.
    Extrapolated,
    /// It is not known.
    Unknown,
}

impl MemoryKind {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 5] =
        [Self::Parameters, Self::Gradients, Self::OptimizerState, Self::Activations, Self::Buffers];
}

impl Tier {
    /// All of them, from the nearest to the farthest.
    pub const ALL: [Self; 3] = [Self::Device, Self::Host, Self::Disk];
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activations => "activations",
            Self::Buffers => "buffers",
        })
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
        })
    }
}

impl fmt::Display for FigureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Formula => "formula",
            Self::Measured => "measured",
            Self::Extrapolated => "extrapolated",
            Self::Unknown => "unknown",
        })
    }
}
