//! One rank's place in one group over NCCL.

use core::time::Duration;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use burn::tensor::{DType, Shape};

use super::communicator::{Communicator, GoOn};
use super::council::Council;
use super::lane::{Held, Lane};
use super::library::Library;
use super::memory::Memory;
use super::shape::moved;
use super::work::{check, work};
use crate::buffer::Buffer;
use crate::error::{Error, Result, message_of};
use crate::operation::{Call, Operation};
use crate::per_member::PerMember;
use crate::rank::Rank;
use crate::transport::Transport;

/// What all groups of one rank share.
#[derive(Debug)]
pub(super) struct Engine<M: Memory> {
    pub(super) library: Arc<Library>,
    pub(super) memory: Arc<M>,
    /// How long a call may take once all members have come.
    pub(super) time_limit: Option<Duration>,
    pub(super) lanes: usize,
}

/// A member of a [`Council`] with a way for its data.
#[derive(Debug)]
pub(super) struct NcclTransport<M: Memory> {
    council: Arc<dyn Council>,
    engine: Arc<Engine<M>>,
    state: Mutex<State<M>>,
    /// The links of which this member is an end.
    links: Mutex<HashMap<(usize, usize), Arc<Self>>>,
}

#[derive(Debug)]
struct State<M: Memory> {
    /// Made in the first call: none in a group of one, or after a failure.
    lane: Option<Lane<M>>,
    /// What a peer's device may still reach after a failure.
    abandoned: Vec<Held<M>>,
}

impl<M: Memory> NcclTransport<M> {
    pub(super) fn new(council: Arc<dyn Council>, engine: Arc<Engine<M>>) -> Self {
        Self::over(council, engine, None)
    }

    fn over(council: Arc<dyn Council>, engine: Arc<Engine<M>>, lane: Option<Lane<M>>) -> Self {
        let state = Mutex::new(State { lane, abandoned: Vec::new() });
        Self { council, engine, state, links: Mutex::default() }
    }

    /// The world's communicator, made now: what is wrong with devices and networks is said before the first call.
    pub(super) fn connect(&self) -> Result<()> {
        let call = Call::new(Operation::Barrier, DType::F32, Shape::new([0]));
        self.turn(&call, |state, go_on| if self.size() > 1 { self.lane(state, go_on).map(drop) } else { Ok(()) })
    }

    fn size(&self) -> usize {
        self.council.members().len()
    }

