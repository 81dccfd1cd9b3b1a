//! What a collective does, and one call of it.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Shape};
use rustc_hash::FxHasher;

use crate::per_member::PerMember;

/// How values of several members become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Added in the order of the members, so that every member gets the same bits in every run; 16-bit floats in f32,
    /// rounded once. Whole numbers wrap around.
    Sum,
    /// The sum, divided by the number of members before it is rounded. Floats only.
    Mean,
    /// Multiplied in the order of the members, as a sum is added.
    Product,
    /// The smallest. A NaN wins over numbers.
    Min,
    /// The largest. A NaN wins over numbers.
    Max,
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
        })
    }
}

/// The kinds of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Every member gets the reduction of all members' tensors.
    AllReduce(ReduceOp),
    /// One member gets the reduction of all members' tensors; the others get their own back.
    Reduce {
        /// The reduction.
        op: ReduceOp,
        /// The member that gets it.
        root: usize,
    },
    /// Every member gets all members' tensors, concatenated in the order of the members.
    AllGather,
    /// One member gets all members' tensors, concatenated; the others get their own back.
    Gather {
        /// The member that gets them.
        root: usize,
    },
    /// Every member gets its part of the reduction of all members' tensors.
    ReduceScatter(ReduceOp),
    /// Every member gets its part of the tensor of one of them.
    Scatter {
        /// The member whose tensor it is.
        root: usize,
    },
    /// Every member gets one part from every member, concatenated in the order of the members.
    AllToAll,
    /// Every member gets the tensor of one of them.
    Broadcast {
        /// The member whose tensor it is.
        root: usize,
    },
    /// One end of a link gives its tensor to the other end, which calls [`Receive`](Self::Receive).
    Send,
    /// One end of a link gets the tensor that the other end gives.
    Receive,
    /// Nobody leaves before all have come.
    Barrier,
    /// The group is divided: every member gets all members' colors and keys.
    Split,
}

impl Operation {
    /// The method that calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::Reduce { .. } => "reduce",
            Self::AllGather => "all_gather",
            Self::Gather { .. } => "gather",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::Scatter { .. } => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Broadcast { .. } => "broadcast",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Barrier => "barrier",
            Self::Split => "split",
        }
    }

    /// What it reduces by, if it reduces.
    pub fn reduction(self) -> Option<ReduceOp> {
        match self {
            Self::AllReduce(op) | Self::ReduceScatter(op) | Self::Reduce { op, .. } => Some(op),
            _ => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::AllReduce(op) | Self::ReduceScatter(op) => write!(f, "{name}({op})"),
            Self::Reduce { op, root } => write!(f, "{name}({op}, root {root})"),
            Self::Gather { root } | Self::Scatter { root } | Self::Broadcast { root } => {
                write!(f, "{name}(root {root})")
            }
            _ => f.write_str(name),
        }
    }
}

/// One call of a collective by one member: everything but the data.
///
/// What is divided, or put together, is a row-major matrix of [`rows`](Self::rows) rows:
///
/// ```text
///                   send [2, 1]           receive [2, 1]
/// all_gather, gather                      each row of the result: member 0's 2 elements, member 1's 1
/// reduce_scatter,   each row of the
/// scatter           tensor: 2 | 1
/// all_to_all        2 elements to 0,      from each member `rows` times that many elements, put side by side
///                   then 1 to 1
/// ```
///
/// A transport sees it in pieces: in the buffer that it is given those for each member ([`piece_for`](Self::piece_for)), in
/// the one that it gives those from each ([`received`](Self::received)), one after the other and each in a row. One that
/// [`moves_rows`](crate::Transport::moves_rows) sees the matrix itself.
///
/// ```
/// use burn::tensor::{DType, Shape};
/// use epl_comm::{Call, Operation, ReduceOp};
///
/// // A tensor of two rows, of which member 0 gets two columns and member 1 one.
/// let summed = Operation::ReduceScatter(ReduceOp::Sum);
/// let call = Call::new(summed, DType::F32, Shape::new([2, 3]));
/// let call = Call { dim: Some(1), rows: 2, send: [2, 1].into_iter().collect(), ..call };
/// assert_eq!([call.piece_for(0), call.piece_for(1)], [0..4, 4..6]);
/// assert!(!call.agrees(0, &Call { dtype: DType::F64, ..call.clone() }, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The collective.
    pub operation: Operation,
    /// The element type.
    pub dtype: DType,
    /// The shape of this member's tensor.
    pub shape: Shape,
    /// The dim that is put together or, in a reduce_scatter or a scatter, divided; members may differ there only as
    /// [`send`](Self::send) and [`receive`](Self::receive) say. `None` where no dim is.
    pub dim: Option<usize>,
    /// The dim that an all_to_all divides; otherwise `None`.
    pub split_dim: Option<usize>,
    /// Rows of the result of a gather or an all-to-all, of the tensor of a scatter; 1 otherwise.
    pub rows: usize,
    /// How many elements go to each member: in each row (reduce_scatter, scatter), in all (all_to_all); otherwise
    /// empty.
    pub send: PerMember,
    /// How many elements come from each member into each row (all_gather, gather, all_to_all); otherwise empty.
    pub receive: PerMember,
    /// The name of the group that a split makes; otherwise empty.
    pub name: String,
    /// The number of the call in its group, from 1. The transport gives it: see
    /// [`Transport::reserve`](crate::Transport::reserve).
    pub sequence: u64,
    /// The call over several hosts that this one is a stage of: members whose whole calls differ do not agree, and the
    /// whole one is what an error names. None for most calls.
    pub part_of: Option<Arc<Call>>,
}

