//! One rank's place in one group over NCCL.
//!
//! ```text
//! rank's thread   prepare: compute, pin, allocate, mark │ ... compute ... │ land: follow, give, compute
//! rank's stream   ...............................●      │ ............... │    ○ ...
//! helper thread                                  │ launch: meet, enqueue  │   watch
//! NCCL's stream                                  └▶[ NCCL ]───────────────────▶●
//! ```
//!
//! ● is an event that is recorded, ○ a wait for the other's. No thread waits for the device: what the rank computes with a
//! result comes behind it on the rank's stream, and the helper thread only looks whether a call has failed. Where buffers
//! lie in host memory, and for calls of a group's beginning (`gate`), the thread that launches waits until the call is
//! over.

use core::time::Duration;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use burn::tensor::{DType, Device, Shape};

use super::communicator::{Communicator, GoOn, Pause};
use super::council::Council;
use super::gate::{Gate, Pass};
use super::lane::{Held, Lane, Queue, Site};
use super::library::Library;
use super::memory::{Event, Memory};
use super::order::{Order, Turn};
use super::shape::moved;
use super::work::{Finish, Work, check, work};
use crate::buffer::Buffer;
use crate::error::{Error, Result, message_of};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Launched, Staged, Transport};

/// So many looks at an event are for one at the communicator.
const LOOKS: u32 = 64;
/// So many calls of each group are its beginning: more than a step makes until all kernels are loaded.
pub(super) const BEGINNING: u64 = 32;

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
    /// Started calls of a group's beginning go out while the rank waits.
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
    council: Arc<dyn Council>,
    engine: Arc<Engine<M>>,
    state: Mutex<State<M>>,
    is_link: bool,
    /// The links of which this member is an end.
    links: Mutex<HashMap<(usize, usize), Arc<Self>>>,
}

#[derive(Debug)]
struct State<M: Memory> {
    /// Made in the first call: none in a group of one, or after a failure.
    lane: Option<Lane<M>>,
    /// What calls that failed were working on. A peer's device may still reach it.
    abandoned: Vec<Held<M>>,
}

/// A call of which the rank's own thread has done its first part.
struct Prepared<M: Memory> {
    call: Arc<Call>,
    work: Work<M>,
    /// All that it reads has been computed.
    ready: Option<M::Event>,
    /// Where the result belongs.
    home: Device,
    turn: Option<Turn>,
}

/// A call that NCCL has, and its memory, which stays until the call is over.
struct Flight<M: Memory> {
    call: Arc<Call>,
    begun: Instant,
    /// None where nothing was sent.
    over: Option<Arc<M::Event>>,
    looks: u32,
    read: Vec<Held<M>>,
    written: Results<M>,
    _pass: Option<Pass>,
}

/// The memory of a call's results, until it is made into buffers, or kept because the call has failed.
type Results<M> = Arc<Mutex<Option<Vec<Held<M>>>>>;

