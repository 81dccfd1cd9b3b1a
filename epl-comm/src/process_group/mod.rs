//! The handle that users see: typed tensors in, typed tensors out.
//!
//! | file | what |
//! |---|---|
//! | `owner_thread` | the one thread that uses a rank's groups |
//! | `rank_state` | what all groups of a rank share: owner thread, helper threads, log, recordings |
//! | `communicator` | what clones share: transport, rank state, queue of started calls, links |
//! | `placed` | a tensor taken apart for a transport, and put together again |
//! | `dims` | dims taken apart for a transport, and put together again |
//! | `check` | whether a collective's arguments fit each other |
//! | `prepare` | a collective's arguments turned into a call |
//! | `blocking`, `started` | the collectives, both ways |
//! | `values` | collectives on numbers in host memory |
//! | `recall`, `recording` | what collectives gave, given again |

pub(crate) use prepare::Exchange;
pub(crate) use rank_state::RankState;
pub use recording::Recording;

mod blocking;
mod check;
mod communicator;
mod dims;
mod owner_thread;
mod placed;
mod prepare;
mod recall;
mod recording;
mod rank_state;
mod started;
mod values;

use core::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Shape};

use crate::error::{Error, Result};
use crate::log::Log;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::trace::Trace;
use crate::traced::Traced;
use crate::transport::Transport;
use communicator::Communicator;

/// Some ranks, seen by one of them, and the collectives among them.
///
/// A cheap clone; clones are one communicator. It is `Send + Sync`, as modules hold it, but one thread uses it and all
/// other groups of its rank: the first that uses one. Every member makes the same calls in the same order; calls that
/// do not fit together are an [`Error::Mismatch`] on every member, before any memory is touched.
///
/// Tensors are of any number of dims and any element type that Burn has and that is not quantised (bool where nothing
/// is reduced), on any backend. Collectives here are not differentiable: a tracked tensor is an [`Error::Invalid`]; see
/// [`differentiable`](crate::differentiable) and the layouts, [`Copied`](crate::Copied), [`Split`](crate::Split) and
/// [`Partial`](crate::Partial). The result lies on the tensor's device. A group of one
/// returns its input.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_comm::{ReduceOp, testing::run_ranks};
///
/// let maxima = run_ranks(4, |world| {
///     // Two groups: ranks 0 and 1, ranks 2 and 3.
///     let pair = world.split("pair", world.rank() / 2, world.rank()).unwrap();
///     let x = Tensor::<1>::full([1], world.rank() as f32, &Device::flex());
///     pair.all_reduce(x, ReduceOp::Max).unwrap().into_scalar::<f32>()
/// });
/// assert_eq!(maxima, [1.0, 1.0, 3.0, 3.0]);
/// ```
#[derive(Clone)]
pub struct ProcessGroup {
    communicator: Arc<Communicator>,
}

