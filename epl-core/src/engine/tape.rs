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

use super::gradients::Found;
use super::parameters::Seen;
use crate::error::Result;
use crate::model::carry::Carry;
use crate::model::graph::{CarryGradients, Seed, Track, Untrack, collect};
use crate::model::segment::Model;
use crate::plan::batch_views::BatchViews;
use crate::simulate::pieces::pieces;

/// What one micro-batch's forward leaves for its backward, from the first segment to the last.
pub(crate) struct Tape<'a, M: Model> {
    pieces: Vec<TapeEntry<'a, M>>,
}

/// One segment whose graph is stored, or a run of segments that are run again.
struct TapeEntry<'a, M: Model> {
    segments: Range<usize>,
    entrance: Option<M::Carry>,
    left: Left<'a, M>,
}

/// What is left of a piece's forward.
enum Left<'a, M> {
    /// Its graph, by the model that it ran, and the scalars at its exit; none behind the last segment of the model, where
    /// the loss is.
    Graph(Seen<'a, M>, Option<Seed>),
    /// What its collectives gave.
    Results(Recording),
}

/// Where backward begins.
pub(crate) enum Start {
    /// At a scalar behind the last segment, which is differentiated.
    Root(Box<Tensor<1>>),
    /// Behind the only segment, which the model has differentiated itself.
    Given(Box<Found>),
    /// At the exit of the last segment, whose gradients are these.
    Exit(CarryGradients),
}

/// What happens around the segments of a pass.
pub(crate) trait Around<'a, M: Model> {
    /// The model for a segment, and whether its parameters ask for gradients.
    fn model(&mut self, segment: usize, tracked: bool) -> Result<Seen<'a, M>>;

    /// Runs a segment's forward on what enters it, with its model.
    fn forward(&mut self, segment: usize, model: &M, enters: Option<M::Carry>, batch: &M::Batch) -> M::Carry;

    /// Runs a forward for the first time, and keeps what its collectives give.
    fn first<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> (T, Recording);

    /// Runs a forward again, with what its collectives gave.
    fn again<T>(&mut self, results: Recording, f: impl FnOnce(&mut Self) -> T) -> Result<T>;

    /// Runs a segment's backward, from a scalar, if there is one: the gradients of what entered and of the parameters of the model
    /// that it ran.
    fn backward(
        &mut self,
        segment: usize,
        ran: (&M, Option<&M::Carry>),
        root: Option<Tensor<1>>,
    ) -> Result<Option<Gradients>>;

    /// The gradients that a segment's backward left for the parameters of the model that it ran, as they become final;
    /// none where nothing asks for one.
    fn gradients(&mut self, segment: usize, model: Seen<'a, M>, found: Option<Found>) -> Result<()>;
}

impl<'a, M: Model> Tape<'a, M> {
    /// Runs segments forward, of which nothing but the entrance is kept of the runs `again`; returns what the last one
    /// returned, and the tape that leads back from there.
    pub fn forward(
        again: &[Range<usize>],
        batch: &BatchViews<'_, M::Batch>,
        segments: Range<usize>,
        mut carry: Option<M::Carry>,
        around: &mut impl Around<'a, M>,
    ) -> Result<(M::Carry, Self)> {
        let mut entries = Vec::new();
        for piece in pieces(segments, again) {
            let (exit, entry) = match again.contains(&piece) {
                true => TapeEntry::run(batch, piece, carry, around)?,
                false => TapeEntry::store(batch, piece.start, carry, around)?,
            };
            entries.push(entry);
            carry = Some(exit);
        }
        Ok((carry.expect("a tape has at least one segment"), Self { pieces: entries }))
    }

    /// The model that ran the last segment, where its graph is stored.
    pub fn last(&self) -> Option<&M> {
        match &self.pieces.last()?.left {
            Left::Graph(model, _) => Some(model),
            Left::Results(_) => None,
        }
    }

    /// Runs every segment backward, from the last to the first. Returns the gradients of the carry that entered the
    /// first segment, if one did.
    pub fn backward(
        self,
        batch: &BatchViews<'_, M::Batch>,
        mut start: Start,
        around: &mut impl Around<'a, M>,
    ) -> Result<CarryGradients> {
        for piece in self.pieces.into_iter().rev() {
            start = Start::Exit(piece.backward(batch, start, around)?);
        }
        match start {
            Start::Exit(found) => Ok(found),
            Start::Root(_) | Start::Given(_) => Ok(CarryGradients::new()),
        }
    }
}

impl<'a, M: Model> TapeEntry<'a, M> {
    /// One segment, whose graph stays.
    fn store(
        batch: &BatchViews<'_, M::Batch>,
        segment: usize,
        carry: Option<M::Carry>,
        around: &mut impl Around<'a, M>,
    ) -> Result<(M::Carry, Self)> {
        let entrance = carry.map(|carry| carry.map(&mut Track));
        let model = around.model(segment, true)?;
        let exit = around.forward(segment, &model, entrance.clone(), batch.of(segment));
        let seed = (segment + 1 < model.segments()).then(|| Seed::of(&exit));
        Ok((exit, Self { segments: segment..segment + 1, entrance, left: Left::Graph(model, seed) }))
    }

    /// Some segments, of which nothing stays but what enters the first one.
    fn run(
        batch: &BatchViews<'_, M::Batch>,
        segments: Range<usize>,
        carry: Option<M::Carry>,
        around: &mut impl Around<'a, M>,
    ) -> Result<(M::Carry, Self)> {
        let entrance = carry.map(|carry| carry.map(&mut Untrack));
        let mut carry = entrance.clone();
        let (ran, results) = around.first(|around| {
            segments.clone().try_for_each(|segment| {
                let model = around.model(segment, false)?;
                carry = Some(around.forward(segment, &model, carry.take(), batch.of(segment)));
                Ok(())
            })
        });
        ran.map(|()| {
            let exit = carry.expect("a run has at least one segment");
            (exit, Self { segments, entrance, left: Left::Results(results) })
        })
    }

    /// Returns the gradients of what entered.
    fn backward(
        self,
        batch: &BatchViews<'_, M::Batch>,
        start: Start,
        around: &mut impl Around<'a, M>,
    ) -> Result<CarryGradients> {
        let Self { segments, entrance, left } = self;
        let (model, seed) = match left {
            Left::Graph(model, seed) => (model, seed),
            Left::Results(results) => {
                let (_, tape) =
                    around.again(results, |around| Tape::forward(&[], batch, segments, entrance, around))??;
                return tape.backward(batch, start, around);
            }
        };
        let root = match start {
            Start::Root(root) => Some(*root),
            Start::Given(found) => {
                around.gradients(segments.start, model, Some(*found))?;
                return Ok(CarryGradients::new());
            }
            Start::Exit(gradients) => seed.and_then(|seed| seed.root(gradients)),
        };
        let root = root.filter(Tensor::is_tracked);
        let gradients = around.backward(segments.start, (&*model, entrance.as_ref()), root)?;
        let Some(mut gradients) = gradients else {
            // Nothing in this segment, nor before it, asks for a gradient.
            around.gradients(segments.start, model, None)?;
            return Ok(CarryGradients::new());
        };
        let found = entrance.map_or_else(CarryGradients::new, |carry| collect(carry, None::<&M>, &mut gradients));
        around.gradients(segments.start, model, Some(Found::Graph(gradients)))?;
        Ok(found)
    }
}
