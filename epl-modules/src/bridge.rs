//! From the rows of each rank to the rows of all: what stands between a replicated part of a model and a split part that
//! share their ranks.
//!
//! ```text
//!            replicated part                      split part
//! rank 0     rows 0..3     ──┐              ┌──   rows 0..5 × classes 0..2  ──┐
//!                            ├──  bridge  ──┤                                 ├──  loss, counted once
//! rank 1     rows 3..5     ──┘              └──   rows 0..5 × classes 2..4  ──┘
//! ```
//!
//! EPL's bridge. A stand-in's rows do not cross it.

use core::ops::Range;

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::kind::Autodiff;
use epl_comm::{Copied, ProcessGroup, ReduceOp, custom_vjp, unwind};
use epl_core::{Context, Place};

use crate::invalid::refuse;
use crate::linear::Operand;

/// Gathers the rows of the ranks that share a split part. Where they run the same rows it does nothing.
#[derive(Module, Debug)]
pub struct Bridge {
    #[module(skip)]
    context: Context,
}

impl Bridge {
    /// The bridge to the split part at a place. The layers of that part are made in
    /// [`Place::behind_bridge`](epl_core::Place::behind_bridge).
    ///
    /// # Errors
    ///
    /// Unwinds with an error behind another bridge: the rows would be gathered twice.
    pub fn new(place: &Place) -> Self {
        if place.is_behind_bridge() {
            refuse(format!("{}: a bridge behind a bridge; make it at the place of the `split` scope", place.path()));
        }
        Self { context: place.context().clone() }
    }

    /// Opens it for a batch of which this rank has so many rows. Collective.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a peer fails.
    pub fn open(&self, rows: usize) -> Crossing {
        let Some(group) = self.context.to_be_bridged() else { return Crossing { rows, peers: None } };
        let is_stand_in = i64::from(self.context.is_stand_in());
        let counts = group.all_gather_counts(&[rows as i64, is_stand_in]).unwrap_or_else(|error| unwind(error));
        // Something must cross: where nobody has a row that counts, the stand-ins do.
        let nobody = counts.iter().all(|count| count[1] == 1);
        let sizes: Vec<usize> =
            counts.iter().map(|count| if count[1] == 1 && !nobody { 0 } else { count[0] as usize }).collect();
        Crossing { rows, peers: Some(Peers { group: group.clone(), sizes }) }
    }
}

/// One batch on its way over a [`Bridge`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::{launch, testing};
/// # use epl_modules::{Bridge, SplitLinearConfig};
/// # let config = testing::config(2, 1, 2).with("cluster.colocate_split_and_replicate", true)?;
/// let found = launch(&config, |epl| { // two replicas, which are also the two ranks of a `split` scope
///     let head = SplitLinearConfig::new(4, 6);
///     let (bridge, head) = epl.place().split(2, |at| (Bridge::new(at), at.behind_bridge(|at| head.init(at))));
///     let rows = [1, 2][epl.context().data().rank()]; // of this rank
///     let crossing = bridge.open(rows);
///     let logits = head.forward(crossing.gather(Tensor::<2>::ones([rows, 4], epl.place().device())));
///     assert_eq!(logits.clone().local().dims(), [3, 3]); // all rows, half of the classes
///     assert_eq!(crossing.own(logits.all_gather()).dims(), [rows, 6]);
///     let targets = crossing.gather_values(Tensor::<1>::ones([rows], epl.place().device()));
///     Ok(crossing.count_once(targets.sum()).into_scalar::<f32>())
/// })?;
/// assert_eq!(found, [3.0, 0.0]); // the sum of all rows, once
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Crossing {
    /// Rows of this rank, a stand-in's too.
    rows: usize,
    peers: Option<Peers>,
}

#[derive(Clone, Debug)]
struct Peers {
    group: ProcessGroup,
    /// The rows of each that cross.
    sizes: Vec<usize>,
}

impl Peers {
    /// Where this rank's rows are among all.
    fn mine(&self) -> Range<usize> {
        let start = self.sizes[..self.group.rank()].iter().sum();
        start..start + self.sizes[self.group.rank()]
    }