impl ProcessGroup {
    /// A group over a transport. The groups split off it are used by the same thread as it is.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self::with_state(transport, RankState::default())
    }

    /// A group of the rank that has this state.
    pub(crate) fn with_state(transport: Arc<dyn Transport>, rank_state: RankState) -> Self {
        Self { communicator: Arc::new(Communicator::new(transport, rank_state)) }
    }

    /// The name given at [`split`](Self::split); `world` for all ranks.
    pub fn name(&self) -> &str {
        self.transport().name()
    }

    /// This rank's position in the group.
    pub fn rank(&self) -> usize {
        self.transport().member()
    }

    /// How many ranks the group has.
    pub fn size(&self) -> usize {
        self.transport().members().len()
    }

    /// The rank in the world of a member of this group.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    pub fn global(&self, member: usize) -> Rank {
        let members = self.transport().members();
        assert!(member < members.len(), "group `{}` of {} ranks has no member {member}", self.name(), members.len());
        members[member]
    }

    /// Divides the group: members with the same `color` form a new group of this `name`, in the order of `key`, then
    /// of their position here. Collective: every member calls it, with the same name.
    ///
    /// # Errors
    ///
    /// As for [the collectives](Self#collectives); [`Error::Mismatch`] also when names differ. A group of
    /// [`dry`](crate::dry) is split by [`split_by`](Self::split_by) only.
    pub fn split(&self, name: &str, color: usize, key: usize) -> Result<Self> {
        let divide = |transport: &dyn Transport, call| transport.split(call, name, color, key);
        let transport = self.communicator.split(split_call(name), divide)?;
        Ok(self.beside(transport))
    }

    /// [`split`](Self::split) by a rule that every member can ask for all others: `wish` gives the color and the key
    /// of a member. Collective: every member calls it, with the same rule.
    ///
    /// # Errors
    ///
    /// As [`split`](Self::split).
    pub fn split_by(&self, name: &str, wish: impl Fn(usize) -> (usize, usize)) -> Result<Self> {
        // Before the call takes its number: the rule may panic.
        let wishes: Vec<(usize, usize)> = (0..self.size()).map(wish).collect();
        let divide = |transport: &dyn Transport, call| transport.split_by(call, name, &wishes);
        let transport = self.communicator.split(split_call(name), divide)?;
        Ok(self.beside(transport))
    }

    /// The same group, recording its collectives, and those of groups split off it, into `trace`.
    ///
    /// Use this one or the old one, not both in turn while collectives are started; over NCCL, where one on CUDA tensors goes
    /// on behind a blocking call, too, not both at all.
    pub fn traced(&self, trace: &Trace) -> Self {
        self.decorated(|transport| Arc::new(Traced::new(transport, trace.clone())))
    }

    /// The same group over a transport around its own one, such as one that delays calls or counts them; it decorates what is split
    /// off, and links, by itself. What holds of a [`traced`](Self::traced) group holds here.
    pub fn decorated(&self, around: impl FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport>) -> Self {
        self.beside(around(self.communicator.transport.clone()))
    }

    /// The last calls of this rank, in this and all its other groups.
    pub fn log(&self) -> &Log {
        &self.communicator.rank_state.log
    }

    /// Ends the world: every rank that waits, or will wait, in any group is released with an [`Error::Peer`] that
    /// names this rank and `cause`. The launcher does so for a rank that returns an error or panics.
    pub fn abort(&self, cause: &Error) {
        self.transport().abort(cause);
    }

    /// Gives back memory that is kept for the results of calls to come: see [`Transport::trim`].
    pub fn trim(&self) {
        self.transport().trim();
    }

    /// Says that the ranks of this group are warmed up: what they will compute they have computed once, so that kernels are
    /// loaded and memory has grown. To be said on all members between the same calls of the group and of its parts and
    /// links; saying it again does nothing. `epl-core`'s engine says it of its world after its first update, unless it has
    /// stages. A program with collectives of its own, or one that never updates, says it after its first step; one whose
    /// ranks send to each other does not, as two that load a kernel between a send and a receive would wait for each other.
    ///
    /// Over NCCL, calls before it meet their peers on the host and go to the device only while the rank waits, so that
    /// nothing overlaps: a driver that loads a kernel may wait for all that runs on its device, also for a call whose peer
    /// waits in the same way. From then on started calls run beside what is computed. Other transports need no warm-up.
    pub fn warmed_up(&self) {
        self.transport().warmed_up();
    }

    /// How many calls of this rank may usefully be in flight together.
    pub fn lanes(&self) -> usize {
        self.transport().lanes()
    }

    /// Whether the other members are only thought of ([`dry`](crate::dry)): nothing is sent, and calls take no time that means
    /// anything.
    pub fn is_dry(&self) -> bool {
        self.transport().is_dry()
    }

    /// Another group of this rank.
    fn beside(&self, transport: Arc<dyn Transport>) -> Self {
        Self::with_state(transport, self.communicator.rank_state.clone())
    }

    fn transport(&self) -> &dyn Transport {
        &*self.communicator.transport
    }
}

fn split_call(name: &str) -> Call {
    Call { name: name.to_string(), ..Call::new(Operation::Split, DType::I64, Shape::new([2])) }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup({:?}, member {} of {})", self.name(), self.rank(), self.size())
    }
}
