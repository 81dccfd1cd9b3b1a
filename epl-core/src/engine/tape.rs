//! One micro-batch through some consecutive segments, each a graph of its own.
//!
//! ```text
//!            entrance 0      exit 0    entrance 1      exit 1
//! batch ──▶ [ segment 0 ] ──▶ carry ┆──▶ [ segment 1 ] ──▶ carry ──▶ loss, or another stage     forward
//!                              ▲    ┆      │
//!                       seed with   ┆   gradient of                                             backward
//!                       ◀───────────┆── entrance 1 ◀────── backward of the loss, or of the exit
//! ```
//!
//! The carry is detached and tracked at each entrance (┆). Burn runs one tape deepest first and operations on
//! leaves last, so on one tape no gradient would be final before the end; with a graph a segment they are final
//! after each segment's backward.
//!
//! Of a run of segments that is recomputed, only what enters it is kept. Its forward runs without a graph, and again,
//! as above, when its backward is due; its collectives then give what they gave before.

use std::ops::Range;

use burn::tensor::{Gradients, Tensor};
use epl_comm::Recording;

use crate::carry::Carry;
use crate::error::Result;
use crate::graph::{CarryGradients, Seed, Track, Untrack, collect};
use crate::segment::Segmented;

/// What one micro-batch's forward leaves for its backward, from the first segment to the last.
pub(crate) struct Tape<C> {
    pieces: Vec<Piece<C>>,
}

/// One segment whose graph is stored, or a run of segments that are run again.
struct Piece<C> {
    segments: Range<usize>,
    entrance: Option<C>,
    left: Left,
}

/// What is left of a piece's forward.
enum Left {
    /// Its graph, and the scalars at its exit; none behind the last segment of the model, where the loss is.
    Graph(Option<Seed>),
    /// What its collectives gave.
    Results(Recording),
}

/// Where backward begins.
pub(crate) enum Start {
    /// At a scalar behind the last segment, which is differentiated.
    Root(Box<Tensor<1>>),
    /// At the exit of the last segment, whose gradients are these.
    Exit(CarryGradients),
}

/// What happens around the segments of a pass.
pub(crate) trait Around {
    /// Runs a segment's forward.
    fn forward<T>(&mut self, segment: usize, f: impl FnOnce() -> T) -> T;

    /// Runs a forward for the first time, and keeps what its collectives give.
    fn first<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> (T, Recording);

    /// Runs a forward again, with what its collectives gave.
    fn again<T>(&mut self, results: Recording, f: impl FnOnce(&mut Self) -> T) -> Result<T>;

    /// Runs a segment's backward.
    fn backward<T>(&mut self, segment: usize, f: impl FnOnce() -> T) -> T;

    /// The gradients that a segment's backward left, as they become final; none where nothing asks for one.
    fn gradients(&mut self, segment: usize, gradients: Option<Gradients>) -> Result<()>;
}

/// A model, as a tape runs it.
pub(crate) struct Runs<'a, M> {
    /// The model.
    pub model: &'a M,
    /// The same without a parameter that asks for a gradient; none where nothing is run again.
    pub untracked: Option<&'a M>,
    /// The runs of segments of which only the entrance is kept.
    pub again: &'a [Range<usize>],
}

impl<C: Carry> Tape<C> {
    /// Runs segments forward; returns what the last one returned, and the tape that leads back from there.
    pub fn forward<M: Segmented<Carry = C>>(
        runs: &Runs<'_, M>,
        batch: &M::Batch,
        segments: Range<usize>,
        mut carry: Option<C>,
        around: &mut impl Around,
    ) -> (C, Self) {
        let mut pieces = Vec::new();
        let mut next = segments.start;
        while next < segments.end {
            let again = runs.again.iter().find(|run| run.start == next).zip(runs.untracked);
            let (exit, piece) = match again {
                Some((run, untracked)) => Piece::run(untracked, batch, run.clone(), carry, around),
                None => Piece::store(runs.model, batch, next, carry, around),
            };
            next = piece.segments.end;
            pieces.push(piece);
            carry = Some(exit);
        }
        (carry.expect("a tape has at least one segment"), Self { pieces })
    }

    /// Runs every segment backward, from the last to the first. Returns the gradients of the carry that entered the
    /// first segment, if one did.
    pub fn backward<M: Segmented<Carry = C>>(
        self,
        model: &M,
        batch: &M::Batch,
        mut start: Start,
        around: &mut impl Around,
    ) -> Result<CarryGradients> {
        for piece in self.pieces.into_iter().rev() {
            start = Start::Exit(piece.backward(model, batch, start, around)?);
        }
        match start {
            Start::Exit(found) => Ok(found),
            Start::Root(_) => Ok(CarryGradients::new()),
        }
    }
}

impl<C: Carry> Piece<C> {
    /// One segment, whose graph stays.
    fn store<M: Segmented<Carry = C>>(
        model: &M,
        batch: &M::Batch,
        segment: usize,
        carry: Option<C>,
        around: &mut impl Around,
    ) -> (C, Self) {
        let entrance = carry.map(|carry| carry.map(&mut Track));
        let exit = around.forward(segment, || model.forward_segment(segment, entrance.clone(), batch));
        let left = Left::Graph((segment + 1 < model.segments()).then(|| Seed::of(&exit)));
        (exit, Self { segments: segment..segment + 1, entrance, left })
    }

    /// Some segments, of which nothing stays but what enters the first one.
    fn run<M: Segmented<Carry = C>>(
        untracked: &M,
        batch: &M::Batch,
        segments: Range<usize>,
        carry: Option<C>,
        around: &mut impl Around,
    ) -> (C, Self) {
        let entrance = carry.map(|carry| carry.map(&mut Untrack));
        let mut carry = entrance.clone();
        let ((), results) = around.first(|around| {
            for segment in segments.clone() {
                let entrance = carry.take();
                carry = Some(around.forward(segment, || untracked.forward_segment(segment, entrance, batch)));
            }
        });
        (carry.expect("a run has at least one segment"), Self { segments, entrance, left: Left::Results(results) })
    }

    /// Returns the gradients of what entered.
    fn backward<M: Segmented<Carry = C>>(
        self,
        model: &M,
        batch: &M::Batch,
        start: Start,
        around: &mut impl Around,
    ) -> Result<CarryGradients> {
        let Self { segments, entrance, left } = self;
        let seed = match left {
            Left::Graph(seed) => seed,
            Left::Results(results) => {
                let runs = Runs { model, untracked: None, again: &[] };
                let (_, tape) =
                    around.again(results, |around| Tape::forward(&runs, batch, segments, entrance, around))?;
                return tape.backward(model, batch, start, around);
            }
        };
        let root = match start {
            Start::Root(root) => Some(*root),
            Start::Exit(gradients) => seed.and_then(|seed| seed.root(gradients)),
        };
        let root = root.filter(Tensor::is_tracked);
        let gradients = around.backward(segments.start, || root.map(|root| root.backward()));
        let Some(mut gradients) = gradients else {
            // Nothing in this segment, nor before it, asks for a gradient.
            around.gradients(segments.start, None)?;
            return Ok(CarryGradients::new());
        };
        let found = entrance.map_or_else(CarryGradients::new, |carry| collect(carry, None::<&M>, &mut gradients));
        around.gradients(segments.start, Some(gradients))?;
        Ok(found)
    }
}
