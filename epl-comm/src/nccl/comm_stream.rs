//! A communicator with a stream and the device's memory: what one member's calls of one group are run on.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::ptr::null_mut;

use burn::tensor::DType;

use super::abi::{Element, IN_PROGRESS, reduction};
use super::communicator::{GoOn, NcclCommunicator};
use super::memory::{Memory, Stream};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::ReduceOp;

/// One member's way through one communicator.
#[derive(Debug)]
pub(super) struct CommStream<M: Memory> {
    pub(super) communicator: NcclCommunicator,
    stream: M::Stream,
}

/// Memory of the device; of nothing where there are no elements.
#[derive(Debug)]
pub(super) struct Held<M: Memory> {
    block: Option<M::Block>,
    pub(super) dtype: DType,
    pub(super) bytes: usize,
    pointer: *mut c_void,
}

// SAFETY: the pointer leads to the block, which is `Send`, and is used on streams only.
unsafe impl<M: Memory> Send for Held<M> {}

/// Some bytes of memory that is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pointer: *mut c_void,
    bytes: usize,
}

impl<M: Memory> Held<M> {
    fn of(memory: &M, block: M::Block, dtype: DType) -> Self {
        let (pointer, bytes) = (memory.pointer(&block), memory.bytes(&block));
        Self { block: Some(block), dtype, bytes, pointer }
    }

    pub(super) fn nothing(dtype: DType) -> Self {
        Self { block: None, dtype, bytes: 0, pointer: null_mut() }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.block.is_none()
    }

    /// A flat buffer of it.
    pub(super) fn give(self, memory: &M) -> Buffer {
        match self.block {
            Some(block) => memory.give(block),
            None => Buffer::empty_on(&memory.device(), self.dtype),
        }
    }

    pub(super) fn all(&self) -> Part {
        Part { pointer: self.pointer, bytes: self.bytes }
    }

    /// # Panics
    ///
    /// When it reaches over the end: a fault of this crate.
    pub(super) fn part(&self, range: Range<usize>) -> Part {
        assert!(range.start <= range.end && range.end <= self.bytes, "bytes {range:?} of {}", self.bytes);
        Part { pointer: self.pointer.wrapping_byte_add(range.start), bytes: range.len() }
    }

    /// The same memory again, where it may be written.
    pub(super) fn is_own(&self, memory: &M) -> bool {
        self.block.as_ref().is_none_or(|block| memory.is_own(block))
    }
}

/// Where a rank takes memory for its calls in one group: on its own thread.
#[derive(Debug)]
pub(super) struct Site<'a, M: Memory> {
    pub(super) memory: &'a M,
    pub(super) size: usize,
    pub(super) member: usize,
}

impl<M: Memory> Site<'_, M> {
    /// The memory of a buffer of the device.
    pub(super) fn take(&self, buffer: Buffer) -> Result<Held<M>> {
        let dtype = buffer.dtype();
        if buffer.num_elements() == 0 {
            return Ok(Held::nothing(dtype));
        }
        Ok(Held::of(self.memory, self.memory.take(buffer)?, dtype))
    }

    /// Memory for so many bytes of elements.
    pub(super) fn allocate(&self, dtype: DType, bytes: usize) -> Result<Held<M>> {
        match bytes {
            0 => Ok(Held::nothing(dtype)),
            _ => Ok(Held::of(self.memory, self.memory.allocate(dtype, bytes / dtype.size())?, dtype)),
        }
    }
}

impl<M: Memory> CommStream<M> {
    pub(super) fn new(memory: &M, communicator: NcclCommunicator) -> Result<Self> {
        Ok(Self { communicator, stream: memory.stream()? })
    }

    /// Puts calls on the stream, behind `ready`; the event is over when they are. The memory they use must stay until
    /// then in the order of streams, or for ever if there is no event.
    ///
    /// After an error the stream is to be [`abort`](Self::abort)ed.
    pub(super) fn enqueue(
        &self,
        calls: impl FnOnce(&Queue<'_>) -> Result<()>,
        ready: Option<&M::Event>,
        go_on: &GoOn<'_>,
    ) -> Result<M::Event> {
        ready.map_or(Ok(()), |ready| self.stream.wait(ready))?;
        let queue = Queue { communicator: &self.communicator, stream: self.stream.raw() };
        self.communicator.group(|| calls(&queue), go_on)?;
        self.stream.mark()
    }

    /// Ends what is under way.
    pub(super) fn abort(self) {
        self.communicator.abort();
    }
}

/// Where the calls of one group go.
pub(super) struct Queue<'a> {
    communicator: &'a NcclCommunicator,
    stream: *mut c_void,
}

/// Calls one of NCCL's functions, with the communicator and the stream behind the other arguments.
macro_rules! call {
    ($queue:ident.$function:ident($($argument:expr),*)) => {{
        let library = $queue.communicator.library();
        // SAFETY: the communicator is alive; what is read is held until the event behind the call is over, what is written
        // until the rank's stream, on which its memory is given back, waits for that event, and both for ever if the call
        // fails (`Flight`); the parts are as long as the count says; what is written is the block's own (`Held::is_own`) or
        // was allocated for it.
        let status = unsafe {
            (library.functions.$function)($($argument,)* $queue.communicator.raw(), $queue.stream)
        };
        match status {
            // It goes on behind, like all calls of the group.
            IN_PROGRESS => Ok(()),
            status => library.check(status, concat!("NCCL's ", stringify!($function))),
        }
    }};
}

impl Queue<'_> {
    pub(super) fn all_reduce(&self, from: Part, to: Part, element: Element, op: ReduceOp) -> Result<()> {
        assert_eq!(from.bytes, to.bytes, "an all-reduce keeps the length");
        call!(self.all_reduce(from.pointer, to.pointer, from.bytes / element.size, element.code, reduction(op)))
    }

    pub(super) fn reduce(&self, from: Part, to: Part, element: Element, op: ReduceOp, root: usize) -> Result<()> {
        let count = from.bytes / element.size;
        call!(self.reduce(from.pointer, to.pointer, count, element.code, reduction(op), root as c_int))
    }

    pub(super) fn reduce_scatter(&self, from: Part, to: Part, element: Element, op: ReduceOp) -> Result<()> {
        call!(self.reduce_scatter(from.pointer, to.pointer, to.bytes / element.size, element.code, reduction(op)))
    }

    pub(super) fn all_gather(&self, from: Part, to: Part) -> Result<()> {
        call!(self.all_gather(from.pointer, to.pointer, from.bytes, Element::BYTE.code))
    }

    /// From the root's `from` to all members' `to`.
    pub(super) fn broadcast(&self, from: Part, to: Part, root: usize) -> Result<()> {
        match to.bytes {
            0 => Ok(()),
            bytes => call!(self.broadcast(from.pointer, to.pointer, bytes, Element::BYTE.code, root as c_int)),
        }
    }

    pub(super) fn send(&self, from: Part, to: usize) -> Result<()> {
        match from.bytes {
            0 => Ok(()),
            bytes => call!(self.send(from.pointer, bytes, Element::BYTE.code, to as c_int)),
        }
    }

    pub(super) fn receive(&self, to: Part, from: usize) -> Result<()> {
        match to.bytes {
            0 => Ok(()),
            bytes => call!(self.receive(to.pointer, bytes, Element::BYTE.code, from as c_int)),
        }
    }
}
