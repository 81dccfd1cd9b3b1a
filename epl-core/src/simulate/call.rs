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
    /// Two stages of a replica; of different widths, two of its ranks, numbered stage by stage.
    Link {
        /// Who sends.
        from: usize,
        /// Who receives.
        to: usize,
    },
    /// The stages of a replica, of different widths all its ranks, which compare what they are given.
    Stages,
    /// The stages of a replica that hold the same parameters; of different widths, with those of all replicas.
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
            Self::Tied(stages) if mesh.is_bridged() => {
                (0..mesh.world_size()).filter(|rank| stages.contains(&mesh.coordinate(*rank).pipeline)).collect()
            }
            Self::Tied(stages) => {
                let all = mesh.group(Axis::Pipeline, rank);
                stages.iter().map(|stage| all[*stage]).collect()
            }
            Self::Other(name) => panic!("who is in group `{name}` is known to the layer that made it"),
        }
    }

    /// The group of this name, as [`Display`](fmt::Display) has it; what has none of these names is another one.
    pub fn named(name: &str) -> Self {
        let of_axis = || axis(name).map(Self::Axis);
        let gather = || Some(Self::Gather(axis(name.strip_prefix("gather over ")?)?));
        let pool = || {
            let (over, number) = name.rsplit_once(' ')?;
            Some(Self::Pool(axis(over)?, number.parse().ok()?))
        };
        let link = || {
            let (from, to) = name.strip_prefix("stages, ")?.split_once(" to ")?;
            Some(Self::Link { from: from.parse().ok()?, to: to.parse().ok()? })
        };
        let tied = || {
            let stages = name.strip_prefix("tied over stages [")?.strip_suffix(']')?.split(", ");
            Some(Self::Tied(stages.map(|stage| stage.parse().ok()).collect::<Option<_>>()?))
        };
        match name {
            "world" => Self::World,
            "stages" => Self::Stages,
            _ => of_axis()
                .or_else(gather)
                .or_else(pool)
                .or_else(link)
                .or_else(tied)
                .unwrap_or_else(|| Self::Other(name.into())),
        }
    }
}

fn axis(name: &str) -> Option<Axis> {
    Axis::ALL.into_iter().find(|axis| axis.name() == name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_known_by_its_name() {
        let of_axis =
            |axis| [Members::Axis(axis), Members::Pool(axis, 0), Members::Pool(axis, 12), Members::Gather(axis)];
        let own = [
            Members::World,
            Members::Stages,
            Members::Link { from: 0, to: 10 },
            Members::Tied(vec![0, 3]),
            Members::Other("stages, 0".to_string()),
            Members::Other("data, 0 to 1".to_string()),
            Members::Other("gather over rows".to_string()),
        ];
        for members in Axis::ALL.into_iter().flat_map(of_axis).chain(own) {
            assert_eq!(Members::named(&members.to_string()), members);
        }
    }
}
