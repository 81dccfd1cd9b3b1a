//! Generation through all stages: step after step, with a state a segment.
//!
//! ```text
//! stage 0   tokens ──▶ [ segment 0 ] ──▶ carry ┐         ┌▶ tokens ──▶ …
//! stage 1                                      └▶ [ 1 ] ─┴ chosen, told to all stages
//!             state            0                    1      stay where their segments are
//! ```

use core::slice::from_ref;

use burn::tensor::{Int, Tensor};

use super::forward::Forward;
use super::micro_batch::MicroBatch;
use super::rank::{Engine, caught};
use crate::error::{Error, Result};
use crate::model::segment::{Incremental, SegmentState};
use crate::topology::cluster::Axis;

/// A model that runs in steps: see [`Engine::decoding`].
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::{Int, Tensor}};
/// # use epl_core::{Engine, Incremental, Loss, LossWeights, Model, SegmentState, testing};
/// # #[derive(Module, Debug)]
/// # struct Net { head: Linear }
/// # impl Model for Net {
/// #     type Batch = Tensor<2>;
/// #     type Carry = Tensor<2>;
/// #     fn segments(&self) -> usize { 1 }
/// #     fn segments_of(&self, _: &str) -> Vec<usize> { vec![0] }
/// #     fn forward_segment(&self, _: usize, _: Option<Tensor<2>>, new: &Tensor<2>) -> Tensor<2> { new.clone() }
/// #     fn weights(&self, _: &Tensor<2>) -> LossWeights { LossWeights::new().with_rows("sum") }
/// #     fn loss(&self, carry: Tensor<2>, _: &Tensor<2>) -> Loss { Loss::new().with("sum", carry.sum(), 1.0) }
/// # }
/// # #[derive(Default)]
/// # struct Sum(Option<Tensor<2>>);
/// # impl SegmentState for Sum {
/// #     fn select(self, rows: Tensor<1, Int>) -> Self { Self(self.0.map(|sum| sum.select(0, rows))) }
/// # }
/// impl Incremental for Net {
///     type State = Sum; // of all that came before
///     fn forward_step(&self, _: usize, _: Option<Tensor<2>>, new: &Tensor<2>, state: &mut Sum) -> Tensor<2> {
///         let sum = state.0.take().map_or(new.clone(), |sum| sum + new.clone());
///         state.0.insert(sum).clone()
///     }
/// }
/// # testing::run((1, 1, 1), |epl| {
/// #     let engine = Engine::build(&epl, |at| Net { head: LinearConfig::new(1, 1).init(at) }, &SgdConfig::new())?;
/// #     let device = engine.device().clone().without_autodiff();
/// let (mut decoding, ones) = (engine.decoding()?, Tensor::<2>::ones([1, 1], &device));
/// let mut step = || decoding.step(1, ones.clone(), |_, sum| Ok(vec![sum.into_scalar::<f32>() as i64]));
/// assert_eq!([step()?, step()?, step()?], [[1], [2], [3]]); // of each row a number
/// # Ok(())
/// # });
/// ```
pub struct Decoding<'a, M: Incremental> {
    engine: &'a Engine<M>,
    forward: Forward<'a, M>,
    /// By segment; those of other stages' segments stay empty.
    states: Vec<M::State>,
    steps: usize,
}

impl<M: Incremental> Engine<M> {
    /// Begins to run the model in steps, without autodiff, dropout off, such as to write token by token.
    ///
    /// It goes through the stages, and parameters are gathered segment by segment, as in training: no rank has more of the
    /// model at once, and of the states each has those of its own segments.
    ///
    /// # Errors
    ///
    /// When stages have different widths, or a segment was [found](crate::LazyModel::discover) to run in slices.
    pub fn decoding(&self) -> Result<Decoding<'_, M>> {
        if self.context.mesh().is_bridged() {
            return Err(Error::invalid(
                "generation over stages of different widths, whose devices run different rows; give all stages as many \
                 devices",
            ));
        }
        let states = (0..self.plan.segments.len()).map(|_| M::State::default()).collect();
        if let Some(segment) = (0..self.plan.segments.len()).find(|segment| self.plan.split_of(*segment).is_some()) {
            return Err(Error::invalid(format!(
                "generation by a model whose segment `{}` was found to run in slices: it would have to be looked at step by step, \
                 too; leave `discover` out, or use the layers of `epl::nn`",
                self.plan.segments[segment]
            )));
        }
        Ok(Decoding { engine: self, forward: Forward::new(self, "step"), states, steps: 0 })
    }
}

impl<M: Incremental> Decoding<'_, M> {
    /// Runs one step of `rows` rows. Of what leaves the last segment, `choose` makes a number for each row, such as its next
    /// token, on the last stage; every rank of the replica gets these numbers. Collective: all replicas make as many steps,
    /// also those whose rows are all finished, and all ranks of a replica the same ones.
    ///
    /// # Errors
    ///
    /// When `choose` fails, or makes another number of numbers, or a peer fails.
    pub fn step(
        &mut self,
        rows: usize,
        batch: M::Batch,
        choose: impl FnOnce(&M, M::Carry) -> Result<Vec<i64>>,
    ) -> Result<Vec<i64>> {
        let Self { engine, forward, states, steps } = self;
        let micro_batch = MicroBatch::new(batch, []);
        let first = if *steps == 0 { 0 } else { forward.model().first_of_step() };
        let (mut choose, mut chosen, mut links) = (Some(choose), None, forward.links());
        let segment = |model: &M, index: usize, carry: Option<M::Carry>, batch: &M::Batch| {
            model.forward_step(index, carry, batch, &mut states[index])
        };
        let end = |model: &M, carry: M::Carry, _: &MicroBatch<M::Batch>| {
            chosen = choose.take().map(|choose| choose(model, carry)).transpose()?;
            Ok(())
        };
        let segments = first..engine.plan.segments.len();
        caught(|| forward.run(&mut links, (*steps, from_ref(&micro_batch)), segments, segment, end))?;
        links.finish()?;
        *steps += 1;
        if let Some(chosen) = chosen.as_ref().filter(|chosen| chosen.len() != rows) {
            let chosen = chosen.len();
            return Err(Error::invalid(format!(
                "a step of {rows} rows chose {chosen} numbers; choose one for each row"
            )));
        }
        self.tell(rows, chosen)
    }

    /// Keeps these rows, in this order: see [`SegmentState::select`].
    pub fn select(&mut self, rows: &[usize]) {
        let rows: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        let rows = Tensor::<1, Int>::from_data(rows.as_slice(), self.forward.device());
        let states = core::mem::take(&mut self.states);
        self.states = states.into_iter().map(|state| state.select(rows.clone())).collect();
    }

    /// Tells the other stages so many numbers that the last one has; others give none. Collective over the stages.
    ///
    /// # Errors
    ///
    /// When they are not as many, or a peer fails.
    pub fn tell(&self, count: usize, numbers: Option<Vec<i64>>) -> Result<Vec<i64>> {
        if let Some(numbers) = numbers.as_ref().filter(|numbers| numbers.len() != count) {
            let given = numbers.len();
            return Err(Error::invalid(format!(
                "{count} numbers are told to all stages, and {given} are given; give as many"
            )));
        }
        let stages = self.engine.context.axis(Axis::Pipeline);
        let own = numbers.unwrap_or_else(|| vec![0; count]);
        match stages.size() {
            1 => Ok(own),
            count => Ok(stages.all_gather_counts(&own)?.swap_remove(count - 1)),
        }
    }
}
