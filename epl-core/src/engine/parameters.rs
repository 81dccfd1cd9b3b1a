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

use super::meter::{Lease, bytes};
use super::rank::Engine;
use crate::error::Result;
use crate::model::precision::cast;
use crate::model::segment::Model;
use crate::params::store::{Gathered, fill};
use crate::simulate::pieces::Look;
use crate::simulate::{START_GATHER, WAIT_UNIT};

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

/// The parameters during a step, or during an evaluation.
pub(super) struct Parameters<'a, M: Model> {
    engine: &'a Engine<M>,
    model: &'a M,
    /// Whether a segment's parameters are gathered for it.
    gathers: bool,
    /// Whether segments compute in 16 bits, those that the plan says.
    is_half: bool,
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

impl<'a, M: Model> Parameters<'a, M> {
    /// Those of `model`, which is the engine's. `next` are the segments that will be asked for.
    pub fn new(engine: &'a Engine<M>, model: &'a M, next: impl IntoIterator<Item = Look>) -> Self {
        let (gathers, is_half) = (engine.plan.params.gathers(), engine.plan.half.is_some());
        let next: VecDeque<Look> = next.into_iter().filter(|_| gathers).collect();
        Self { engine, model, gathers, is_half, untracked: None, next, coming: HashMap::new(), seen: HashMap::new() }
    }

    /// As the plan says, or not cast in any case.
    pub fn with_half(self, is_half: bool) -> Self {
        Self { is_half: self.is_half && is_half, ..self }
    }

    /// The model for a segment, whose parameters ask for gradients if `tracked` and they do. Collective where parameters
    /// are parked.
    pub fn segment(&mut self, segment: usize, tracked: bool) -> Result<Seen<'a, M>> {
        if !self.gathers && !self.is_half {
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

    /// Frees the model of a segment, and memory of what was gathered for it: what comes now has other sizes.
    pub fn release(&self, model: Seen<'_, M>) {
        drop(model);
        if self.gathers {
            self.engine.context.world().trim();
        }
    }

    fn seen(&self, look: Look) -> Option<Rc<Own<M>>> {
        self.seen.get(&look).and_then(Weak::upgrade)
    }

    /// Makes the model for a segment: with what is gathered, and with casts of what is computed with in 16 bits.
    fn made(&mut self, look: Look) -> Result<Rc<Own<M>>> {
        self.ask(look.0)?;
        let model = match look.1 || self.gathers {
            true => self.model.clone(),
            false => self.untracked().model.clone(),
        };
        let (mut values, mut leases) = self.gathered(look.0)?;
        let (plan, meter) = (&self.engine.plan, &self.engine.diagnostics.meters.parameters);
        let half = plan.half_in(look.0).filter(|_| self.is_half);
        let model = fill(model, &plan.params.records, look.1, |number, own| {
            let record = &plan.params.records[number];
            let is_cast = half.is_some() && record.half && record.held && record.segments.contains(&look.0);
            let value = values.remove(&number).or_else(|| is_cast.then(own))?;
            let Some(half) = half.filter(|_| is_cast) else { return Some(value) };
            let cast = cast(value, half.dtype());
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
        for (number, unit) in plan.params.gathered_for(segment) {
            let Some(Coming(gathered, lease)) = self.coming.remove(&number) else { continue };
            let flat = {
                let wait = || self.engine.context.span(|| format!("{WAIT_UNIT}{number}"));
                let _span = matches!(gathered, Gathered::Pending(_)).then(wait);
                gathered.wait()?
            };
            leases.push(lease);
            let uses = |(member, _): &(usize, Tensor<1>)| plan.params.records[*member].segments.contains(&segment);
            values.extend(unit.split(flat).filter(uses));
        }
        Ok((values, leases))
    }

    /// Starts to gather what a segment needs.
    fn ask(&mut self, segment: usize) -> Result<()> {
        let Engine { plan, communicators, state, context, device, diagnostics, .. } = self.engine;
        let device = &device.clone().without_autodiff();
        for (number, unit) in plan.params.gathered_for(segment) {
            if self.coming.contains_key(&number) {
                continue;
            }
            let (gathered, bytes) =
                state.params.gather((number, unit), |axis| communicators.gathers(axis), context, device)?;
            if matches!(gathered, Gathered::Pending(_)) {
                context.mark(|| format!("{START_GATHER}{number}"));
            }
            self.coming.insert(number, Coming(gathered, diagnostics.meters.parameters.lease(bytes)));
        }
        Ok(())
    }
}
