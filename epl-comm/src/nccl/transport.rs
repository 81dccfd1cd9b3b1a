//! One rank's place in one group over NCCL. What becomes of one call is in `flight`.

use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use burn::tensor::{DType, Shape};

use super::communicator::{Communicator, GoOn};
use super::council::Council;
use super::gate::{Gate, Open};
use super::lane::{Held, Lane};
use super::library::Library;
use super::memory::Memory;
use super::order::Order;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::host::guard::{told, used_by_two};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Links, Staged, Transport};

/// What all groups of one rank share.
#[derive(Debug)]
pub(super) struct Engine<M: Memory> {
    pub(super) library: Arc<Library>,
    pub(super) memory: Arc<M>,
    /// How long a call may take once all members have come.
    pub(super) time_limit: Option<Duration>,
    pub(super) lanes: usize,
    pub(super) gate: Arc<Gate>,
    pub(super) order: Arc<Order>,
    pub(super) safeguards: Safeguards,
}

/// What keeps calls apart that would disturb each other. For tests that show what happens without.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Safeguards {
    /// NCCL's streams and the rank's wait for each other.
    pub streams: bool,
    /// Calls of all groups go to the device in their order.
    pub order: bool,
    /// In a rank's warm-up calls go out while the rank waits.
    pub gate: bool,
}

impl Default for Safeguards {
    fn default() -> Self {
        Self { streams: true, order: true, gate: true }
    }
}

/// A member of a [`Council`] with a way for its data.
#[derive(Debug)]
pub(super) struct NcclTransport<M: Memory> {
    pub(super) council: Arc<dyn Council>,
    pub(super) engine: Arc<Engine<M>>,
    state: Mutex<State<M>>,
    pub(super) is_link: bool,
    /// The links of which this member is an end.
    links: Links<Self>,
}

#[derive(Debug)]
pub(super) struct State<M: Memory> {
    /// Made in the first call: none in a group of one, or after a failure.
    pub(super) lane: Option<Lane<M>>,
    /// What calls that failed were working on. A peer's device may still reach it.
    abandoned: Vec<Held<M>>,
}

/// Gives the communicator back, by force, when it is dropped. By then the failure is known: the device goes on, and what the
/// rank's thread then reads there, it must not take for the failure.
struct GivenUp<'a, M: Memory>(&'a mut State<M>);

