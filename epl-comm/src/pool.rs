//! Several communicators of one group.

use crate::error::{Error, Result};
use crate::process_group::ProcessGroup;

/// Communicators of the same ranks, with a helper thread each, so that started collectives may be in flight together.
/// There are no more of them than that is of use ([`Transport::lanes`](crate::Transport::lanes)): where the ranks keep
/// all cores busy already, one after the other is as fast.
///
/// ```text
/// communicator 0   [bucket 0      ][bucket 2   ]
/// communicator 1   [bucket 1   ][bucket 3         ]
/// ```
///
/// A collective's communicator is chosen by its number, which is the same on every rank: never by which one is free.
/// The pool is one queue to its users: every rank starts the same collectives in the same order over all of it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_comm::{Pool, ReduceOp, testing::run_ranks};
///
/// let sums = run_ranks(2, |group| {
///     let pool = Pool::new(&group, 2).unwrap();
///     let start = |bucket: usize| {
///         let x = Tensor::<1>::full([1], bucket as f32, &Device::flex());
///         pool.communicator(bucket).start_all_reduce(x, ReduceOp::Sum).unwrap()
///     };
///     let started: Vec<_> = (0..4).map(start).collect();
///     started.into_iter().map(|sum| sum.wait().unwrap().into_scalar::<f32>()).collect::<Vec<_>>()
/// });
/// assert_eq!(sums, [[0.0, 2.0, 4.0, 6.0]; 2]);
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    communicators: Vec<ProcessGroup>,
}

impl Pool {
    /// Up to `size` communicators of the ranks of `group`, beside the group itself. Collective.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a size of 0; otherwise as [`ProcessGroup::split`].
    pub fn new(group: &ProcessGroup, size: usize) -> Result<Self> {
        if size == 0 {
            return Err(Error::invalid("a pool of 0 communicators; it needs at least 1"));
        }
        let communicator = |number| group.split_by(&format!("{} {number}", group.name()), |member| (0, member));
        let communicators = (0..size.min(group.lanes().max(1))).map(communicator);
        Ok(Self { communicators: communicators.collect::<Result<_>>()? })
    }

    /// The communicator of the collective with this number.
    pub fn communicator(&self, number: usize) -> &ProcessGroup {
        &self.communicators[number % self.communicators.len()]
    }

    /// How many ranks each communicator has.
    pub fn ranks(&self) -> usize {
        self.communicators[0].size()
    }
}
