//! The sizes of a mesh's axes, and how they follow from what is given.

use super::axis::{Axis, Digit};
use super::error::{ClusterError, Result};
use crate::config::{Config, MOST_RANKS};

/// The size of every axis; checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshSizes {
    data: usize,
    pipeline: usize,
    tensor: usize,
    expert: usize,
}

impl MeshSizes {
    /// World = data × pipeline × tensor; expert divides data.
    ///
    /// # Errors
    ///
    /// A size of zero, an expert size that does not divide data, more ranks than a mesh can have.
    pub fn new(data: usize, pipeline: usize, tensor: usize, expert: usize) -> Result<Self> {
        let given = [("data", data), ("pipeline", pipeline), ("tensor", tensor), ("expert", expert)];
        if let Some((what, _)) = given.into_iter().find(|(_, size)| *size == 0) {
            return Err(ClusterError::Zero { what });
        }
        let world = data.checked_mul(pipeline).and_then(|ranks| ranks.checked_mul(tensor));
        if world.is_none_or(|world| world > MOST_RANKS) {
            return Err(ClusterError::TooManyRanks { data, pipeline, tensor, most: MOST_RANKS });
        }
        if !data.is_multiple_of(expert) {
            return Err(ClusterError::ExpertDoesNotDivide {
                expert,
                data,
                smaller: largest_divisor(data, expert),
                larger: data.checked_next_multiple_of(expert).unwrap_or(expert),
            });
        }
        Ok(Self { data, pipeline, tensor, expert })
    }

    /// Ranks.
    pub fn world(&self) -> usize {
        self.data * self.pipeline * self.tensor
    }

    /// The size of an axis.
    pub fn along(&self, axis: Axis) -> usize {
        match axis {
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
            Axis::Tensor => self.tensor,
            Axis::Expert => self.expert,
            Axis::ExpertData => self.data / self.expert,
        }
    }

    pub(crate) fn digit(&self, digit: Digit) -> usize {
        match digit {
            Digit::ExpertData => self.data / self.expert,
            Digit::Expert => self.expert,
            Digit::Pipeline => self.pipeline,
            Digit::Tensor => self.tensor,
        }
    }
}

/// The largest divisor of `number` below `bound`.
fn largest_divisor(number: usize, bound: usize) -> usize {
    (1..bound.min(number + 1)).rev().find(|size| number.is_multiple_of(*size)).unwrap_or(1)
}

/// What somebody said about the sizes; what is left out follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeshRequest {
    /// Ranks that exist, or are wanted.
    pub ranks: Option<usize>,
    /// Replicas. Left out: ranks ÷ (pipeline × tensor); without ranks, as many as expert.
    pub data: Option<usize>,
    /// Stages. Left out: 1.
    pub pipeline: Option<usize>,
    /// Slices of split layers. Left out: 1.
    pub tensor: Option<usize>,
    /// Data ranks that share the experts. Left out: 1.
    pub expert: Option<usize>,
}

impl MeshRequest {
    /// What the options `cluster.ranks`, `dist.*` and `auto.*` say.
    pub fn from_config(config: &Config) -> Self {
        let dist = &config.dist;
        Self {
            ranks: config.cluster.ranks,
            data: dist.data_parallel_size,
            pipeline: Some(config.stages()),
            tensor: Some(dist.tensor_parallel_size),
            expert: Some(dist.expert_parallel_size),
        }
    }

    /// The sizes that follow.
    ///
    /// # Errors
    ///
    /// Ranks that do not divide into replicas, or that are not the product of the sizes; see also
    /// [`MeshSizes::new`].
    pub fn resolve(self) -> Result<MeshSizes> {
        let size = |given: Option<usize>| given.unwrap_or(1);
        let (pipeline, tensor, expert) = (size(self.pipeline), size(self.tensor), size(self.expert));
        let data = match (self.data, self.ranks) {
            (Some(data), _) => data,
            (None, None) => expert,
            (None, Some(ranks)) => replicas(ranks, MeshSizes::new(1, pipeline, tensor, 1)?)?,
        };
        let sizes = MeshSizes::new(data, pipeline, tensor, expert)?;
        match self.ranks {
            Some(ranks) if ranks != sizes.world() => {
                Err(ClusterError::RanksDisagree { data, pipeline, tensor, product: sizes.world(), ranks })
            }
            _ => Ok(sizes),
        }
    }
}