    /// Does what one call needs. After an error the world is over, and the communicator is given back.
    fn turn<T>(&self, call: &Call, f: impl FnOnce(&mut State<M>, &GoOn<'_>) -> Result<T>) -> Result<T> {
        let mut state = self.enter()?;
        let begun = Instant::now();
        let go_on = || {
            let waited = begun.elapsed();
            self.council.go_on(call, waited)?;
            match self.engine.time_limit {
                Some(limit) if waited >= limit => Err(self.council.overdue(call, waited)),
                _ => Ok(()),
            }
        };
        let attempt = || {
            self.council.go_on(call, Duration::ZERO)?;
            self.engine.memory.bind()?;
            f(&mut state, &go_on)
        };
        let result = catch_unwind(AssertUnwindSafe(attempt));
        if !matches!(result, Ok(Ok(_))) {
            self.give_up(&mut state);
        }
        match result {
            Ok(result) => result.inspect_err(|error| self.council.fail(error)),
            Err(payload) => {
                let message = format!("it panicked in a collective: {}", message_of(&*payload));
                self.council.fail(&Error::Panic { message });
                resume_unwind(payload)
            }
        }
    }

    /// The state of this member, whose turn it is.
    fn enter(&self) -> Result<MutexGuard<'_, State<M>>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::invalid(format!(
                "group `{}` was used by two threads at once; use all groups of a rank from one thread",
                self.name()
            ))),
        }
    }

    fn give_up(&self, state: &mut State<M>) {
        if let Some(lane) = state.lane.take() {
            state.abandoned.extend(lane.abort());
        }
    }

    /// The way of the data, which all members make when they first need it.
    fn lane<'a>(&self, state: &'a mut State<M>, go_on: &GoOn<'_>) -> Result<&'a mut Lane<M>> {
        let lane = match state.lane.take() {
            Some(lane) => lane,
            None => {
                let Engine { library, memory, .. } = &*self.engine;
                let (size, member) = (self.size(), self.council.member());
                let id = self.council.id(&|| library.unique_id(), go_on)?;
                let communicator = Communicator::join(library, id, (size, member), go_on)?;
                Lane::new(memory.clone(), communicator, size, member)?
            }
        };
        Ok(state.lane.insert(lane))
    }

    /// Every member's numbers, on the way of the data.
    fn exchange(&self, state: &mut State<M>, go_on: &GoOn<'_>, own: &[u64]) -> Result<Vec<Vec<u64>>> {
        let lane = self.lane(state, go_on)?;
        let call = Call {
            dim: Some(0),
            receive: PerMember::same(own.len(), lane.size),
            ..Call::new(Operation::AllGather, DType::I64, Shape::new([own.len()]))
        };
        // As the type that all devices have.
        let own = own.iter().map(|number| number.cast_signed()).collect();
        let own = moved(Buffer::from_values::<i64>(own), &lane.memory.device());
        let all: Vec<u64> =
            work(lane, &call, own, go_on)?.into_values::<i64>().into_iter().map(i64::cast_unsigned).collect();
        Ok(all.chunks(call.shape.num_elements()).map(<[u64]>::to_vec).collect())
    }

    /// The call itself.
    fn take_part(&self, state: &mut State<M>, call: &Call, buffer: Buffer, go_on: &GoOn<'_>) -> Result<Buffer> {
        check(call, &buffer)?;
        if self.council.needs_data() {
            self.lane(state, go_on)?;
        }
        self.council.agree(call, &mut |own| self.exchange(state, go_on, own))?;
        if self.size() == 1 || call.operation == Operation::Barrier {
            return Ok(buffer);
        }
        let lane = self.lane(state, go_on)?;
        let (home, device) = (buffer.device(), lane.memory.device());
        let result = work(lane, call, moved(buffer, &device), go_on)?;
        Ok(moved(result, &home))
    }

    /// Divides the group, and its communicator.
    fn divide(&self, state: &mut State<M>, call: &Call, wish: (usize, usize), go_on: &GoOn<'_>) -> Result<Self> {
        let split =
            |exchange: &mut super::council::Exchange<'_>| self.council.split(call.sequence, &call.name, wish, exchange);
        let council = split(&mut |own| self.exchange(state, go_on, own))?;
        let size = council.members().len();
        let lane = if self.size() == 1 {
            None
        } else {
            // Members are known by their position here, ranks by their number in the world.
            let lowest = council.members().iter().filter_map(|rank| self.members().iter().position(|own| own == rank));
            let color = lowest.min().filter(|_| size > 1);
            let own = self.lane(state, go_on)?;
            match own.communicator.split(color, council.member(), go_on)? {
                Some(new) => Some(Lane::new(own.memory.clone(), new, size, council.member())?),
                None => None,
            }
        };
        Ok(Self::over(council, self.engine.clone(), lane))
    }
}

impl<M: Memory> Transport for NcclTransport<M> {
    fn name(&self) -> &str {
        self.council.name()
    }

    fn member(&self) -> usize {
        self.council.member()
    }

    fn members(&self) -> &[Rank] {
        self.council.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.council.reserve(operation)
    }

    fn reserve_stage(&self, whole: Operation, _stage: Operation) -> u64 {
        self.reserve(whole)
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        self.turn(&call, |state, go_on| self.take_part(state, &call, buffer, go_on))
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let call = Call::new(Operation::Split, DType::I64, Shape::new([2]));
        let call = Call { sequence, name: name.to_string(), ..call };
        Ok(Arc::new(self.turn(&call, |state, go_on| self.divide(state, &call, (color, key), go_on))?))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = || Arc::new(Self::new(self.council.link(from, to), self.engine.clone()));
        Ok(links.entry((from, to)).or_insert_with(link).clone())
    }

    fn lanes(&self) -> usize {
        self.engine.lanes
    }

    /// Memory is its owner's.
    fn trim(&self) {}

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.council.sleep(operation, sequence, sleep);
    }

    fn abort(&self, cause: &Error) {
        self.council.fail(cause);
    }
}

impl<M: Memory> Drop for NcclTransport<M> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let call = Call::new(Operation::Barrier, DType::F32, Shape::new([0]));
        if let Some(lane) = state.lane.take()
            && (self.engine.memory.bind().is_err() || self.council.go_on(&call, Duration::ZERO).is_err())
        {
            state.abandoned.extend(lane.abort());
        }
    }
}
