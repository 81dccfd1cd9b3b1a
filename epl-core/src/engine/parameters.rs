//! The model, as the segments of a step see it.
//!
//! ```text
//! this thread      [segment 0   ][segment 1   ][segment 2   ]
//! gathers      [0]     [1]           [2]
//! ```
//!
//! Where parameters are parked, those of a segment are gathered for it, those of the next one while it runs. They are
//! freed when the last one that sees them is done. Under mixed precision they are cast in the same way.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::rc::{Rc, Weak};

use burn::tensor::Tensor;
use epl_comm::Pending;

use super::Engine;
use super::meter::{Lease, bytes};
use crate::error::Result;
use crate::plan::park::{fill, members};
use crate::precision::HalfPrecision;
use crate::segment::Segmented;

/// The model, with at least the parameters of one segment.
pub(crate) enum Seen<'a, M> {
    All(&'a M),
    /// Shared by all that see the same segment at the same time.
    Some(Rc<Own<M>>),
}

/// A model with parameters of its own, counted as long as it is there.
pub(crate) struct Own<M> {
    model: M,
    _leases: Vec<Lease>,
}

impl<M> Deref for Seen<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        match self {
            Self::All(model) => model,
            Self::Some(own) => &own.model,
        }
    }
}

/// A segment, and whether its parameters ask for gradients.
pub(super) type Look = (usize, bool);

/// The parameters during a step, or during an evaluation.
pub(super) struct Parameters<'a, M: Segmented> {
    engine: &'a Engine<M>,
    model: &'a M,
    /// In which type of 16 bits segments compute, if they do.
    half: Option<HalfPrecision>,
    /// The same without a parameter that asks for a gradient, where segments are recomputed.
    untracked: Option<Rc<Own<M>>>,
    /// What will be asked for, in this order.
    next: VecDeque<Look>,
    /// By the number of the unit.
    coming: HashMap<usize, Coming>,
    seen: HashMap<Look, Weak<Own<M>>>,
}

/// A unit that is gathered, counted from now on.
struct Coming(Gathered, Lease);

enum Gathered {
    /// This rank keeps the whole.
    Here(Box<Tensor<1>>),
    Pending(Box<Pending<Tensor<1>>>),
}

impl<'a, M: Segmented> Parameters<'a, M> {
    /// Those of `model`, which is the engine's. `next` are the segments that will be asked for.
    pub fn new(engine: &'a Engine<M>, model: &'a M, next: impl IntoIterator<Item = Look>) -> Self {
        let parks = engine.plan.parks();
        let next: VecDeque<Look> = next.into_iter().filter(|_| parks).collect();
        let half = engine.plan.half;
        Self { engine, model, half, untracked: None, next, coming: HashMap::new(), seen: HashMap::new() }
    }

    /// Cast to this type of 16 bits, or none; without this, as the plan says.
    pub fn with_half(self, half: Option<HalfPrecision>) -> Self {
        Self { half, ..self }
    }

