//! One call, from the rank's thread to NCCL and back.
//!
//! ```text
//! rank's thread   prepare: compute, pin, allocate, mark │ ... compute ... │ land: follow, give, compute
//! rank's stream   ...............................●      │ ............... │    ○ ...
//! helper thread                                  │ launch: meet, enqueue  │   watch
//! NCCL's stream                                  └▶[ NCCL ]───────────────────▶●
//! ```
//!
//! ● is an event that is recorded, ○ a wait for the other's. No thread waits for the device: what the rank computes with a
//! result comes behind it on the rank's stream, and the helper thread only looks whether a call has failed. For a call that
//! gives this rank nothing, such as a send, nobody's stream waits: its peer may come only after what the rank does next.
//! Where buffers lie in host memory, and in a rank's warm-up (`gate`), the thread that launches waits until the call is over.

use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::tensor::Device;

use super::abi::check_movable;
use super::comm_stream::{Held, Queue, Site};
use super::gate::Pass;
use super::launch_order::Turn;
use super::memory::{Event, Memory};
use super::transport::{Engine, NcclTransport, lock};
use super::work::{Finish, Work, work};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::host::fit::check;
use crate::operation::{Call, Operation};
use crate::pending::Pause;
use crate::transport::Launched;

/// So many looks at an event are for one at the communicator.
const LOOKS: u32 = 64;

/// A call of which the rank's own thread has done its first part.
pub(super) struct PreparedLaunch<M: Memory> {
    call: Arc<Call>,
    work: Work<M>,
    /// All that it reads has been computed.
    ready: Option<M::Event>,
    /// Where the result belongs.
    home: Device,
    turn: Option<Turn>,
    /// Whether members meet on the host before it goes to the device: the same on all.
    is_met: bool,
    /// Whether it goes to the device only while the rank waits.
    is_gated: bool,
}

/// A call that NCCL has, and its memory, which stays until the call is over.
pub(super) struct Flight<M: Memory> {
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
pub(super) struct Landing<M: Memory> {
    call: Arc<Call>,
    over: Option<Arc<M::Event>>,
    written: Results<M>,
    finish: Box<Finish>,
    home: Device,
}

impl<M: Memory> NcclTransport<M> {
    /// What the rank's own thread does first: all that comes before NCCL on the rank's stream.
    pub(super) fn prepare(&self, call: Box<Call>, buffer: Buffer) -> Result<PreparedLaunch<M>> {
        let Engine { memory, safeguards, order, gate, .. } = &*self.engine;
        // Asked here, on the rank's thread: so it is the same for a call on all members.
        let is_met = self.control.meets(&call);
        // Behind the gate nobody may wait for a peer that has not come.
        let is_gated = safeguards.gate && is_met && !gate.is_left_open();
        let prepared = || {
            self.control.go_on(&call, Duration::ZERO)?;
            memory.bind()?;
            check(&call, &buffer)?;
            check_movable(buffer.dtype())?;
            let home = buffer.device();
            if self.size() == 1 || call.operation == Operation::Barrier {
                return Ok((Work::none(buffer), None, home));
            }
            let site = Site { memory: &**memory, size: self.size(), member: self.control.member() };
            let work = work(&site, &call, buffer.moved(&memory.device()))?;
            let needs_mark = safeguards.streams && !work.steps.is_empty();
            let ready = if needs_mark { Some(memory.mark()?) } else { None };
            Ok((work, ready, home))
        };
        // Burn computes here, on the rank's thread: what it panics with is a failure, as peers wait for the call.
        let (work, ready, home) = self.told(prepared)?;
        let has_turn = safeguards.order && !self.is_link && !work.steps.is_empty() && !self.control.gives_turns();
        let turn = has_turn.then(|| order.take());
        Ok(PreparedLaunch { call: call.into(), work, ready, home, turn, is_met, is_gated })
    }

    /// Meets the peers, if that is done on the host, and gives NCCL the call.
    pub(super) fn launch(&self, prepared: PreparedLaunch<M>) -> Result<(Flight<M>, Landing<M>)> {
        let PreparedLaunch { call, work: Work { steps, finish }, ready, home, turn, is_met, is_gated } = prepared;
        let (begun, is_empty) = (Instant::now(), steps.is_empty());
        let (mut read, mut written, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            written.push(step.result);
            read.push(step.own);
            calls.push(step.calls);
        }
        let launched = self.turn(&call, begun, |state, go_on| {
            if is_met {
                self.control.agree(&call, go_on)?;
            }
            // Also where this member has nothing to send: others have taken it a turn.
            let turn = turn.or_else(|| self.control.turn(&call).filter(|_| self.engine.safeguards.order));
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
            let over = self.stream(state, go_on)?.enqueue(put, ready.as_ref(), go_on)?;
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
            state.stream.as_ref().map_or(Ok(()), |stream| stream.communicator.check())?;
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
    pub(super) fn finish(&self, flight: &mut Flight<M>) -> Result<()> {
        let mut pause = Pause::default();
        while !self.look(flight)? {
            pause.rest();
        }
        Ok(())
    }

    /// The result of a call, behind which comes all that the rank's own thread, which calls this, puts on its stream.
    pub(super) fn land(&self, landing: Landing<M>) -> Result<Buffer> {
        let Landing { call, over, written, finish, home } = landing;
        let Engine { memory, safeguards, .. } = &*self.engine;
        let failed = || self.control.go_on(&call, Duration::ZERO);
        failed()?;
        memory.bind()?;
        let is_given = lock(&written).iter().flatten().any(|held| !held.is_nothing());
        if let Some(over) = over.filter(|_| safeguards.streams && is_given) {
            // Before the memory is taken from the flight, which keeps it should this fail.
            memory.follow(&over)?;
        }
        let Some(written) = lock(&written).take() else {
            failed()?;
            return Err(Error::Engine { message: format!("the result of {call} is lost, as it has failed") });
        };
        let results = written.into_iter().map(|held| held.give(memory)).collect();
        Ok(finish(results).moved(&home))
    }

    /// Does the part of a started call that another thread does.
    pub(super) fn start(self: Arc<Self>, prepared: PreparedLaunch<M>) -> Result<Launched> {
        let is_gated = prepared.is_gated;
        let (mut flight, landing) = self.launch(prepared)?;
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
}
