//! What moves buffers between ranks.

use core::fmt::Debug;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Shape};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::per_member::PerMember;
use crate::rank::Rank;

/// One rank's place in one group, over some medium.
///
/// Below [`ProcessGroup`](crate::ProcessGroup), which knows tensors, graphs, threads and order; a transport knows
/// buffers only. All methods block; a group calls [`run`](Self::run) from one thread at a time, in the order of the
/// calls' numbers.
///
/// # Writing one
///
/// `epl-comm/examples/own_transport.rs` is a simple one in two hundred lines. What it must do:
///
/// | | must |
/// |---|---|
/// | numbers | [`reserve`](Self::reserve) gives 1, 2, 3, … for each group and each link; the same number is the same call on all members |
/// | calls | every member's [`Call`] is compared ([`Call::agrees`]) before anything is done with memory; all members get the same [`Error::Mismatch`] |
/// | results | those that [`Operation`] says, in pieces as [`Call`] draws it; who gets none is given back its own buffer |
/// | bits | a reduction is taken in the order of the members, or at least gives all members the same bits; 16-bit floats are summed in f32 |
/// | memory | a buffer belongs to the call until no peer can reach it any more, also when the call fails |
/// | place | the result lies on the device of the buffer, in its element type; it may be flat |
/// | failure | a member is never left waiting for one that cannot come: it failed, left, or made another call; after the first failure every call fails, in all groups |
/// | threads | different groups are called from different threads (a helper thread for each group with started calls) |
///
/// One that wraps another hands on every method. [`is_ordered`](Self::is_ordered) and [`stage`](Self::stage), which are for a
/// device that works behind its rank, and [`moves_rows`](Self::moves_rows), which saves a copy, have bodies for one that needs
/// none of them; the others have none.
///
/// What it need not do: checking arguments, graphs, started calls, logs, order within a rank, groups of one.
///
/// Launching is its own: it makes one transport for each rank over all ranks, and gives it to
/// [`ProcessGroup::new`](crate::ProcessGroup::new). What to test it with is in `epl-comm/tests/comm`: a list of cases,
/// each run on every world (every collective, element type and way of calling, against a model on one thread; random
/// programs, failures, faults, memory), to which a transport is one more `Kind` of world.
///
/// ```
/// # use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// # use burn::tensor::{Device, Tensor};
/// # use epl_comm::{Buffer, Call, Error, Operation, ProcessGroup, Rank, ReduceOp, Result, Transport};
/// /// Sums among three ranks, of which the others bring what this one brings.
/// #[derive(Debug)]
/// struct Mirrors(AtomicU64);
///
/// impl Transport for Mirrors {
///     fn reserve(&self, _: Operation) -> u64 { self.0.fetch_add(1, Ordering::Relaxed) + 1 }
///     fn run(&self, _: Box<Call>, buffer: Buffer) -> Result<Buffer> {
///         Ok(Buffer::from_values(buffer.into_values::<f32>().into_iter().map(|x| 3.0 * x).collect()))
///     }
/// #     fn name(&self) -> &str { "world" }
/// #     fn member(&self) -> usize { 0 }
/// #     fn members(&self) -> &[Rank] { &[Rank(0), Rank(1), Rank(2)] }
/// #     fn reserve_stage(&self, whole: Operation, _: Operation) -> u64 { self.reserve(whole) }
/// #     fn moves_rows(&self) -> bool { false }
/// #     fn split(&self, _: u64, _: &str, _: usize, _: usize) -> Result<Arc<dyn Transport>> { Err(Error::invalid("there is one group")) }
/// #     fn split_by(&self, _: u64, _: &str, _: &[(usize, usize)]) -> Result<Arc<dyn Transport>> { Err(Error::invalid("there is one group")) }
/// #     fn link(&self, _: usize, _: usize) -> Result<Arc<dyn Transport>> { Err(Error::invalid("there is one group")) }
/// #     fn lanes(&self) -> usize { 1 }
/// #     fn trim(&self) {}
/// #     fn warmed_up(&self) {}
/// #     fn sleep(&self, _: Operation, _: u64, sleep: &mut dyn FnMut()) { sleep() }
/// #     fn abort(&self, _: &Error) {}
/// }
/// let group = ProcessGroup::new(Arc::new(Mirrors(AtomicU64::new(0))));
/// assert_eq!(group.all_reduce(Tensor::<1>::ones([1], &Device::flex()), ReduceOp::Sum)?.into_scalar::<f32>(), 3.0);
/// # Ok::<_, Error>(())
/// ```
pub trait Transport: Debug + Send + Sync + 'static {
    /// The name of the group.
    fn name(&self) -> &str;

    /// This rank's position in the group.
    fn member(&self) -> usize;

    /// The ranks of the group, in the order of its members.
    fn members(&self) -> &[Rank];

    /// Takes the next number of a call in this group. Whoever takes a number runs a call with it: peers wait for it.
    fn reserve(&self, operation: Operation) -> u64;

    /// Takes the next number of a call that is a stage of `whole`, which is what its caller knows it by. Where calls are
    /// not made of stages themselves, [`reserve`](Self::reserve) of `whole`.
    fn reserve_stage(&self, whole: Operation, stage: Operation) -> u64;

    /// Runs one collective and returns this member's result, possibly flat. The call is boxed, as is what is in a
    /// buffer, because both are passed on several times on their way: moves would take longer than a small collective.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] on every member when their calls do not fit together; [`Error::Peer`] when another rank
    /// failed or left; [`Error::Deadlock`], [`Error::Timeout`] and [`Error::Order`] where the transport looks for what
    /// they say; [`Error::Staging`]. After an error the whole world is over.
    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer>;

    /// Whether buffers are not in pieces but as they are, row by row, as [`Call`] draws it: whether a dim other than the first is
    /// divided, and put together, on the way. Elsewhere the group takes a tensor apart before, and puts the result together at
    /// last. It has no body of its own: a wrong one is wrong numbers.
    fn moves_rows(&self) -> bool;

    /// Whether what is computed with the result of a call on `buffer` can be made to come behind it, without a thread that
    /// waits: a blocking call is then run as a started one that is waited for at once.
    fn is_ordered(&self, _buffer: &Buffer) -> bool {
        false
    }

    /// Does the part of a started call that the rank's own thread is to do, at the time of the call; the rest is run by
    /// another thread, one call of a group after the other. By default, all of it is [`run`](Self::run) there.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn stage(self: Arc<Self>, call: Box<Call>, buffer: Buffer) -> Result<Staged> {
        Ok(Staged::Whole(call, buffer))
    }

    /// Divides the group: members with the same `color` form a new one, in the order of `key`, then of their
    /// position here. Collective; `sequence` is the number taken for it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>>;

    /// [`split`](Self::split) where every member knows all members' colors and keys, which are `wishes`: with this
    /// member's, where there is no shorter way. Collective.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>>;

    /// The way from one member to another, of which this rank is one end: a group of two, in which member 0 sends and
    /// member 1 receives. Not collective: each end asks for it when it first needs it. Both ends' calls over a link
    /// are numbered apart from the group's.
    ///
    /// # Errors
    ///
    /// When the medium cannot make one.
    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>>;

    /// How many calls of a rank, in different groups, may usefully be in flight together: where all cores are busy,
    /// another thread only takes one away. The same number on all ranks, at least 1;
    /// `usize::MAX` where there is no reason for fewer.
    fn lanes(&self) -> usize;

    /// Whether the other members are only thought of, so that nothing is sent ([`dry`](crate::dry)), and the time of a call means
    /// nothing. Who wraps another transport asks that one.
    fn is_dry(&self) -> bool {
        false
    }

    /// Gives back memory that is kept for the results of calls to come, if any is.
    fn trim(&self);

    /// The rank is [`warmed_up`](crate::ProcessGroup::warmed_up).
    fn warmed_up(&self);

    /// Calls `sleep`, in which the calling thread blocks until call `sequence`, run by another thread, is over.
    ///
    /// A transport that looks for ranks that wait for each other learns of the wait here.
    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut());

    /// Ends the world: every rank that waits, or will wait, in any group is released with `cause`.
    fn abort(&self, cause: &Error);
}

