//! One rank's place in one group over NCCL. What becomes of one call is in `flight`.

use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use burn::tensor::{DType, Shape};

use super::comm_stream::{CommStream, Held};
use super::communicator::{GoOn, NcclCommunicator};
use super::gate::{Gate, Open};
use super::group_control::GroupControl;
use super::launch_order::LaunchOrder;
use super::library::Library;
use super::memory::Memory;
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
    pub(super) order: Arc<LaunchOrder>,
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

/// A member of a [`GroupControl`] with a way for its data.
#[derive(Debug)]
pub(super) struct NcclTransport<M: Memory> {
    pub(super) control: Arc<dyn GroupControl>,
    pub(super) engine: Arc<Engine<M>>,
    state: Mutex<MemberState<M>>,
    pub(super) is_link: bool,
    /// The links of which this member is an end.
    links: Links<Self>,
}

#[derive(Debug)]
pub(super) struct MemberState<M: Memory> {
    /// Made in the first call: none in a group of one, or after a failure.
    pub(super) stream: Option<CommStream<M>>,
    /// What calls that failed were working on. A peer's device may still reach it.
    abandoned: Vec<Held<M>>,
}

/// Gives the communicator back, by force, when it is dropped. By then the failure is known: the device goes on, and what the
/// rank's thread then reads there, it must not take for the failure.
struct GivenUp<'a, M: Memory>(&'a mut MemberState<M>);

impl<M: Memory> Drop for GivenUp<'_, M> {
    fn drop(&mut self) {
        if let Some(stream) = self.0.stream.take() {
            stream.abort();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Memory> NcclTransport<M> {
    pub(super) fn new(control: Arc<dyn GroupControl>, engine: Arc<Engine<M>>) -> Self {
        Self::over(control, engine, None, false)
    }

    fn over(
        control: Arc<dyn GroupControl>,
        engine: Arc<Engine<M>>,
        stream: Option<CommStream<M>>,
        is_link: bool,
    ) -> Self {
        let state = Mutex::new(MemberState { stream, abandoned: Vec::new() });
        Self { control, engine, state, is_link, links: Links::default() }
    }

    /// The world's communicator, made now: what is wrong with devices and networks is said before the first call.
    pub(super) fn connect(&self) -> Result<()> {
        let call = Call::new(Operation::Barrier, DType::F32, Shape::new([0]));
        let stream = |state: &mut MemberState<M>, go_on: &GoOn<'_>| match self.size() {
            1 => Ok(()),
            _ => self.stream(state, go_on).map(drop),
        };
        self.turn(&call, Instant::now(), stream)
    }

    pub(super) fn size(&self) -> usize {
        self.control.members().len()
    }

    /// Does what one call needs. After an error the world is over, and the communicator is given back.
    pub(super) fn turn<T>(
        &self,
        call: &Call,
        begun: Instant,
        f: impl FnOnce(&mut MemberState<M>, &GoOn<'_>) -> Result<T>,
    ) -> Result<T> {
        self.guarded(|state| {
            self.control.go_on(call, Duration::ZERO)?;
            self.engine.memory.bind()?;
            f(state, &|| self.go_on(call, begun))
        })
    }

    /// Whether the world goes on, for a call that has begun then.
    pub(super) fn go_on(&self, call: &Call, begun: Instant) -> Result<()> {
        let waited = begun.elapsed();
        self.control.go_on(call, waited)?;
        match self.engine.time_limit {
            Some(limit) if waited >= limit => Err(self.control.overdue(call, waited)),
            _ => Ok(()),
        }
    }

    /// After an error the world is over, and the communicator is given back.
    pub(super) fn guarded<T>(&self, f: impl FnOnce(&mut MemberState<M>) -> Result<T>) -> Result<T> {
        let mut state = self.enter()?;
        let given_up = GivenUp(&mut state);
        let value = self.told(|| f(given_up.0))?;
        core::mem::forget(given_up);
        Ok(value)
    }

    /// After an error or a panic the world is over.
    pub(super) fn told<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        told(f, |error| self.control.fail(error))
    }

    /// The state of this member, whose turn it is.
    fn enter(&self) -> Result<MutexGuard<'_, MemberState<M>>> {
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
    pub(super) fn stream<'a>(&self, state: &'a mut MemberState<M>, go_on: &GoOn<'_>) -> Result<&'a mut CommStream<M>> {
        let stream = match state.stream.take() {
            Some(stream) => stream,
            None => {
                let Engine { library, memory, .. } = &*self.engine;
                let id = self.control.id(&|| library.unique_id(), go_on)?;
                let communicator = NcclCommunicator::join(library, id, (self.size(), self.control.member()), go_on)?;
                // That was only possible with all members.
                self.control.joined()?;
                CommStream::new(&**memory, communicator)?
            }
        };
        Ok(state.stream.insert(stream))
    }

    /// Divides the group, and its communicator.
    fn divide(&self, state: &mut MemberState<M>, call: &Call, wish: (usize, usize), go_on: &GoOn<'_>) -> Result<Self> {
        let control = self.control.split(call.sequence, &call.name, wish, go_on)?;
        let size = control.members().len();
        let stream = if self.size() == 1 {
            None
        } else {
            // Members are known by their position here, ranks by their number in the world.
            let lowest = control.members().iter().filter_map(|rank| self.members().iter().position(|own| own == rank));
            let color = lowest.min().filter(|_| size > 1);
            let own = self.stream(state, go_on)?;
            match own.communicator.split(color, control.member(), go_on)? {
                Some(new) => Some(CommStream::new(&*self.engine.memory, new)?),
                None => None,
            }
        };
        Ok(Self::over(control, self.engine.clone(), stream, false))
    }
}

impl<M: Memory> Transport for NcclTransport<M> {
    fn name(&self) -> &str {
        self.control.name()
    }

    fn member(&self) -> usize {
        self.control.member()
    }

    fn members(&self) -> &[Rank] {
        self.control.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.control.reserve(operation)
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
        let divide = |state: &mut MemberState<M>, go_on: &GoOn<'_>| self.divide(state, &call, (color, key), go_on);
        Ok(Arc::new(self.turn(&call, Instant::now(), divide)?))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        let link = || Ok(Arc::new(Self::over(self.control.link(from, to)?, self.engine.clone(), None, true)));
        Ok(self.links.get(from, to, link)?)
    }

    fn lanes(&self) -> usize {
        self.engine.lanes
    }

    /// Memory is its owner's.
    fn trim(&self) {}

    fn warmed_up(&self) {
        self.control.warmed_up();
        self.settled().leave_open();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        let _open = self.open();
        self.control.sleep(operation, sequence, sleep);
    }

    fn abort(&self, cause: &Error) {
        self.control.fail(cause);
    }
}

impl<M: Memory> Drop for NcclTransport<M> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let call = Call::new(Operation::Barrier, DType::F32, Shape::new([0]));
        if let Some(stream) = state.stream.take()
            && (self.engine.memory.bind().is_err() || self.control.go_on(&call, Duration::ZERO).is_err())
        {
            stream.abort();
        }
    }
}