/// What is left for the rank's own thread.
struct Landing<M: Memory> {
    call: Arc<Call>,
    over: Option<Arc<M::Event>>,
    written: Results<M>,
    finish: Box<Finish>,
    home: Device,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Memory> NcclTransport<M> {
    pub(super) fn new(council: Arc<dyn Council>, engine: Arc<Engine<M>>) -> Self {
        Self::over(council, engine, None, false)
    }

    fn over(council: Arc<dyn Council>, engine: Arc<Engine<M>>, lane: Option<Lane<M>>, is_link: bool) -> Self {
        let state = Mutex::new(State { lane, abandoned: Vec::new() });
        Self { council, engine, state, is_link, links: Mutex::default() }
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

    fn size(&self) -> usize {
        self.council.members().len()
    }

    /// Does what one call needs. After an error the world is over, and the communicator is given back.
    fn turn<T>(&self, call: &Call, begun: Instant, f: impl FnOnce(&mut State<M>, &GoOn<'_>) -> Result<T>) -> Result<T> {
        self.guarded(|state| {
            self.council.go_on(call, Duration::ZERO)?;
            self.engine.memory.bind()?;
            f(state, &|| self.go_on(call, begun))
        })
    }

    /// Whether the world goes on, for a call that has begun then.
    fn go_on(&self, call: &Call, begun: Instant) -> Result<()> {
        let waited = begun.elapsed();
        self.council.go_on(call, waited)?;
        match self.engine.time_limit {
            Some(limit) if waited >= limit => Err(self.council.overdue(call, waited)),
            _ => Ok(()),
        }
    }

    /// After an error the world is over, and the communicator is given back.
    fn guarded<T>(&self, f: impl FnOnce(&mut State<M>) -> Result<T>) -> Result<T> {
        let mut state = self.enter()?;
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut state)));
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
            lane.abort();
        }
    }

    /// Keeps what a peer's device may still reach.
    fn abandon(&self, memory: impl IntoIterator<Item = Held<M>>) {
        lock(&self.state).abandoned.extend(memory);
    }

    /// The way of the data, which all members make when they first need it.
    fn lane<'a>(&self, state: &'a mut State<M>, go_on: &GoOn<'_>) -> Result<&'a mut Lane<M>> {
        let lane = match state.lane.take() {
            Some(lane) => lane,
            None => {
                let Engine { library, memory, .. } = &*self.engine;
                let id = self.council.id(&|| library.unique_id(), go_on)?;
                let communicator = Communicator::join(library, id, (self.size(), self.council.member()), go_on)?;
                Lane::new(&**memory, communicator)?
            }
        };
        Ok(state.lane.insert(lane))
    }

    /// What the rank's own thread does first: all that comes before NCCL on the rank's stream.
    fn prepare(&self, call: Box<Call>, buffer: Buffer) -> Result<Prepared<M>> {
        let Engine { memory, safeguards, order, gate, .. } = &*self.engine;
        if call.sequence > BEGINNING {
            gate.leave_open();
        }
        let prepared = || {
            self.council.go_on(&call, Duration::ZERO)?;
            memory.bind()?;
            check(&call, &buffer)?;
            let home = buffer.device();
            if self.size() == 1 || call.operation == Operation::Barrier {
                return Ok((Work::none(buffer), None, home));
            }
            let site = Site { memory: &**memory, size: self.size(), member: self.council.member() };
            let work = work(&site, &call, moved(buffer, &memory.device()))?;
            let needs_mark = safeguards.streams && !work.steps.is_empty();
            let ready = if needs_mark { Some(memory.mark()?) } else { None };
            Ok((work, ready, home))
        };
        let (work, ready, home) = prepared().inspect_err(|error| self.council.fail(error))?;
        let has_turn = safeguards.order && !self.is_link && !work.steps.is_empty() && !self.council.meets(&call);
        Ok(Prepared { call: call.into(), work, ready, home, turn: has_turn.then(|| order.take()) })
    }

    /// Meets the peers, if that is done on the host, and gives NCCL the call.
    fn launch(&self, prepared: Prepared<M>, is_gated: bool) -> Result<(Flight<M>, Landing<M>)> {
        let Prepared { call, work: Work { steps, finish }, ready, home, turn } = prepared;
        let (begun, is_empty) = (Instant::now(), steps.is_empty());
        let (mut read, mut written, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            written.push(step.result);
            read.push(step.own);
            calls.push(step.calls);
        }
        let launched = self.turn(&call, begun, |state, go_on| {
            self.council.agree(&call, go_on)?;
            // Also where this member has nothing to send: others have taken it a turn.
            let turn = turn.or_else(|| self.council.turn(&call).filter(|_| self.engine.safeguards.order));
            if is_empty {
                return Ok((None, None));
            }
            turn.as_ref().map_or(Ok(()), |turn| turn.wait(go_on))?;
            // With its turn, so that nobody inside waits for one outside.
            let pass = if is_gated { Some(self.engine.gate.enter(go_on)?) } else { None };
            let put = |queue: &Queue<'_>| {
                let memory = written.iter().zip(&read);
                let mut put = calls.into_iter().zip(memory);
                put.try_for_each(|(calls, (result, own))| calls(queue, result, own.as_ref().unwrap_or(result)))
            };
            let over = self.lane(state, go_on)?.enqueue(put, ready.as_ref(), go_on)?;
            Ok((Some(Arc::new(over)), pass))
        });
        let read = read.into_iter().flatten().collect();
        match launched {
            Ok((over, pass)) => {
                let written = Arc::new(Mutex::new(Some(written)));
                let landing =
                    Landing { call: call.clone(), over: over.clone(), written: written.clone(), finish, home };
                Ok((Flight { call, begun, over, looks: 0, read, written, _pass: pass }, landing))
            }
            Err(error) => {
                self.abandon(Vec::into_iter(read).chain(written));
                Err(error)
            }
        }
    }

    /// Whether a call is over; its memory is kept if it has failed.
    fn look(&self, flight: &mut Flight<M>) -> Result<bool> {
        let Some(over) = &flight.over else { return Ok(true) };
        flight.looks = flight.looks.wrapping_add(1);
        let is_over = over.is_over();
        if is_over == Ok(false) && !flight.looks.is_multiple_of(LOOKS) {
            return Ok(false);
        }
        let looked = self.guarded(|state| {
            // What failed may be over, too.
            state.lane.as_ref().map_or(Ok(()), |lane| lane.communicator.check())?;
            if !is_over.clone()? {
                self.go_on(&flight.call, flight.begun)?;
            }
            is_over
        });
        if looked.is_err() {
            let written = lock(&flight.written).take();
            self.abandon(flight.read.drain(..).chain(written.into_iter().flatten()));
        }
        looked
    }

    /// Waits until a call is over.
    fn finish(&self, flight: &mut Flight<M>) -> Result<()> {
        let mut pause = Pause::default();
        while !self.look(flight)? {
            pause.rest();
        }
        Ok(())
    }

    /// The result of a call, behind which comes all that the rank's own thread, which calls this, puts on its stream.
    fn land(&self, landing: Landing<M>) -> Result<Buffer> {
        let Landing { call, over, written, finish, home } = landing;
        let Engine { memory, safeguards, .. } = &*self.engine;
        let failed = || self.council.go_on(&call, Duration::ZERO);
        failed()?;
        memory.bind()?;
        if let Some(over) = over.filter(|_| safeguards.streams) {
            memory.follow(&over)?;
        }
        let Some(written) = lock(&written).take() else {
            failed()?;
            return Err(Error::Engine { message: format!("the result of {call} is lost, as it has failed") });
        };
        let results = written.into_iter().map(|held| held.give(memory)).collect();
        Ok(moved(finish(results), &home))
    }

    /// Whether a started call waits for the rank's thread to wait.
    fn is_gated(&self, call: &Call) -> bool {
        // Behind the gate nobody may wait for a peer that has not come.
        let Engine { safeguards, gate, .. } = &*self.engine;
        safeguards.gate && call.sequence <= BEGINNING && self.council.meets(call) && !gate.is_left_open()
    }

    /// Does the part of a started call that another thread does.
    fn start(self: Arc<Self>, prepared: Prepared<M>) -> Result<Launched> {
        let is_gated = self.is_gated(&prepared.call);
        let (mut flight, landing) = self.launch(prepared, is_gated)?;
        let is_watched = flight.over.is_some() && !is_gated && self.engine.memory.is_ordered(&landing.home);
        if !is_watched {
            self.finish(&mut flight)?;
            drop(flight);
            return Ok(Launched { land: Box::new(move || self.land(landing)), watch: None });
        }
        let transport = self.clone();
        Ok(Launched {
            land: Box::new(move || transport.land(landing)),
            watch: Some(Box::new(move || self.look(&mut flight))),
        })
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

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        let prepared = self.prepare(call, buffer)?;
        let _open = self.engine.gate.open();
        let (mut flight, landing) = self.launch(prepared, false)?;
        self.finish(&mut flight)?;
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
        let _open = self.engine.gate.open();
        let divide = |state: &mut State<M>, go_on: &GoOn<'_>| self.divide(state, &call, (color, key), go_on);
        Ok(Arc::new(self.turn(&call, Instant::now(), divide)?))
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        let link = || Arc::new(Self::over(self.council.link(from, to), self.engine.clone(), None, true));
        Ok(lock(&self.links).entry((from, to)).or_insert_with(link).clone())
    }

    fn lanes(&self) -> usize {
        self.engine.lanes
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        let _open = self.engine.gate.open();
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
