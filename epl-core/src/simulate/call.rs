//! A collective, by what a trace shows of it.

use core::fmt;

use burn::tensor::DType;
use epl_comm::Operation;

use crate::topology::cluster::{Axis, Mesh};

/// Over whom a collective goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Members {
    /// All ranks.
    World,
    /// The ranks of an axis.
    Axis(Axis),
    /// A communicator of an axis's pool, for buckets of gradients.
    Pool(Axis, usize),
    /// The communicator over which parameters are gathered.
    Gather(Axis),
    /// Two stages of a replica.
    Link {
        /// The stage that sends.
        from: usize,
        /// The stage that receives.
        to: usize,
    },
    /// The stages of a replica, which compare what they are given.
    Stages,
    /// The stages of a replica that hold the same parameters.
    Tied(Vec<usize>),
    /// A group that a layer made.
    Other(String),
}

impl Members {
    /// The ranks of a mesh that are in this group of a rank, in their order in it.
    ///
    /// # Panics
    ///
    /// When there is no such rank, or nobody but a layer knows who is in the group.
    pub fn of(&self, mesh: &Mesh, rank: usize) -> Vec<usize> {
        match self {
            Self::World => (0..mesh.world_size()).collect(),
            Self::Axis(axis) | Self::Pool(axis, _) | Self::Gather(axis) => mesh.group(*axis, rank),
            Self::Stages => mesh.group(Axis::Pipeline, rank),
            Self::Link { from, to } => {
                let stages = mesh.group(Axis::Pipeline, rank);
                vec![stages[*from], stages[*to]]
            }
            Self::Tied(stages) => {
                let all = mesh.group(Axis::Pipeline, rank);
                stages.iter().map(|stage| all[*stage]).collect()
            }
            Self::Other(name) => panic!("who is in group `{name}` is known to the layer that made it"),
        }
    }

    /// The group of an axis or the world by its name, as layers use them; any other as it is called.
    pub fn named(name: &str) -> Self {
        let axis = Axis::ALL.into_iter().find(|axis| axis.to_string() == name);
        match (name, axis) {
            ("world", _) => Self::World,
            (_, Some(axis)) => Self::Axis(axis),
            _ => Self::Other(name.to_string()),
        }
    }
}

/// The name of the group, as traces and errors have it.
impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::World => f.write_str("world"),
            Self::Axis(axis) => write!(f, "{axis}"),
            Self::Pool(axis, number) => write!(f, "{axis} {number}"),
            Self::Gather(axis) => write!(f, "gather over {axis}"),
            Self::Link { from, to } => write!(f, "stages, {from} to {to}"),
            Self::Stages => f.write_str("stages"),
            Self::Tied(stages) => write!(f, "tied over stages {stages:?}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// One collective of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Called {
    /// Over whom.
    pub over: Members,
    /// What.
    pub operation: Operation,
    /// The element type.
    pub dtype: DType,
    /// The elements of this rank's tensor.
    pub elements: usize,
}

impl Called {
    /// The bytes of this rank's tensor.
    pub fn bytes(&self) -> u64 {
        (self.elements * self.dtype.size()) as u64
    }
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { over, operation, dtype, elements } = self;
        write!(f, "{operation} of {elements} {} over {over}", dtype.name())
    }
}