    /// The rows of all ranks that cross.
    fn gather<const D: usize, K: Autodiff>(&self, x: Tensor<D, K>) -> Tensor<D, K> {
        let x = x.slice_dim(0, 0..self.mine().len());
        self.group.all_gather_uneven(x, 0, &self.sizes).unwrap_or_else(|error| unwind(error))
    }

    /// The sums of this rank's rows; zeros for rows that did not cross.
    fn return_rows<const D: usize>(&self, all: Tensor<D>, rows: usize) -> Tensor<D> {
        let own = self.group.reduce_scatter_uneven(all, 0, &self.sizes, ReduceOp::Sum);
        self.padded(own.unwrap_or_else(|error| unwind(error)), rows)
    }

    /// This rank's rows of all.
    fn own<const D: usize, K: Autodiff>(&self, all: Tensor<D, K>, rows: usize) -> Tensor<D, K> {
        self.padded(all.slice_dim(0, self.mine()), rows)
    }

    /// This rank's rows, as they came; zeros in the place of a stand-in's.
    fn padded<const D: usize, K: Autodiff>(&self, own: Tensor<D, K>, rows: usize) -> Tensor<D, K> {
        if own.dims()[0] == rows {
            return own;
        }
        let mut shape = own.dims();
        shape[0] = rows;
        Tensor::zeros(shape, (&own.device(), own.dtype()))
    }
}

impl Crossing {
    /// The rows of all ranks, for a split layer. Forward an all-gather, backward a reduce-scatter.
    ///
    /// # Shapes
    ///
    /// - x: `[rows, ...]`
    /// - output: `[rows of all ranks, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a peer fails.
    pub fn gather<const D: usize>(&self, x: Tensor<D>) -> Operand<D> {
        match &self.peers {
            None => Operand::Replicated(x),
            Some(peers) => {
                // One operation: a slice without a row, as of a stand-in, would end the graph on this rank only.
                let (forth, back, rows) = (peers.clone(), peers.clone(), self.rows);
                let all = custom_vjp(
                    (x,),
                    move |(x,)| (forth.gather(x), ()),
                    move |(), grad| (Some(back.return_rows(grad, rows)),),
                );
                Operand::Copied(Copied::from_local(all, &peers.group))
            }
        }
    }

    /// Values of all ranks' rows that have no gradient, such as targets.
    ///
    /// # Shapes
    ///
    /// - values: `[rows, ...]`
    /// - output: `[rows of all ranks, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a peer fails.
    pub fn gather_values<const D: usize, K: Autodiff>(&self, values: Tensor<D, K>) -> Tensor<D, K> {
        match &self.peers {
            None => values,
            Some(peers) => peers.gather(values),
        }
    }

    /// This rank's rows of what was made of all, the same on every rank; zeros for a stand-in's. Backward an all-gather.
    ///
    /// # Shapes
    ///
    /// - x: `[rows of all ranks, ...]`
    /// - output: `[rows, ...]`
    pub fn own<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let Some(peers) = self.peers.clone() else { return x };
        let (forth, rows) = (peers.clone(), self.rows);
        custom_vjp((x,), move |(x,)| (forth.own(x, rows), ()), move |(), grad| (Some(peers.gather(grad)),))
    }

    /// [`own`](Self::own) of what has no gradient, such as predictions.
    ///
    /// # Shapes
    ///
    /// As there.
    pub fn own_values<const D: usize, K: Autodiff>(&self, x: Tensor<D, K>) -> Tensor<D, K> {
        match &self.peers {
            None => x,
            Some(peers) => peers.own(x, self.rows),
        }
    }

    /// A sum over all rows that every rank has, as a term of the loss, which is summed over the ranks: it counts once,
    /// and reaches each of them in backward.
    ///
    /// # Shapes
    ///
    /// - sum and output: `[1]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a peer fails.
    pub fn count_once(&self, sum: Tensor<1>) -> Tensor<1> {
        let Some(Peers { group, sizes }) = self.peers.clone() else { return sum };
        // The engine seeds a stand-in with zero: the seed is that of the first whose rows count.
        let first = sizes.iter().position(|size| *size > 0).unwrap_or(0);
        custom_vjp(
            (sum,),
            |(sum,)| (if group.rank() == first { sum } else { sum.zeros_like() }, group.clone()),
            move |group, grad| (Some(group.broadcast(grad, first).unwrap_or_else(|error| unwind(error))),),
        )
    }
}
