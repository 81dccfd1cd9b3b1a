//! What stages send each other while a step runs.
//!
//! A send is started and goes on by itself, so that a stage never waits for its neighbour to take something; what was
//! sent is freed when it has been. What arrives before it is wanted is kept: the order of a link's parcels is that of
//! the sender's actions, which need not be the receiver's.

use std::collections::{HashMap, VecDeque};

use burn::tensor::{DType, Device, Int, Tensor};
use epl_comm::{Pending, ProcessGroup};

use super::parcel::{Label, Parcel};
use crate::error::{Error, Result};

/// How many numbers of a header travel with its length; most have no more.
const HEAD: usize = 31;

/// One rank's ways to the other stages, for one step.
pub(crate) struct Links<'a> {
    group: &'a ProcessGroup,
    device: &'a Device,
    arrived: HashMap<Label, Parcel>,
    sent: VecDeque<Pending<()>>,
}

impl<'a> Links<'a> {
    /// Ways among the members of `group`, whose numbers are those of the stages. What is received lies on `device`.
    pub fn new(group: &'a ProcessGroup, device: &'a Device) -> Self {
        Self { group, device, arrived: HashMap::new(), sent: VecDeque::new() }
    }

    /// Starts to send a parcel to another stage.
    pub fn send(&mut self, parcel: Parcel, to: usize) -> Result<()> {
        let header = parcel.header()?;
        let mut head = vec![header.len() as i64];
        head.extend(header.iter().take(HEAD));
        head.resize(HEAD + 1, 0);
        self.start(self.numbers(&head), to)?;
        if let Some(rest) = header.get(HEAD..).filter(|rest| !rest.is_empty()) {
            self.start(self.numbers(rest), to)?;
        }
        for values in parcel.into_values() {
            let sent = self.group.start_send(values, to)?;
            self.sent.push_back(sent);
        }
        self.free_sent()
    }

    /// Waits for a parcel from a stage.
    pub fn receive(&mut self, label: Label, from: usize) -> Result<Parcel> {
        loop {
            if let Some(parcel) = self.arrived.remove(&label) {
                return Ok(parcel);
            }
            let parcel = self.next(from)?;
            self.free_sent()?;
            self.arrived.insert(parcel.label, parcel);
        }
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
                "stage {from} has sent nothing: in a world that is only thought of (`dry`) there is no other stage; run a \
                 step with stages on threads"
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

    fn start(&mut self, numbers: Tensor<1, Int>, to: usize) -> Result<()> {
        let sent = self.group.start_send(numbers, to)?;
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
