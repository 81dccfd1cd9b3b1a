//! Members that are processes: they confer by a store.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::abi::UniqueId;
use super::communicator::GoOn;
use super::group_control::{GroupControl, in_nccl, link_path, part_path};
use super::meeting::{MeetingPlace, Members};
use super::store_plane::StorePlane;
use crate::error::{Error, Result};
use crate::host::failure::Failure;
use crate::host::fit::{describe, left};
use crate::host::watchdog::ControlPlane;
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{link_name, of_one_color};

/// How long a call may take before it is looked whether a member has left for good; and how often then.
const SUSPICION: Duration = Duration::from_secs(1);

/// Whether a group is warmed up, or one that it is a part of.
#[derive(Debug, Default)]
pub(super) struct Warm {
    is_said: AtomicBool,
    whole: Option<Arc<Self>>,
}

impl Warm {
    /// A world's.
    pub(super) fn new(is_said: bool) -> Arc<Self> {
        Arc::new(Self { is_said: AtomicBool::new(is_said), whole: None })
    }

    fn part(whole: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { is_said: AtomicBool::new(false), whole: Some(whole.clone()) })
    }

    fn is_so(&self) -> bool {
        self.is_said.load(Ordering::Acquire) || self.whole.as_ref().is_some_and(|whole| whole.is_so())
    }
}

/// One member of a group of processes.
#[derive(Debug)]
pub(super) struct Workers {
    plane: Arc<StorePlane>,
    name: String,
    path: String,
    members: Vec<Rank>,
    member: usize,
    last: Arc<AtomicU64>,
    /// So many calls of each group are compared, from the first on.
    compare_first: u64,
    warm: Arc<Warm>,
    /// For how long a member had waited when it last looked who has left.
    suspicion: AtomicU64,
    place: MeetingPlace,
}

impl Workers {
    /// The world's.
    pub(super) fn new(plane: Arc<StorePlane>, ranks: usize, compare_first: u64, warm: Arc<Warm>) -> Self {
        let (member, members, last) = (plane.rank.0, (0..ranks).map(Rank).collect(), plane.enter("world"));
        let (name, path, suspicion, place) = ("world".into(), "world".into(), Default::default(), Default::default());
        Self { plane, name, path, members, member, last, compare_first, warm, suspicion, place }
    }

    /// The member in a part of this group.
    fn part(&self, name: String, path: String, members: Vec<Rank>, member: usize) -> Self {
        let (plane, last, warm) = (self.plane.clone(), self.plane.enter(&path), Warm::part(&self.warm));
        let (compare_first, suspicion, place) = (self.compare_first, Default::default(), Default::default());
        Self { plane, name, path, members, member, last, compare_first, warm, suspicion, place }
    }

    fn id_key(&self) -> String {
        format!("nccl/id/{}", self.path)
    }

    fn describe(&self, call: &Call) -> String {
        describe(&self.name, call)
    }

    /// Waits until all members have come to this call, and compares them; gives the two numbers that each has brought.
    fn meet(&self, call: &Call, own: [u64; 2], go_on: &GoOn<'_>) -> Result<Vec<[u64; 2]>> {
        let Self { plane, name, path, members, member, .. } = self;
        let members = Members { plane, group: name, path, members, member: *member };
        self.place.meet(&members, call, own, go_on)
    }
}

impl GroupControl for Workers {
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
        self.last.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn meets(&self, call: &Call) -> bool {
        // A barrier is nothing but this.
        call.sequence <= self.compare_first || call.operation == Operation::Barrier || !self.warm.is_so()
    }

    fn warmed_up(&self) {
        self.warm.is_said.store(true, Ordering::Release);
    }

    fn agree(&self, call: &Call, go_on: &GoOn<'_>) -> Result<()> {
        match self.members.len() {
            1 => Ok(()),
            _ => self.meet(call, [0, 0], go_on).map(drop),
        }
    }

    fn split(
        &self,
        sequence: u64,
        name: &str,
        (color, key): (usize, usize),
        go_on: &GoOn<'_>,
    ) -> Result<Arc<dyn GroupControl>> {
        let call = Call::new(Operation::Split, burn::tensor::DType::I64, burn::tensor::Shape::new([2]));
        let call = Call { sequence, name: name.to_string(), ..call };
        let own = [color as u64, key as u64];
        let wishes = match self.members.len() {
            1 => vec![own],
            _ => self.meet(&call, own, go_on)?,
        };
        let wishes: Vec<(usize, usize)> = wishes.iter().map(|wish| (wish[0] as usize, wish[1] as usize)).collect();
        let (chosen, member) = of_one_color(&wishes, self.member);
        let members: Vec<Rank> = chosen.into_iter().map(|member| self.members[member]).collect();
        let path = part_path(&self.path, sequence, members.iter().min());
        Ok(Arc::new(self.part(name.into(), path, members, member)))
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn GroupControl>> {
        let (name, path) = (link_name(&self.name, from, to), link_path(&self.path, from, to));
        let members = vec![self.members[from], self.members[to]];
        let member = usize::from(self.member == to);
        Ok(Arc::new(self.part(name, path, members, member)))
    }

    fn id(&self, make: &dyn Fn() -> Result<UniqueId>, go_on: &GoOn<'_>) -> Result<UniqueId> {
        let key = self.id_key();
        if self.member == 0 {
            let id = make()?;
            self.plane.set_long(&key, &id.to_bytes())?;
            return Ok(id);
        }
        let bytes = self.plane.wait_long(&key, go_on)?;
        UniqueId::from_bytes(&bytes).ok_or_else(|| Error::Engine {
            message: format!("`{key}` in the store has {} bytes, where an NCCL id has 128", bytes.len()),
        })
    }

    fn joined(&self) -> Result<()> {
        match self.member {
            0 => self.plane.forget(&self.id_key()),
            _ => Ok(()),
        }
    }

    fn go_on(&self, call: &Call, waited: Duration) -> Result<()> {
        self.plane.go_on(|| self.describe(call))?;
        let (millis, last) = (waited.as_millis() as u64, self.suspicion.load(Ordering::Relaxed));
        if waited < SUSPICION {
            self.suspicion.store(0, Ordering::Relaxed);
        } else if millis >= last + SUSPICION.as_millis() as u64 {
            self.suspicion.store(millis, Ordering::Relaxed);
            if let Some(rank) = self.plane.left(&self.path, call.sequence, &self.members) {
                // Who left as it had heard of a failure left after that was told.
                self.plane.look();
                self.plane.go_on(|| self.describe(call))?;
                self.plane.record(Failure::own(rank, left(&self.describe(call))));
                return self.plane.go_on(|| self.describe(call));
            }
        }
        Ok(())
    }

    fn overdue(&self, call: &Call, waited: Duration) -> Error {
        let missing = self.plane.missing(&self.path, call.sequence, &self.members);
        if let Err(error) = self.plane.go_on(|| self.describe(call)) {
            return error;
        }
        match missing.is_empty() {
            true => in_nccl(&self.name, call, waited),
            false => Error::Timeout { call: self.describe(call), waited, missing },
        }
    }

    fn fail(&self, error: &Error) {
        self.plane.fail(error);
    }

    fn sleep(&self, _operation: Operation, _sequence: u64, sleep: &mut dyn FnMut()) {
        sleep();
    }
}