impl Call {
    /// A call in which no dim is divided.
    pub fn new(operation: Operation, dtype: DType, shape: Shape) -> Self {
        let (send, receive, name) = (PerMember::default(), PerMember::default(), String::new());
        Self {
            operation,
            dtype,
            shape,
            dim: None,
            split_dim: None,
            rows: 1,
            send,
            receive,
            name,
            sequence: 0,
            part_of: None,
        }
    }

    /// The piece of this member's buffer that is for a member.
    pub fn piece_for(&self, member: usize) -> Range<usize> {
        let rows = self.rows_to_send();
        let start = rows * self.send.before(member);
        start..start + rows * self.send[member]
    }

    /// How many elements go to each member in all.
    pub fn sent(&self) -> PerMember {
        self.send.times(self.rows_to_send())
    }

    /// How many elements come from each member in all.
    pub fn received(&self) -> PerMember {
        self.receive.times(self.rows)
    }

    fn rows_to_send(&self) -> usize {
        if self.operation == Operation::AllToAll { 1 } else { self.rows }
    }

    /// Whether member `me` with this call and member `them` with `other` can go on together.
    pub fn agrees(&self, me: usize, other: &Call, them: usize) -> bool {
        let fits = match (self.operation, other.operation) {
            (Operation::Send, theirs) => theirs == Operation::Receive,
            (Operation::Receive, theirs) => theirs == Operation::Send,
            (ours, theirs) => ours == theirs,
        };
        let gist = |call: &Call| call.part_of.as_ref().map(|whole| whole.gist());
        fits && self.dtype == other.dtype
            && gist(self) == gist(other)
            && match self.operation {
                Operation::AllToAll => {
                    (self.dim, self.split_dim) == (other.dim, other.split_dim)
                        && self.same_shape_but_for_dim(other)
                        && self.send[them] == other.rows * other.receive[me]
                        && other.send[me] == self.rows * self.receive[them]
                }
                Operation::Split => self.name == other.name,
                Operation::AllGather | Operation::Gather { .. } => {
                    (self.dim, self.rows, &self.receive) == (other.dim, other.rows, &other.receive)
                        && self.same_shape_but_for_dim(other)
                }
                _ => (&self.shape, self.dim, &self.send) == (&other.shape, other.dim, &other.send),
            }
    }

    /// A number that two calls have in common when they agree, and otherwise as good as never. None where members that
    /// agree make different calls.
    pub(crate) fn digest(&self) -> Option<u64> {
        let own_extent = match self.operation {
            Operation::AllToAll if !self.is_even() => return None,
            Operation::Send | Operation::Receive | Operation::Split => return None,
            Operation::AllGather | Operation::Gather { .. } => self.dim,
            _ => None,
        };
        let mut hasher = FxHasher::default();
        let dims = (self.dim, self.split_dim, self.shape.num_dims());
        (self.operation, self.dtype, self.rows, dims).hash(&mut hasher);
        let extents = self.shape.iter().enumerate().filter(|(dim, _)| Some(*dim) != own_extent);
        extents.for_each(|(_, extent)| extent.hash(&mut hasher));
        (&self.send, &self.receive).hash(&mut hasher);
        self.part_of.as_ref().map(|whole| whole.gist()).hash(&mut hasher);
        Some(hasher.finish())
    }

