//! What stages send each other while a step runs.
//!
//! A send is started and goes on by itself, so that a stage never waits for its neighbour to take something; what was
//! sent is freed when it has been. What arrives before it is wanted is kept: the order of a link's parcels is that of
//! the sender's actions, which need not be the receiver's.
//!
//! Between stages of different widths every device sends parcels of rows to those that need them, and puts together what
//! it gets from several. To whom a parcel goes [`Routes`] tell.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::kind::Autodiff;
use burn::tensor::{DType, Device, Int, Tensor};
use epl_comm::{Pending, ProcessGroup};

use super::micro_batch::MicroBatch;
use super::parcel::Parcel;
use super::row_exchange::exchange;
use super::weights;
use crate::error::{Error, Result};
use crate::model::carry::Carry;
use crate::model::graph::CarryGradients;
use crate::schedule::Stages;
use crate::simulate::protocol::PARCEL_HEAD as HEAD;
use crate::topology::cluster::{ParcelLabel, Peers, Routes, Width};

/// One rank's ways to the other stages, for one step.
pub(crate) struct StageLinks<'a> {
    stages: &'a Stages,
    group: &'a ProcessGroup,
    device: &'a Device,
    routes: Routes,
    /// By the member that sent it.
    arrived: HashMap<(usize, ParcelLabel), Parcel>,
    sent: VecDeque<Pending<()>>,
    waited: Duration,
}

impl<'a> StageLinks<'a> {
    /// Ways among the members of `group`, which run the stages so. What is received lies on `device`.
    pub fn new(stages: &'a Stages, group: &'a ProcessGroup, widths: &[Width], device: &'a Device) -> Self {
        let (routes, arrived, sent) = (Routes::untold(widths), HashMap::new(), VecDeque::new());
        Self { stages, group, device, routes, arrived, sent, waited: Duration::ZERO }
    }

    /// Compares the micro-batches of the stages that come next, of which `first` is the number of the first. Collective
    /// over the stages.
    ///
    /// # Errors
    ///
    /// When they are not the same number of the same samples.
    pub fn expect<B>(&mut self, first: usize, micro_batches: &[MicroBatch<B>]) -> Result<()> {
        match self.routes.is_single() {
            true => weights::check_stages(micro_batches, self.group)?,
            false => self.routes = exchange(first, micro_batches, self.routes.widths(), self.group)?,
        }
        Ok(())
    }

    /// Takes micro-batches, of which `first` is the number of the first, through `segments`, which end with the model: of
    /// the parts of this rank's stage one after the other, `run` takes each micro-batch from what enters the part to what
    /// leaves it, which goes on to the next stage; what leaves the model is for `end`. Nothing enters the first segment.
    pub fn through<B, C: Carry>(
        &mut self,
        (first, micro_batches): (usize, &[MicroBatch<B>]),
        segments: Range<usize>,
        mut run: impl FnMut(usize, Range<usize>, Option<C>, &MicroBatch<B>) -> Result<C>,
        mut end: impl FnMut(C, &MicroBatch<B>) -> Result<()>,
    ) -> Result<()> {
        let stages = self.stages;
        for (part, own) in stages.parts_within(self.stage(), &segments) {
            for (number, micro_batch) in (first..).zip(micro_batches) {
                let entrance = match own.start == segments.start {
                    true => None,
                    false => self.receive_carry(number, part)?,
                };
                let exit = run(number, own.clone(), entrance, micro_batch)?;
                match part + 1 == stages.parts().len() {
                    true => end(exit, micro_batch)?,
                    false => self.send_carry(number, part + 1, exit)?,
                }
            }
        }
        Ok(())
    }

    /// Waits for the carry with which a micro-batch enters a part; none for the first part, which begins with the batch.
    pub fn receive_carry<C: Carry>(&mut self, micro_batch: usize, part: usize) -> Result<Option<C>> {
        let Some(before) = part.checked_sub(1) else { return Ok(None) };
        let label = ParcelLabel { backward: false, micro_batch, part };
        self.receive(label, self.stages.of_part(before))?.into_carry().map(Some)
    }

    /// Starts to send the carry with which a micro-batch enters a part.
    pub fn send_carry<C: Carry>(&mut self, micro_batch: usize, part: usize, carry: C) -> Result<()> {
        self.send(Parcel::of_carry(ParcelLabel { backward: false, micro_batch, part }, carry))
    }

    /// Waits for the gradients of the carry that left a part, which is not the last one.
    pub fn receive_gradients(&mut self, micro_batch: usize, part: usize) -> Result<CarryGradients> {
        let label = ParcelLabel { backward: true, micro_batch, part };
        Ok(self.receive(label, self.stages.of_part(part + 1))?.into_gradients())
    }

