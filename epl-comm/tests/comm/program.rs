//! Random programs: calls of random collectives over random groups, with what each must give.

use core::ops::RangeInclusive;

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{DType, Device, Float, Int, Tensor};
use epl_comm::{Pending, ProcessGroup, ReduceOp, Result};
use proptest::prelude::*;

use crate::model::Array;

/// The most ranks of a program.
pub const MOST: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    AllReduce(ReduceOp),
    Reduce(ReduceOp),
    AllGather,
    Gather,
    ReduceScatter(ReduceOp),
    Scatter,
    AllToAll,
    Broadcast,
    /// Everybody sends to the next member.
    Ring,
    Barrier,
}

/// One call, made by all members of all groups of one split.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// 0: all ranks; n: the groups of split n − 1.
    pub split: usize,
    pub kind: Kind,
    pub len: usize,
    pub dtype: DType,
    pub started: bool,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub ranks: usize,
    /// The color of each rank, for every split of the world.
    pub splits: Vec<Vec<usize>>,
    pub steps: Vec<Step>,
    /// See [`epl_comm::local::Launcher::eager_limit`].
    pub eager_limit: usize,
}

/// What a call gives on this rank; nothing where only another one gets a result.
pub type Later = Box<dyn FnOnce() -> Result<Option<Array>>>;

pub fn kinds() -> impl Strategy<Value = Kind> {
    let ops = || prop::sample::select(vec![ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max]);
    prop_oneof![
        ops().prop_map(Kind::AllReduce),
        ops().prop_map(Kind::Reduce),
        Just(Kind::AllGather),
        Just(Kind::Gather),
        ops().prop_map(Kind::ReduceScatter),
        Just(Kind::Scatter),
        Just(Kind::AllToAll),
        Just(Kind::Broadcast),
        Just(Kind::Ring),
        Just(Kind::Barrier),
    ]
}

/// Programs of so many ranks, with one of these eager limits.
pub fn programs(ranks: RangeInclusive<usize>, limits: &[usize]) -> impl Strategy<Value = Program> + use<> {
    let dtypes = prop::sample::select(vec![DType::F64, DType::F32, DType::F16, DType::I64, DType::I32]);
    let lens = prop_oneof![4 => 0..40usize, 1 => 900..3000usize];
    let step = (0..3usize, kinds(), lens, dtypes, any::<bool>()).prop_map(|(split, kind, len, dtype, started)| Step {
        split,
        kind,
        len,
        dtype,
        started,
    });
    let colors = prop::collection::vec(0..3usize, MOST);
    let limits = prop::sample::select(limits.to_vec());
    (ranks, prop::collection::vec(colors, 2), prop::collection::vec(step, 1..12), limits)
        .prop_map(|(ranks, splits, steps, eager_limit)| Program { ranks, splits, steps, eager_limit })
}

impl Program {
    /// The groups of this rank, in the order of [`Step::split`].
    pub fn groups(&self, world: &ProcessGroup) -> Result<Vec<ProcessGroup>> {
        let split = |colors: &Vec<usize>| world.split("part", colors[world.rank()], MOST - world.rank());
        let parts = self.splits.iter().map(split).collect::<Result<Vec<_>>>()?;
        Ok([vec![world.clone()], parts].concat())
    }

    /// Makes all its calls on this rank; each must give what the model gives.
    pub fn check(&self, world: &ProcessGroup) -> Result<()> {
        let groups = self.groups(world)?;
        let issue = |(index, step): (usize, &Step)| step.issue(&groups[step.split], index);
        let results = self.steps.iter().enumerate().map(issue).collect::<Result<Vec<_>>>()?;
        for ((result, expected), step) in results.into_iter().zip(&self.steps) {
            assert_eq!(result()?, expected, "{step:?}");
        }
        Ok(())
    }
}

impl Step {
    /// Makes the call; gives its result, and what that must be.
    pub fn issue(&self, group: &ProcessGroup, index: usize) -> Result<(Later, Option<Array>)> {
        let inputs: Vec<_> = (0..group.size()).map(|member| self.input(group, index, member)).collect();
        let expected = self.expected(group, &inputs).map(|array| array.rounded(self.dtype));
        let x = &inputs[group.rank()];
        let later = if self.dtype.is_float() { self.call::<Float>(group, x)? } else { self.call::<Int>(group, x)? };
        Ok((later, expected))
    }

    fn root(&self, group: &ProcessGroup) -> usize {
        self.len % group.size()
    }

    fn sizes(&self, group: &ProcessGroup) -> Vec<usize> {
        (0..group.size()).map(|member| (self.len + 2 * member) % 5 * self.scale()).collect()
    }

    /// The rows that one member sends to another.
    fn rows(&self, from: usize, to: usize) -> usize {
        (self.len + from + 3 * to) % 4 * self.scale()
    }

    /// Long steps are long in every kind.
    fn scale(&self) -> usize {
        if self.len < 900 { 1 } else { self.len / 8 }
    }

    fn input(&self, group: &ProcessGroup, index: usize, member: usize) -> Array {
        let shape = match self.kind {
            Kind::AllGather | Kind::Gather => [2, self.sizes(group)[member]],
            Kind::ReduceScatter(_) | Kind::Scatter => [2, self.sizes(group).iter().sum()],
            Kind::AllToAll => [(0..group.size()).map(|to| self.rows(member, to)).sum(), 3],
            _ => [2, self.len],
        };
        Array::sample(100 * index + group.global(member).0, &shape)
    }

