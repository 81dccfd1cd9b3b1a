//! A rank among mirrors of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mirror;
use super::traffic::Traffic;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Transport, link_name, of_one_color};

/// A member of a group that has no other members.
#[derive(Debug)]
pub(super) struct DryTransport {
    name: String,
    members: Vec<Rank>,
    member: usize,
    calls: AtomicU64,
    traffic: Traffic,
}

impl DryTransport {
    pub(super) fn new(name: &str, members: Vec<Rank>, member: usize, traffic: Traffic) -> Self {
        Self { name: name.to_string(), members, member, calls: AtomicU64::new(0), traffic }
    }
}

impl Transport for DryTransport {
    fn name(&self) -> &str {
        &self.name
    }

    fn member(&self) -> usize {
        self.member
    }

    fn members(&self) -> &[Rank] {
        &self.members
    }

    fn reserve(&self, _operation: Operation) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn reserve_stage(&self, whole: Operation, _stage: Operation) -> u64 {
        self.reserve(whole)
    }

    fn moves_rows(&self) -> bool {
        false
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        self.traffic.add(&self.name, &self.members, self.member, &call);
        Ok(mirror::result(&call, buffer, self.members.len(), self.member))
    }

    fn split(&self, _sequence: u64, name: &str, _color: usize, _key: usize) -> Result<Arc<dyn Transport>> {
        Err(Error::invalid(format!(
            "split(`{name}`) in a dry world: the {} other members are not there to say their colors; use split_by()",
            self.members.len() - 1
        )))
    }

    fn split_by(&self, _sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (chosen, member) = of_one_color(wishes, self.member);
        let members = chosen.into_iter().map(|member| self.members[member]).collect();
        Ok(Arc::new(Self::new(name, members, member, self.traffic.clone())))
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        let (name, ends) = (link_name(&self.name, from, to), vec![self.members[from], self.members[to]]);
        Ok(Arc::new(Self::new(&name, ends, usize::from(self.member == to), self.traffic.clone())))
    }

    fn lanes(&self) -> usize {
        usize::MAX
    }

    fn is_dry(&self) -> bool {
        true
    }

    fn warmed_up(&self) {}

    /// Nothing is kept.
    fn trim(&self) {}

    fn sleep(&self, _operation: Operation, _sequence: u64, sleep: &mut dyn FnMut()) {
        sleep();
    }

    /// Nobody waits.
    fn abort(&self, _cause: &Error) {}
}