impl<M: Memory> Drop for GivenUp<'_, M> {
    fn drop(&mut self) {
        if let Some(lane) = self.0.lane.take() {
            lane.abort();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Memory> NcclTransport<M> {
    pub(super) fn new(council: Arc<dyn Council>, engine: Arc<Engine<M>>) -> Self {
        Self::over(council, engine, None, false)
    }

    fn over(council: Arc<dyn Council>, engine: Arc<Engine<M>>, lane: Option<Lane<M>>, is_link: bool) -> Self {
        let state = Mutex::new(State { lane, abandoned: Vec::new() });
        Self { council, engine, state, is_link, links: Links::default() }
    }

    /// The world's communicator, made now: what is wrong with devices and networks is said before the first call.
    pub(super) fn connect(&self) -> Result<()> {
        let call = Call::new(Operation::Barrier, DType::F32, Shape::new([0]));
        let lane = |state: &mut State<M>, go_on: &GoOn<'_>| match self.size() {
            1 => Ok(()),
            _ => self.lane(state, go_on).map(drop),
        };
        self.turn(&call, Instant::now(), lane)
    }

    pub(super) fn size(&self) -> usize {
        self.council.members().len()
    }

    /// Does what one call needs. After an error the world is over, and the communicator is given back.
    pub(super) fn turn<T>(
        &self,
        call: &Call,
        begun: Instant,
        f: impl FnOnce(&mut State<M>, &GoOn<'_>) -> Result<T>,
    ) -> Result<T> {
        self.guarded(|state| {
            self.council.go_on(call, Duration::ZERO)?;
            self.engine.memory.bind()?;
            f(state, &|| self.go_on(call, begun))
        })
    }

    /// Whether the world goes on, for a call that has begun then.
    pub(super) fn go_on(&self, call: &Call, begun: Instant) -> Result<()> {
        let waited = begun.elapsed();
        self.council.go_on(call, waited)?;
        match self.engine.time_limit {
            Some(limit) if waited >= limit => Err(self.council.overdue(call, waited)),
            _ => Ok(()),
        }
    }

    /// After an error the world is over, and the communicator is given back.
    pub(super) fn guarded<T>(&self, f: impl FnOnce(&mut State<M>) -> Result<T>) -> Result<T> {
        let mut state = self.enter()?;
        let given_up = GivenUp(&mut state);
        let value = self.told(|| f(given_up.0))?;
        core::mem::forget(given_up);
        Ok(value)
    }

    /// After an error or a panic the world is over.
    pub(super) fn told<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        told(f, |error| self.council.fail(error))
    }

    /// The state of this member, whose turn it is.
    fn enter(&self) -> Result<MutexGuard<'_, State<M>>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(used_by_two(self.name())),
        }
    }

    /// Lets calls go to the device as long as the rank's thread waits.
    fn open(&self) -> Open<'_> {
        self.settled().open()
    }

    /// The gate, before which what the rank has asked for is on the device: on its way there it might still load kernels.
    fn settled(&self) -> &Gate {
        let Engine { memory, gate, .. } = &*self.engine;
        if !gate.is_left_open() {
            memory.settle();
        }
        gate
    }

    /// Keeps what a peer's device may still reach.
    pub(super) fn abandon(&self, memory: impl IntoIterator<Item = Held<M>>) {
        lock(&self.state).abandoned.extend(memory);
    }

    /// The way of the data, which all members make when they first need it.
    pub(super) fn lane<'a>(&self, state: &'a mut State<M>, go_on: &GoOn<'_>) -> Result<&'a mut Lane<M>> {
        let lane = match state.lane.take() {
            Some(lane) => lane,
            None => {
                let Engine { library, memory, .. } = &*self.engine;
                let id = self.council.id(&|| library.unique_id(), go_on)?;
                let communicator = Communicator::join(library, id, (self.size(), self.council.member()), go_on)?;
                // That was only possible with all members.
                self.council.joined()?;
                Lane::new(&**memory, communicator)?
            }
        };
        Ok(state.lane.insert(lane))
    }

    /// Divides the group, and its communicator.
    fn divide(&self, state: &mut State<M>, call: &Call, wish: (usize, usize), go_on: &GoOn<'_>) -> Result<Self> {
        let council = self.council.split(call.sequence, &call.name, wish, go_on)?;
        let size = council.members().len();
        let lane = if self.size() == 1 {
            None
        } else {
            // Members are known by their position here, ranks by their number in the world.
            let lowest = council.members().iter().filter_map(|rank| self.members().iter().position(|own| own == rank));
            let color = lowest.min().filter(|_| size > 1);
            let own = self.lane(state, go_on)?;
            match own.communicator.split(color, council.member(), go_on)? {
                Some(new) => Some(Lane::new(&*self.engine.memory, new)?),
                None => None,
            }
        };
        Ok(Self::over(council, self.engine.clone(), lane, false))
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

    fn moves_rows(&self) -> bool {
        false
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        let prepared = self.prepare(call, buffer)?;
        let landing = {
            let _open = self.open();
            let (mut flight, landing) = self.launch(prepared)?;
            self.finish(&mut flight)?;
            landing
        };
        // It may load kernels, and so comes when the gate is closed.
        self.land(landing)
    }

    fn is_ordered(&self, buffer: &Buffer) -> bool {
        self.engine.memory.is_ordered(&buffer.device())
    }

    fn stage(self: Arc<Self>, call: Box<Call>, buffer: Buffer) -> Result<Staged> {
        let prepared = self.prepare(call, buffer)?;
        Ok(Staged::Launch(Box::new(move || self.start(prepared))))
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let call = Call::new(Operation::Split, DType::I64, Shape::new([2]));
        let call = Call { sequence, name: name.to_string(), ..call };
        let _open = self.open();
        let divide = |state: &mut State<M>, go_on: &GoOn<'_>| self.divide(state, &call, (color, key), go_on);
        Ok(Arc::new(self.turn(&call, Instant::now(), divide)?))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        let link = || Ok(Arc::new(Self::over(self.council.link(from, to)?, self.engine.clone(), None, true)));
        Ok(self.links.get(from, to, link)?)
    }

    fn lanes(&self) -> usize {
        self.engine.lanes
    }

    /// Memory is its owner's.
    fn trim(&self) {}

    fn warmed_up(&self) {
        self.council.warmed_up();
        self.settled().leave_open();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        let _open = self.open();
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
            lane.abort();
        }
    }
}
