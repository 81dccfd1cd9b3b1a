//! A group whose calls are recorded.

use std::sync::Arc;
use std::time::Instant;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::trace::{Event, EventKind, Trace};
use crate::transport::{Launched, Staged, Transport, Watch};

/// A transport that records every call of another one.
#[derive(Debug)]
pub(crate) struct Traced {
    inner: Arc<dyn Transport>,
    trace: Trace,
}

impl Traced {
    pub(crate) fn new(inner: Arc<dyn Transport>, trace: Trace) -> Self {
        Self { inner, trace }
    }

    fn event(&self, call: &Call) -> EventKind {
        EventKind::Collective {
            group: self.name().to_string(),
            sequence: call.sequence,
            operation: call.operation,
            dtype: call.dtype,
            shape: call.shape.clone(),
        }
    }

    fn push(&self, kind: EventKind, begin: Instant) {
        self.trace.push(Event { rank: self.members()[self.member()], kind, begin, end: Instant::now() });
    }

    /// A call that is recorded when it is over.
    fn watched(self: Arc<Self>, launched: Launched, kind: EventKind, begin: Instant) -> Launched {
        let Launched { land, watch } = launched;
        let Some(mut watch) = watch else {
            self.push(kind, begin);
            return Launched { land, watch: None };
        };
        let mut kind = Some(kind);
        let watch: Watch = Box::new(move || {
            let looked = watch();
            // When it has failed, too.
            if let Some(kind) = kind.take_if(|_| looked != Ok(false)) {
                self.push(kind, begin);
            }
            looked
        });
        Launched { land, watch: Some(watch) }
    }
}

impl Transport for Traced {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn member(&self) -> usize {
        self.inner.member()
    }

    fn members(&self) -> &[Rank] {
        self.inner.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.inner.reserve(operation)
    }

    fn reserve_stage(&self, whole: Operation, stage: Operation) -> u64 {
        self.inner.reserve_stage(whole, stage)
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        if !self.trace.is_on() {
            return self.inner.run(call, buffer);
        }
        let (kind, begin) = (self.event(&call), Instant::now());
        let result = self.inner.run(call, buffer);
        self.push(kind, begin);
        result
    }

    fn moves_rows(&self) -> bool {
        self.inner.moves_rows()
    }

    fn is_ordered(&self, buffer: &Buffer) -> bool {
        self.inner.is_ordered(buffer)
    }

    fn stage(self: Arc<Self>, call: Box<Call>, buffer: Buffer) -> Result<Staged> {
        if !self.trace.is_on() {
            return self.inner.clone().stage(call, buffer);
        }
        let event = self.event(&call);
        match self.inner.clone().stage(call, buffer)? {
            // Comes to `run`.
            Staged::Whole(call, buffer) => Ok(Staged::Whole(call, buffer)),
            Staged::Launch(launch) => Ok(Staged::Launch(Box::new(move || {
                let begin = Instant::now();
                match launch() {
                    Ok(launched) => Ok(self.watched(launched, event, begin)),
                    Err(error) => {
                        self.push(event, begin);
                        Err(error)
                    }
                }
            }))),
        }
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let inner = self.inner.split(sequence, name, color, key)?;
        Ok(Arc::new(Self::new(inner, self.trace.clone())))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let inner = self.inner.split_by(sequence, name, wishes)?;
        Ok(Arc::new(Self::new(inner, self.trace.clone())))
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(Self::new(self.inner.link(from, to)?, self.trace.clone())))
    }

    fn lanes(&self) -> usize {
        self.inner.lanes()
    }

    fn is_dry(&self) -> bool {
        self.inner.is_dry()
    }

    fn warmed_up(&self) {
        self.inner.warmed_up();
    }

    fn trim(&self) {
        self.inner.trim();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.inner.sleep(operation, sequence, sleep);
    }

    fn abort(&self, cause: &Error) {
        self.inner.abort(cause);
    }
}