    fn expected(&self, group: &ProcessGroup, inputs: &[Array]) -> Option<Array> {
        let (p, me, sizes) = (group.size(), group.rank(), self.sizes(group));
        let at_root = self.root(group) == me;
        let own_part = |whole: &Array| whole.part(1, sizes[..me].iter().sum(), sizes[me]);
        match self.kind {
            Kind::AllReduce(op) => Some(Array::reduce(inputs, op)),
            Kind::Reduce(op) => at_root.then(|| Array::reduce(inputs, op)),
            Kind::AllGather => Some(Array::concat(inputs, 1)),
            Kind::Gather => at_root.then(|| Array::concat(inputs, 1)),
            Kind::ReduceScatter(op) => Some(own_part(&Array::reduce(inputs, op))),
            Kind::Scatter => Some(own_part(&inputs[self.root(group)])),
            Kind::AllToAll => {
                let before = |from: usize| (0..me).map(|to| self.rows(from, to)).sum();
                let piece = |from: usize| inputs[from].part(0, before(from), self.rows(from, me));
                Some(Array::concat(&(0..p).map(piece).collect::<Vec<_>>(), 0))
            }
            Kind::Broadcast => Some(inputs[self.root(group)].clone()),
            Kind::Ring if p > 1 => Some(inputs[(me + p - 1) % p].clone()),
            Kind::Ring | Kind::Barrier => None,
        }
    }

    fn call<K: Numeric + Autodiff + 'static>(&self, group: &ProcessGroup, x: &Array) -> Result<Later> {
        let (sizes, root, me) = (self.sizes(group), self.root(group), group.rank());
        let x = || x.tensor::<2, K>(self.dtype, &Device::flex());
        if !self.started {
            let result = match self.kind {
                Kind::AllReduce(op) => Some(group.all_reduce(x(), op)?),
                Kind::Reduce(op) => group.reduce(x(), op, root)?,
                Kind::AllGather => Some(group.all_gather_uneven(x(), 1, &sizes)?),
                Kind::Gather => group.gather_uneven(x(), 1, &sizes, root)?,
                Kind::ReduceScatter(op) => Some(group.reduce_scatter_uneven(x(), 1, &sizes, op)?),
                Kind::Scatter => Some(group.scatter_uneven(x(), 1, &sizes, root)?),
                Kind::AllToAll => {
                    let (send, receive) = self.counts(group);
                    Some(group.all_to_all_uneven(x(), &send, &receive)?)
                }
                Kind::Broadcast => Some(group.broadcast(x(), root)?),
                Kind::Ring => return self.ring(group, x()),
                Kind::Barrier => group.barrier().map(|()| None)?,
            };
            assert!(result.is_none() || !matches!(self.kind, Kind::Reduce(_) | Kind::Gather) || root == me);
            return Ok(Box::new(move || Ok(result.map(Array::of))));
        }
        let pending: Pending<Option<Tensor<2, K>>> = match self.kind {
            Kind::AllReduce(op) => group.start_all_reduce(x(), op)?.map(Some),
            Kind::Reduce(op) => group.start_reduce(x(), op, root)?,
            Kind::AllGather => group.start_all_gather_uneven(x(), 1, &sizes)?.map(Some),
            Kind::Gather => group.start_gather_uneven(x(), 1, &sizes, root)?,
            Kind::ReduceScatter(op) => group.start_reduce_scatter_uneven(x(), 1, &sizes, op)?.map(Some),
            Kind::Scatter => group.start_scatter_uneven(x(), 1, &sizes, root)?.map(Some),
            Kind::AllToAll => {
                let (send, receive) = self.counts(group);
                group.start_all_to_all_uneven(x(), &send, &receive)?.map(Some)
            }
            Kind::Broadcast => group.start_broadcast(x(), root)?.map(Some),
            Kind::Ring => return self.ring(group, x()),
            Kind::Barrier => group.start_barrier()?.map(|()| None),
        };
        Ok(Box::new(move || Ok(pending.wait()?.map(Array::of))))
    }

    fn counts(&self, group: &ProcessGroup) -> (Vec<usize>, Vec<usize>) {
        let me = group.rank();
        let members = 0..group.size();
        (members.clone().map(|to| self.rows(me, to)).collect(), members.map(|from| self.rows(from, me)).collect())
    }

    /// Sends are started, as everybody's would wait for its receiver otherwise.
    fn ring<K: Numeric + Autodiff + 'static>(&self, group: &ProcessGroup, x: Tensor<2, K>) -> Result<Later> {
        let (p, me) = (group.size(), group.rank());
        if p == 1 {
            return Ok(Box::new(|| Ok(None)));
        }
        let (next, last) = ((me + 1) % p, (me + p - 1) % p);
        let sent = group.start_send(x.clone(), next)?;
        let received = match self.started {
            true => group.start_receive(x, last)?,
            false => Pending::from(group.receive(x, last)?),
        };
        Ok(Box::new(move || {
            sent.wait()?;
            received.wait().map(|tensor| Some(Array::of(tensor)))
        }))
    }
}