/// How many replicas of one replica's sizes the ranks make.
fn replicas(ranks: usize, one: MeshSizes) -> Result<usize> {
    let replica = one.world();
    if ranks == 0 {
        return Err(ClusterError::Zero { what: "the number of ranks" });
    }
    if !ranks.is_multiple_of(replica) {
        let below = ranks / replica * replica;
        return Err(ClusterError::RanksDoNotDivide {
            ranks,
            pipeline: one.pipeline,
            tensor: one.tensor,
            replica,
            below: if below == 0 { String::new() } else { format!("{below} or ") },
            above: (ranks / replica).saturating_add(1).saturating_mul(replica),
        });
    }
    Ok(ranks / replica)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(data: usize, pipeline: usize, tensor: usize, expert: usize) -> MeshSizes {
        MeshSizes::new(data, pipeline, tensor, expert).unwrap()
    }

    #[test]
    fn what_is_left_out_follows() {
        let none = MeshRequest::default();
        let cases = [
            (none, sizes(1, 1, 1, 1)),
            (MeshRequest { ranks: Some(4), ..none }, sizes(4, 1, 1, 1)),
            (MeshRequest { expert: Some(2), ..none }, sizes(2, 1, 1, 2)),
            (MeshRequest { data: Some(2), expert: Some(2), ..none }, sizes(2, 1, 1, 2)),
            (MeshRequest { ranks: Some(8), tensor: Some(2), expert: Some(2), ..none }, sizes(4, 1, 2, 2)),
            (MeshRequest { ranks: Some(8), tensor: Some(2), pipeline: Some(2), ..none }, sizes(2, 2, 2, 1)),
            (MeshRequest { data: Some(2), tensor: Some(4), ..none }, sizes(2, 1, 4, 1)),
            (MeshRequest { expert: Some(2), tensor: Some(2), ..none }, sizes(2, 1, 2, 2)),
        ];
        for (request, expected) in cases {
            assert_eq!(request.resolve(), Ok(expected), "{request:?}");
        }
        assert_eq!(MeshRequest::from_config(&Config::default()).resolve(), Ok(sizes(1, 1, 1, 1)));
    }

    #[test]
    fn what_does_not_divide_is_refused() {
        let none = MeshRequest::default();
        for (request, message) in [
            (
                MeshRequest { ranks: Some(8), tensor: Some(3), ..none },
                "8 ranks do not divide into replicas of pipeline 1 × tensor 3 = 3 ranks; \
                 use 6 or 9 ranks, or sizes whose product divides 8",
            ),
            (
                MeshRequest { ranks: Some(2), tensor: Some(4), ..none },
                "2 ranks do not divide into replicas of pipeline 1 × tensor 4 = 4 ranks; \
                 use 4 ranks, or sizes whose product divides 2",
            ),
            (
                MeshRequest { ranks: Some(8), data: Some(3), tensor: Some(2), ..none },
                "data 3 × pipeline 1 × tensor 2 = 6 ranks, but 8 exist; use 6 ranks, or leave the data size out",
            ),
            (
                MeshRequest { data: Some(4), expert: Some(3), ..none },
                "expert 3 does not divide data 4, whose neighbouring ranks form the expert groups; \
                 use expert 2, or data 6",
            ),
            (
                MeshRequest { ranks: Some(2), expert: Some(8), ..none },
                "expert 8 does not divide data 2, whose neighbouring ranks form the expert groups; \
                 use expert 2, or data 8",
            ),
            (MeshRequest { tensor: Some(0), ..none }, "tensor is 0; it must be at least 1"),
            (MeshRequest { ranks: Some(0), ..none }, "the number of ranks is 0; it must be at least 1"),
            (
                MeshRequest { data: Some(1 << 20), tensor: Some(1 << 20), ..none },
                "data 1048576 × pipeline 1 × tensor 1048576 is more than 1048576 ranks; lower one of them",
            ),
        ] {
            assert_eq!(request.resolve().unwrap_err().to_string(), message);
        }
    }
}
