//! Members that are processes: they confer on the way of the data, and by a store.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::abi::UniqueId;
use super::communicator::GoOn;
use super::council::{Council, Exchange, in_nccl, link_path, part_path};
use super::joined::Joined;
use crate::error::{Error, Result};
use crate::host::quarrel::Quarrel;
use crate::host::wire::{decode, digest, encode};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{link_name, of_one_color};

/// How long a call may take before it is looked whether a member has left for good; and how often then.
const SUSPICION: Duration = Duration::from_secs(1);
/// The most numbers of a call: more than any has, whatever a peer says.
const LONGEST: u64 = 1 << 20;

/// One member's seat in a group of processes.
#[derive(Debug)]
pub(super) struct Workers {
    joined: Arc<Joined>,
    name: String,
    path: String,
    members: Vec<Rank>,
    member: usize,
    last: Arc<AtomicU64>,
    /// Every how many calls they are compared; 0 for none.
    compare_every: u64,
    /// For how long a member had waited when it last looked who has left.
    suspicion: AtomicU64,
}

impl Workers {
    /// The world's.
    pub(super) fn new(joined: Arc<Joined>, ranks: usize, compare_every: u64) -> Self {
        let member = joined.rank.0;
        Self::of(joined, "world".into(), "world".into(), (0..ranks).map(Rank).collect(), member, compare_every)
    }

    fn of(
        joined: Arc<Joined>,
        name: String,
        path: String,
        members: Vec<Rank>,
        member: usize,
        compare_every: u64,
    ) -> Self {
        let last = joined.enter(&path);
        Self { joined, name, path, members, member, last, compare_every, suspicion: AtomicU64::new(0) }
    }

    fn describe(&self, call: &Call) -> String {
        format!("{call}, call {} of group `{}`", call.sequence, self.name)
    }

    /// Gives every member's numbers beside its call, once the calls have been compared.
    fn compare(&self, call: &Call, own: [u64; 2], exchange: &mut Exchange<'_>) -> Result<Vec<[u64; 2]>> {
        let code = encode(call)?;
        // As long for every call, so that the members' exchanges fit where their calls do not.
        let heads = exchange(&[digest(call), code.len() as u64, own[0], own[1]])?;
        if heads.iter().any(|head| head.len() != 4 || head[1] > LONGEST) {
            return Err(self.not_a_call(call));
        }
        let is_uniform = heads[0][0] != 0 && heads.iter().all(|head| head[0] == heads[0][0]);
        if !is_uniform {
            let longest = heads.iter().map(|head| head[1] as usize).max().unwrap_or(0);
            let mut padded = code;
            padded.resize(longest, 0);
            let codes = exchange(&padded)?;
            let calls: Option<Vec<Call>> = codes.iter().map(|code| decode(code)).collect();
            self.fit(&calls.ok_or_else(|| self.not_a_call(call))?)?;
        }
        Ok(heads.into_iter().map(|head| [head[2], head[3]]).collect())
    }

    fn fit(&self, calls: &[Call]) -> Result<()> {
        let Some(Quarrel { first, second, second_is_odd }) = Quarrel::among(calls.len(), |member| &calls[member])
        else {
            return Ok(());
        };
        Err(Error::Mismatch {
            group: self.name.clone(),
            sequence: calls[first].sequence,
            first: self.members[first],
            first_call: calls[first].to_string(),
            second: self.members[second],
            second_call: calls[second].to_string(),
            second_is_odd,
        })
    }

    fn not_a_call(&self, call: &Call) -> Error {
        Error::Engine {
            message: format!(
                "what other ranks said in {} is no call; all processes must run the same program",
                self.describe(call)
            ),
        }
    }
}

impl Council for Workers {
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

    fn needs_data(&self) -> bool {
        true
    }

    fn agree(&self, call: &Call, exchange: &mut Exchange<'_>) -> Result<()> {
        let is_due = self.compare_every > 0 && call.sequence.is_multiple_of(self.compare_every);
        // A barrier is nothing but this.
        if self.members.len() > 1 && (is_due || call.operation == Operation::Barrier) {
            self.compare(call, [0, 0], exchange)?;
        }
        Ok(())
    }

    fn split(
        &self,
        sequence: u64,
        name: &str,
        (color, key): (usize, usize),
        exchange: &mut Exchange<'_>,
    ) -> Result<Arc<dyn Council>> {
        let call = Call::new(Operation::Split, burn::tensor::DType::I64, burn::tensor::Shape::new([2]));
        let call = Call { sequence, name: name.to_string(), ..call };
        let own = [color as u64, key as u64];
        let wishes = match self.members.len() {
            1 => vec![own],
            _ => self.compare(&call, own, exchange)?,
        };
        let wishes: Vec<(usize, usize)> = wishes.iter().map(|wish| (wish[0] as usize, wish[1] as usize)).collect();
        let (chosen, member) = of_one_color(&wishes, self.member);
        let members: Vec<Rank> = chosen.into_iter().map(|member| self.members[member]).collect();
        let path = part_path(&self.path, sequence, members.iter().min());
        Ok(Arc::new(Self::of(self.joined.clone(), name.into(), path, members, member, self.compare_every)))
    }

    fn link(&self, from: usize, to: usize) -> Arc<dyn Council> {
        let (name, path) = (link_name(&self.name, from, to), link_path(&self.path, from, to));
        let members = vec![self.members[from], self.members[to]];
        let member = usize::from(self.member == to);
        Arc::new(Self::of(self.joined.clone(), name, path, members, member, self.compare_every))
    }

    fn id(&self, make: &dyn Fn() -> Result<UniqueId>, go_on: &GoOn<'_>) -> Result<UniqueId> {
        let key = format!("nccl/id/{}", self.path);
        if self.member == 0 {
            let id = make()?;
            self.joined.set(&key, &id.to_bytes())?;
            return Ok(id);
        }
        let bytes = self.joined.wait(&key, go_on)?;
        UniqueId::from_bytes(&bytes).ok_or_else(|| Error::Engine {
            message: format!("`{key}` in the store has {} bytes, where an NCCL id has 128", bytes.len()),
        })
    }

    fn go_on(&self, call: &Call, waited: Duration) -> Result<()> {
        self.joined.go_on(|| self.describe(call))?;
        let (millis, last) = (waited.as_millis() as u64, self.suspicion.load(Ordering::Relaxed));
        if waited < SUSPICION {
            self.suspicion.store(0, Ordering::Relaxed);
        } else if millis >= last + SUSPICION.as_millis() as u64 {
            self.suspicion.store(millis, Ordering::Relaxed);
            if let Some(rank) = self.joined.left(&self.path, call.sequence, &self.members) {
                let cause = format!("it returned without taking part in {}", self.describe(call));
                self.joined.fail(&Error::Peer { rank, operation: self.describe(call), cause });
                return self.joined.go_on(|| self.describe(call));
            }
        }
        Ok(())
    }

    fn overdue(&self, call: &Call, waited: Duration) -> Error {
        let missing = self.joined.missing(&self.path, call.sequence, &self.members);
        if let Err(error) = self.joined.go_on(|| self.describe(call)) {
            return error;
        }
        match missing.is_empty() {
            true => in_nccl(&self.name, call, waited),
            false => Error::Timeout { call: self.describe(call), waited, missing },
        }
    }

    fn fail(&self, error: &Error) {
        self.joined.fail(error);
    }

    fn sleep(&self, _operation: Operation, _sequence: u64, sleep: &mut dyn FnMut()) {
        sleep();
    }
}
