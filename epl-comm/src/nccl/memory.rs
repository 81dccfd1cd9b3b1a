//! What the transport needs to know of the memory that NCCL works on.

use core::ffi::c_void;
use core::fmt::Debug;

use burn::tensor::{DType, Device};

use crate::buffer::Buffer;
use crate::error::Result;

/// The memory of one rank's device, how buffers lie in it, and in which order work on it is done. With feature `cuda`,
/// `CudaMemory` is that of CUDA devices; another one is for a library that has NCCL's functions, but works on other
/// memory.
///
/// All but [`bind`](Self::bind) and what looks at a block is called on the rank's own thread, whose work on buffers goes
/// on one stream of the device.
///
/// ```
/// # use epl_comm::{Buffer, Result, nccl::{Memory, Stream}};
/// /// How a call comes behind what computes its buffer, and what is computed with it behind the call: nobody waits.
/// fn in_place<M: Memory>(memory: &M, buffer: Buffer, run: impl Fn(&M::Stream, *mut core::ffi::c_void)) -> Result<Buffer> {
///     let (block, stream) = (memory.take(buffer)?, memory.stream()?);
///     assert!(memory.is_own(&block), "it may be written");
///     stream.wait(&memory.mark()?)?;
///     run(&stream, memory.pointer(&block));
///     memory.follow(&stream.mark()?)?;
///     Ok(memory.give(block))
/// }
/// ```
///
/// # Safety
///
/// - [`pointer`](Self::pointer) is the start of [`bytes`](Self::bytes) bytes, which stay where they are as long as the
///   block, wherever it is moved, and which the library may read from another thread and on the streams given here.
/// - The library may also write them where [`is_own`](Self::is_own) says so, and where the block was just
///   [`allocate`](Self::allocate)d.
/// - What was put on the rank's stream before a [`mark`](Self::mark) is over where the mark is, and what is put there
///   after [`follow`](Self::follow) begins when the event is over.
/// - The stream of [`stream`](Self::stream) is one for the library, which keeps what [`Stream`] says.
pub unsafe trait Memory: Debug + Send + Sync + 'static {
    /// Memory of a buffer, in a row, held until it is dropped.
    type Block: Debug + Send;
    /// A point in the work of a stream.
    type Event: Event;
    /// An order of work on the device.
    type Stream: Stream<Event = Self::Event>;

    /// The device.
    fn device(&self) -> Device;

    /// Makes the calling thread use the device.
    ///
    /// # Errors
    ///
    /// When the device does not answer.
    fn bind(&self) -> Result<()>;

    /// Waits until all that the calling thread has asked for has been put on its stream. What is wrong with it, the next
    /// call tells that needs it.
    fn settle(&self);

    /// A new stream.
    ///
    /// # Errors
    ///
    /// When the device cannot make one.
    fn stream(&self) -> Result<Self::Stream>;

    /// The memory of a buffer of the device, into which all that computes it has been put on the rank's stream. The
    /// buffer is not empty.
    ///
    /// # Errors
    ///
    /// When the device failed, also at what was to be computed.
    fn take(&self, buffer: Buffer) -> Result<Self::Block>;

    /// Memory for so many elements, more than none, with anything in it.
    ///
    /// # Errors
    ///
    /// When the device has not enough.
    fn allocate(&self, dtype: DType, elements: usize) -> Result<Self::Block>;

    /// The buffer of a block: the one it was taken from, or a flat one.
    fn give(&self, block: Self::Block) -> Buffer;

    /// Where a block begins.
    fn pointer(&self, block: &Self::Block) -> *mut c_void;

    /// How long it is.
    fn bytes(&self, block: &Self::Block) -> usize;

    /// Whether nobody else looks at the memory, so that it may be written by what follows the rank's stream.
    fn is_own(&self, block: &Self::Block) -> bool;

    /// The point on the rank's stream behind all that has been put there.
    ///
    /// # Errors
    ///
    /// When the device cannot make one.
    fn mark(&self) -> Result<Self::Event>;

    /// Makes the rank's stream wait for an event, with all that is put there from now on. The thread goes on.
    ///
    /// # Errors
    ///
    /// When the device does not answer.
    fn follow(&self, event: &Self::Event) -> Result<()>;

    /// Whether work on buffers of `device` goes on the rank's stream, so that it can follow an event; elsewhere it is
    /// done at once, and the thread itself has to wait.
    fn is_ordered(&self, device: &Device) -> bool;
}

/// An order of work on a device.
///
/// # Safety
///
/// What is put on it after [`wait`](Self::wait) begins when the event is over, and a [`mark`](Self::mark) is over when all
/// is that was put on it before.
pub unsafe trait Stream: Debug + Send + 'static {
    /// A point in the work of a stream.
    type Event: Event;

    /// What NCCL is given for it.
    fn raw(&self) -> *mut c_void;

    /// Makes what is put on it from now on wait for an event.
    ///
    /// # Errors
    ///
    /// When the device does not answer.
    fn wait(&self, event: &Self::Event) -> Result<()>;

    /// The point behind all that has been put on it.
    ///
    /// # Errors
    ///
    /// When the device cannot make one.
    fn mark(&self) -> Result<Self::Event>;
}

/// A point in the work of a stream.
///
/// # Safety
///
/// See [`Stream`].
pub unsafe trait Event: Debug + Send + Sync + 'static {
    /// Whether all before it is over.
    ///
    /// # Errors
    ///
    /// When the work on its stream failed.
    fn is_over(&self) -> Result<bool>;
}