    /// Starts to send the gradients of the carry that left a part.
    pub fn send_gradients(&mut self, micro_batch: usize, part: usize, gradients: CarryGradients) -> Result<()> {
        self.send(Parcel::of_gradients(ParcelLabel { backward: true, micro_batch, part }, gradients))
    }

    /// Starts to send a parcel to the stage that runs the part it enters.
    fn send(&mut self, parcel: Parcel) -> Result<()> {
        let (member, stage) = (self.group.rank(), self.stages.of_part(parcel.label.part));
        match self.routes.targets(parcel.label, member, stage) {
            Peers::Counterpart(to) => self.send_to(to, parcel),
            Peers::Rows(transfers) => {
                let width = |stage: usize| self.routes.widths()[stage].members.len();
                parcel.check_rows(self.rows(parcel.label), width(self.stage()), width(stage))?;
                transfers.into_iter().try_for_each(|rows| self.send_to(rows.to, parcel.of_rows(&rows.given)))
            }
        }
    }

    fn send_to(&mut self, to: usize, parcel: Parcel) -> Result<()> {
        let header = parcel.header()?;
        let mut head = vec![header.len() as i64];
        head.extend(header.iter().take(HEAD));
        head.resize(HEAD + 1, 0);
        self.start(self.numbers(&head), to)?;
        if let Some(rest) = header.get(HEAD..).filter(|rest| !rest.is_empty()) {
            self.start(self.numbers(rest), to)?;
        }
        parcel.into_values().try_for_each(|values| self.start(values, to))?;
        self.free_sent()
    }

    /// How long this rank has waited for parcels.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Waits for a parcel from a stage.
    fn receive(&mut self, label: ParcelLabel, stage: usize) -> Result<Parcel> {
        match self.routes.sources(label, self.group.rank(), stage) {
            Peers::Counterpart(from) => self.receive_from(from, label),
            Peers::Rows(transfers) => {
                let parcels = transfers.into_iter().map(|rows| Ok((self.receive_from(rows.from, label)?, rows.taken)));
                Parcel::join(parcels.collect::<Result<_>>()?, self.rows(label))
            }
        }
    }

    /// How many rows this member runs of a parcel's micro-batch.
    fn rows(&self, label: ParcelLabel) -> usize {
        self.routes.rows(label.micro_batch, self.group.rank())
    }

    fn receive_from(&mut self, from: usize, label: ParcelLabel) -> Result<Parcel> {
        loop {
            if let Some(parcel) = self.arrived.remove(&(from, label)) {
                return Ok(parcel);
            }
            let begun = Instant::now();
            let parcel = self.next(from)?;
            self.waited += begun.elapsed();
            self.free_sent()?;
            self.arrived.insert((from, parcel.label), parcel);
        }
    }

    fn stage(&self) -> usize {
        self.routes.stage_of(self.group.rank())
    }

    /// Waits until everything has been sent.
    pub fn finish(mut self) -> Result<()> {
        self.sent.drain(..).try_for_each(|sent| Ok(sent.wait()?))
    }

    fn next(&self, from: usize) -> Result<Parcel> {
        let head = self.receive_numbers(HEAD + 1, from)?;
        let len = head[0] as usize;
        if len == 0 {
            return Err(Error::invalid(format!(
                "rank {} has sent nothing: in a world that is only thought of (`dry`) there is no other stage; run a \
                 step with stages on threads",
                self.group.global(from)
            )));
        }
        let mut header = head[1..=len.min(HEAD)].to_vec();
        if len > HEAD {
            header.extend(self.receive_numbers(len - HEAD, from)?);
        }
        Parcel::from_header(&header, |elements, dtype| {
            let place = Tensor::<1>::empty([elements], (self.device, dtype));
            Ok(self.group.receive(place, from)?)
        })
    }

    fn numbers(&self, numbers: &[i64]) -> Tensor<1, Int> {
        Tensor::from_data(numbers, (self.device, DType::I64))
    }

    fn receive_numbers(&self, len: usize, from: usize) -> Result<Vec<i64>> {
        let place = Tensor::<1, Int>::empty([len], (self.device, DType::I64));
        Ok(self.group.receive(place, from)?.into_data().iter::<i64>().collect())
    }

    fn start<K: Autodiff + 'static>(&mut self, values: Tensor<1, K>, to: usize) -> Result<()> {
        let sent = self.group.start_send(values, to)?;
        self.sent.push_back(sent);
        Ok(())
    }

    /// Drops what has been sent, to whichever stage.
    fn free_sent(&mut self) -> Result<()> {
        for _ in 0..self.sent.len() {
            match self.sent.pop_front() {
                Some(sent) if sent.is_done() => sent.wait()?,
                Some(sent) => self.sent.push_back(sent),
                None => {}
            }
        }
        Ok(())
    }
}
