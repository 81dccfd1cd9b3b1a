//! What the transport needs to know of the memory that NCCL works on.

use core::ffi::c_void;
use core::fmt::Debug;

use burn::tensor::{DType, Device};

use crate::buffer::Buffer;
use crate::error::Result;

/// The memory of one rank's device, and how buffers lie in it. With feature `cuda`, `CudaMemory` is that of CUDA devices;
/// another one is for a library that has NCCL's functions, but works on other memory.
///
/// # Safety
///
/// - [`pointer`](Self::pointer) is the start of [`bytes`](Self::bytes) bytes, which stay where they are as long as the
///   block, wherever it is moved, and which the library may read from another thread and on the streams given here.
/// - The library may also write them where [`is_own`](Self::is_own) says so, and where the block was just
///   [`allocate`](Self::allocate)d.
/// - The stream of [`stream`](Self::stream) is one for the library, and [`Stream::is_idle`] is true only when all that was
///   put on it is over.
pub unsafe trait Memory: Debug + Send + Sync + 'static {
    /// Memory of a buffer, in a row, held until it is dropped.
    type Block: Debug + Send;
    /// An order of work on the device.
    type Stream: Stream;

    /// The device.
    fn device(&self) -> Device;

    /// Makes the calling thread use the device.
    ///
    /// # Errors
    ///
    /// When the device does not answer.
    fn bind(&self) -> Result<()>;

    /// A new stream.
    ///
    /// # Errors
    ///
    /// When the device cannot make one.
    fn stream(&self) -> Result<Self::Stream>;

    /// The memory of a buffer of the device, once all that has been computed into it is there. The buffer is not empty.
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

    /// Whether nobody else looks at the memory, so that it may be written.
    fn is_own(&self, block: &Self::Block) -> bool;
}

/// An order of work on a device.
///
/// # Safety
///
/// See [`Memory`].
pub unsafe trait Stream: Debug + Send + 'static {
    /// What NCCL is given for it.
    fn raw(&self) -> *mut c_void;

    /// Whether nothing is left to be done on it.
    ///
    /// # Errors
    ///
    /// When the work on it failed.
    fn is_idle(&self) -> Result<bool>;
}