/// What is left of a started call after [`Transport::stage`].
pub enum Staged {
    /// All: to be [`run`](Transport::run).
    Whole(Box<Call>, Buffer),
    /// The part that another thread than the rank's does.
    Launch(Box<dyn FnOnce() -> Result<Launched> + Send>),
}

/// A call that goes on behind.
pub struct Launched {
    /// Gives the result; to be called on the rank's own thread.
    pub land: Box<dyn FnOnce() -> Result<Buffer> + Send>,
    /// Whether the call is over, to be asked until it is or has failed; none where it is already.
    pub watch: Option<Watch>,
}

/// Looks at a call that goes on behind.
pub type Watch = Box<dyn FnMut() -> Result<bool> + Send>;

/// All members' numbers, for the `own` ones of this member: the call by which a group is divided. They begin with the
/// color and the key; all members give as many.
///
/// # Errors
///
/// As [`Transport::run`].
pub(crate) fn wishes(group: &dyn Transport, sequence: u64, name: &str, own: &[i64]) -> Result<Vec<Vec<i64>>> {
    let call = Call {
        sequence,
        name: name.to_string(),
        dim: Some(0),
        receive: PerMember::same(own.len(), group.members().len()),
        ..Call::new(Operation::Split, DType::I64, Shape::new([own.len()]))
    };
    let all = group.run(Box::new(call), Buffer::from_values(own.to_vec()))?.into_values::<i64>();
    Ok(all.chunks(own.len()).map(<[i64]>::to_vec).collect())
}

/// The color and the key of every member, of its [`wishes`].
pub(crate) fn colors_and_keys(wishes: &[Vec<i64>]) -> Vec<(usize, usize)> {
    wishes.iter().map(|wish| (wish[0] as usize, wish[1] as usize)).collect()
}

/// The members that form a group with member `me`, in the order of the new group, and its position there; `wishes` are
/// all members' colors and keys.
pub(crate) fn of_one_color(wishes: &[(usize, usize)], me: usize) -> (Vec<usize>, usize) {
    let mut chosen: Vec<usize> = (0..wishes.len()).filter(|member| wishes[*member].0 == wishes[me].0).collect();
    chosen.sort_by_key(|member| (wishes[*member].1, *member));
    let position = chosen.iter().position(|member| *member == me).expect("a member has its own color");
    (chosen, position)
}

/// The name of the link from one member of a group to another.
pub(crate) fn link_name(group: &str, from: usize, to: usize) -> String {
    format!("{group}, {from} to {to}")
}

/// What one end keeps of each of its links, by the members: made when it is first asked for, and once.
#[derive(Debug)]
pub(crate) struct Links<T: ?Sized>(Mutex<HashMap<(usize, usize), Arc<T>>>);

impl<T: ?Sized> Default for Links<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Links<T> {
    /// The link from one member to another.
    ///
    /// # Errors
    ///
    /// Those of `make`, which is asked again then.
    pub(crate) fn get(&self, from: usize, to: usize, make: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&(from, to)) {
            return Ok(link.clone());
        }
        let link = make()?;
        links.insert((from, to), link.clone());
        Ok(link)
    }
}