    /// The model for a segment, whose parameters ask for gradients if `tracked` and they do. Collective where parameters
    /// are parked.
    pub fn segment(&mut self, segment: usize, tracked: bool) -> Result<Seen<'a, M>> {
        if !self.engine.plan.parks() && self.half.is_none() {
            return Ok(match tracked {
                true => Seen::All(self.model),
                false => Seen::Some(self.untracked().clone()),
            });
        }
        let look = (segment, tracked);
        if self.next.front() == Some(&look) {
            self.next.pop_front();
        }
        let model = match self.seen(look) {
            Some(model) => model,
            None => self.made(look)?,
        };
        Ok(Seen::Some(model))
    }

    fn untracked(&mut self) -> &Rc<Own<M>> {
        let model = self.model;
        self.untracked.get_or_insert_with(|| Rc::new(Own { model: model.clone().no_grad(), _leases: Vec::new() }))
    }

    /// Starts to gather what will be asked for next. Collective where parameters are parked.
    pub fn ahead(&mut self) -> Result<()> {
        match self.next.front().copied().filter(|next| self.seen(*next).is_none()) {
            Some((next, _)) => self.ask(next),
            None => Ok(()),
        }
    }

    fn seen(&self, look: Look) -> Option<Rc<Own<M>>> {
        self.seen.get(&look).and_then(Weak::upgrade)
    }

    /// Makes the model for a segment: with what is gathered, and with casts of what is computed with in 16 bits.
    fn made(&mut self, look: Look) -> Result<Rc<Own<M>>> {
        self.ask(look.0)?;
        let model = match look.1 || self.engine.plan.parks() {
            true => self.model.clone(),
            false => self.untracked().model.clone(),
        };
        let (mut values, mut leases) = self.gathered(look.0)?;
        let (plan, half, meter) = (&self.engine.plan, self.half, &self.engine.meters.parameters);
        let model = fill(model, &plan.records, look.1, |number, own| {
            let record = &plan.records[number];
            let is_cast = half.is_some() && record.half && record.held && record.segments.contains(&look.0);
            let value = values.remove(&number).or_else(|| is_cast.then(own))?;
            let Some(half) = half.filter(|_| is_cast) else { return Some(value) };
            let cast = value.cast(half.dtype());
            leases.push(meter.lease(bytes(&cast)));
            Some(cast)
        });
        let own = Rc::new(Own { model, _leases: leases });
        self.seen.insert(look, Rc::downgrade(&own));
        Ok(own)
    }

    /// Waits for what is gathered for a segment: by the numbers of the records, flat.
    fn gathered(&mut self, segment: usize) -> Result<(HashMap<usize, Tensor<1>>, Vec<Lease>)> {
        let plan = &self.engine.plan;
        let (mut values, mut leases) = (HashMap::<usize, Tensor<1>>::new(), Vec::new());
        for (number, unit) in plan.units().enumerate() {
            if !self.is_of(number, segment) {
                continue;
            }
            let Some(Coming(gathered, lease)) = self.coming.remove(&number) else { continue };
            let flat = match gathered {
                Gathered::Here(flat) => *flat,
                Gathered::Pending(pending) => pending.wait()?,
            };
            leases.push(lease);
            let uses = |(member, _): &(usize, Tensor<1>)| plan.records[*member].segments.contains(&segment);
            values.extend(members(unit, &plan.records, flat).filter(uses));
        }
        Ok((values, leases))
    }

    /// Whether a unit has a parked parameter that a segment uses.
    fn is_of(&self, unit: usize, segment: usize) -> bool {
        let plan = &self.engine.plan;
        let uses = |member: &usize| plan.records[*member].parked && plan.records[*member].segments.contains(&segment);
        plan.unit(unit).members.iter().any(uses)
    }

    /// Starts to gather what a segment needs.
    fn ask(&mut self, segment: usize) -> Result<()> {
        let Engine { plan, lanes, parked, context, meters, device, .. } = self.engine;
        let device = &device.clone().without_autodiff();
        for (number, (unit, chunk)) in plan.units().zip(&parked.0).enumerate() {
            if !self.is_of(number, segment) || self.coming.contains_key(&number) {
                continue;
            }
            let coming = match () {
                _ if !plan.shards_parameters() || lanes.gathers(unit.axis).size() == 1 => {
                    let bytes = (plan.kept_len(unit) * unit.dtype.size()) as u64 - chunk.device_bytes();
                    Coming(Gathered::Here(Box::new(chunk.read(device)?)), meters.parameters.lease(bytes))
                }
                _ => {
                    let lease = meters.parameters.lease((unit.shards.iter().sum::<usize>() * unit.dtype.size()) as u64);
                    // What is run again needs its parameters again.
                    let (group, own) = (lanes.gathers(unit.axis), chunk.read(device)?);
                    let gather = || group.start_all_gather_uneven(own, 0, &unit.shards);
                    Coming(Gathered::Pending(Box::new(context.world().apart(gather)?)), lease)
                }
            };
            self.coming.insert(number, coming);
        }
        Ok(())
    }
}
