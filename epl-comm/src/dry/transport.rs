//! A rank among mirrors of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mirror;
use super::traffic::Traffic;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::Call;
use crate::rank::Rank;
use crate::transport::Transport;

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

    fn reserve(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn run(&self, call: Call, buffer: Buffer) -> Result<Buffer> {
        self.traffic.add(&self.name, &self.members, self.member, &call);
        Ok(mirror::result(&call, buffer, self.members.len(), self.member))
    }

    fn split(&self, _sequence: u64, name: &str, _color: usize, _key: usize) -> Result<Arc<dyn Transport>> {
        Err(Error::invalid(format!(
            "split(`{name}`) in a dry world: the {} other members are not there to say their colors; use split_by()",
            self.members.len() - 1
        )))
    }

    fn split_by(
        &self,
        _sequence: u64,
        name: &str,
        wish: &dyn Fn(usize) -> (usize, usize),
    ) -> Result<Arc<dyn Transport>> {
        let color = wish(self.member).0;
        let mut chosen: Vec<usize> = (0..self.members.len()).filter(|member| wish(*member).0 == color).collect();
        chosen.sort_by_key(|member| (wish(*member).1, *member));
        let member = chosen.iter().position(|member| *member == self.member).expect("a member has its own color");
        let members = chosen.into_iter().map(|member| self.members[member]).collect();
        Ok(Arc::new(Self::new(name, members, member, self.traffic.clone())))
    }

    /// Nobody waits.
    fn abort(&self, _cause: &Error) {}
}