    /// A number that two calls have in common when they agree as far as one end can know: how much members of an
    /// all-to-all have for each other is left out.
    fn gist(&self) -> u64 {
        if let (Some(digest), true) = (self.digest(), self.operation != Operation::AllToAll) {
            return digest;
        }
        let mut hasher = FxHasher::default();
        (self.operation, self.dtype, &self.name, self.dim, self.split_dim, self.shape.num_dims()).hash(&mut hasher);
        let extents = self.shape.iter().enumerate().filter(|(dim, _)| Some(*dim) != self.dim);
        extents.for_each(|(_, extent)| extent.hash(&mut hasher));
        hasher.finish()
    }

    /// The call that a caller has made: the one of which this is a stage, or this one.
    pub(crate) fn whole(&self) -> &Call {
        self.part_of.as_deref().unwrap_or(self)
    }

    /// Whether every member sends to and receives from every other as much.
    fn is_even(&self) -> bool {
        self.send.is_even() && self.send == self.receive.times(self.rows)
    }

    fn same_shape_but_for_dim(&self, other: &Call) -> bool {
        let dims = self.shape.iter().zip(other.shape.iter()).enumerate();
        self.shape.num_dims() == other.shape.num_dims()
            && dims.filter(|(dim, _)| Some(*dim) != self.dim).all(|(_, (a, b))| a == b)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(whole) = &self.part_of {
            return whole.fmt(f);
        }
        write!(f, "{}", self.operation)?;
        match self.operation {
            Operation::Barrier => return Ok(()),
            Operation::Split => return write!(f, " into `{}`", self.name),
            _ => {}
        }
        write!(f, " of {} {:?}", self.dtype.name(), self.shape.as_slice())?;
        match (self.split_dim, self.dim) {
            (Some(from), Some(to)) => write!(f, " from dim {from} to dim {to}")?,
            (None, Some(dim)) => write!(f, " along dim {dim}")?,
            _ => {}
        }
        if !self.send.is_empty() {
            write!(f, ", sending {:?}", self.send)?;
        }
        if !self.receive.is_empty() {
            write!(f, ", receiving {:?}", self.receive)?;
        }
        if self.rows != 1 {
            write!(f, " in {} rows", self.rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_same_digest_if_and_only_if_they_agree() {
        let call = |operation, shape: [usize; 2], dim: Option<usize>, send: &[usize], receive: &[usize]| Call {
            dim,
            send: send.into(),
            receive: receive.into(),
            ..Call::new(operation, DType::F32, Shape::new(shape))
        };
        let (sum, max) = (Operation::AllReduce(ReduceOp::Sum), Operation::AllReduce(ReduceOp::Max));
        let calls = [
            call(sum, [2, 3], None, &[], &[]),
            call(max, [2, 3], None, &[], &[]),
            call(sum, [3, 2], None, &[], &[]),
            call(Operation::AllGather, [2, 3], Some(0), &[], &[2, 4]),
            call(Operation::AllGather, [4, 3], Some(0), &[], &[2, 4]),
            call(Operation::AllGather, [4, 2], Some(0), &[], &[2, 4]),
            call(Operation::Gather { root: 0 }, [4, 3], Some(0), &[], &[2, 4]),
            call(Operation::ReduceScatter(ReduceOp::Sum), [6, 3], Some(0), &[2, 4], &[]),
            call(Operation::ReduceScatter(ReduceOp::Sum), [6, 3], Some(0), &[4, 2], &[]),
            call(Operation::Scatter { root: 1 }, [6, 3], Some(0), &[4, 2], &[]),
            call(Operation::Broadcast { root: 1 }, [2, 3], None, &[], &[]),
            Call { dtype: DType::F64, ..call(sum, [2, 3], None, &[], &[]) },
        ];
        for (me, a) in calls.iter().enumerate() {
            for (them, b) in calls.iter().enumerate() {
                assert!(a.digest().is_some());
                assert_eq!(a.digest() == b.digest(), a.agrees(me, b, them), "{a} and {b}");
            }
        }
        let exchange = |send: &[usize], receive: &[usize]| call(Operation::AllToAll, [4, 3], Some(0), send, receive);
        let (even, uneven) = (exchange(&[6, 6], &[6, 6]), exchange(&[3, 9], &[3, 6]));
        assert!(even.agrees(0, &even, 1) && even.digest().is_some());
        assert!(uneven.digest().is_none() && exchange(&[6, 6], &[5, 5]).digest().is_none());
    }
}
