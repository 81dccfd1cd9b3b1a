//! The memory of a CUDA device, as Burn has it: tensors stay where they are.
//!
//! ```text
//! Burn's stream   ... what computes the tensor ...│                              │... what uses the result ...
//! host                                  resolve, sync│                            │register
//! our stream                                         └▶[ NCCL ]──────────────────▶┘
//! ```
//!
//! Fusion has not yet computed a tensor when it is handed over: it is resolved first, which runs all that waits in its
//! stream, and the result is registered with fusion again. NCCL works on a stream of its own in the same (primary)
//! context, which begins when Burn's is done and ends before the result is used, the host waiting in between: two round
//! trips for a call, which buckets make few.

use core::ffi::c_void;
use core::fmt;
use std::sync::Arc;

use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind};
use burn::tensor::{DType, Device, Shape};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::future::block_on;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_fusion::stream::StreamId;
use burn_fusion::{FusionTensor, NoOp, get_client};
use burn_ir::{BackendIr, InitOperationIr, OperationIr, OperationOutput};
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerStorage;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};

use super::memory::{Memory, Stream};
use crate::buffer::Buffer;
use crate::error::{Error, Result};

type Server = <CudaRuntime as Runtime>::Server;
type Resource = ManagedResource<<<Server as ServerStorage>::Storage as ComputeStorage>::Resource>;

/// The memory of one CUDA device.
pub struct CudaMemory {
    device: Device,
    cube_device: CubeDevice,
    client: Client,
    context: Arc<CudaContext>,
}

/// A tensor in a row, and what keeps it where it is.
pub struct CudaBlock {
    tensor: CubeTensor,
    resource: Resource,
    is_own: bool,
}

/// A stream of ours in the device's primary context.
#[derive(Debug)]
pub struct CudaQueue(Arc<CudaStream>);

impl CudaMemory {
    /// That of the device with this index.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] when there is no driver or no such device, or the device does not answer.
    pub fn new(index: usize) -> Result<Self> {
        super::presence::check_index(index)?;
        let context = CudaContext::new(index).map_err(|error| failed("use the device", &error))?;
        let cube_device = CubeDevice::Cuda(burn_cubecl::cubecl::device::CudaDevice::new(index));
        Ok(Self { device: Device::cuda(index), client: cube_device.client(), cube_device, context })
    }

    /// Waits until all that the calling thread has put on Burn's stream is over, and asks after a tensor's own faults.
    fn settle(&self, handle: &Handle) -> Result<()> {
        let settled = block_on(self.client.sync_buffers([handle]));
        settled
            .map_err(|error| Error::Engine { message: format!("what was to be sent could not be computed: {error}") })
    }

    fn block(&self, tensor: CubeTensor, is_own: bool) -> Result<CudaBlock> {
        // Makes the calling thread's stream wait for others that write the tensor.
        let resource = self.client.get_resource::<Server>(tensor.handle.clone()).map_err(|error| Error::Engine {
            message: format!("a tensor's place on {:?} is not known: {error}", self.device),
        })?;
        self.settle(&tensor.handle)?;
        Ok(CudaBlock { tensor, resource, is_own })
    }
}

/// A tensor that is computed.
fn resolved(tensor: BackendTensor<burn_cubecl::Cube>) -> Option<CubeTensor> {
    match tensor {
        BackendTensor::Float(tensor) => Some(tensor.client.clone().resolve_tensor_float::<CubeBackend>(tensor)),
        BackendTensor::Int(tensor) => Some(tensor.client.clone().resolve_tensor_int::<CubeBackend>(tensor)),
        BackendTensor::Bool(tensor) => Some(tensor.client.clone().resolve_tensor_bool::<CubeBackend>(tensor)),
        _ => None,
    }
}

// SAFETY: a resource pins its allocation, and its pointer is that of the tensor's first element; the tensor is in a row,
// as long as its shape says. Both are held by the block. What is its own has no other handle; what was just allocated,
// neither. All that was put on Burn's streams with either is over when the block is there.
unsafe impl Memory for CudaMemory {
    type Block = CudaBlock;
    type Stream = CudaQueue;

    fn device(&self) -> Device {
        self.device.clone()
    }

    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|error| failed("use the device", &error))
    }

    fn stream(&self) -> Result<CudaQueue> {
        self.context.new_stream().map(CudaQueue).map_err(|error| failed("make a stream", &error))
    }

    fn take(&self, buffer: Buffer) -> Result<CudaBlock> {
        let DispatchTensor { kind, .. } = buffer.into_dispatch();
        let tensor = match kind {
            DispatchTensorKind::Cube(tensor) => resolved(tensor),
            _ => None,
        };
        let Some(tensor) = tensor else {
            let device = &self.device;
            return Err(Error::invalid(format!("a tensor that is not one of plain numbers on {device:?}; cast() it")));
        };
        let tensor = into_contiguous(tensor);
        // Before there is one handle more.
        let is_own = tensor.can_mut();
        self.block(tensor, is_own)
    }

    fn allocate(&self, dtype: DType, elements: usize) -> Result<CudaBlock> {
        let (client, device, shape) = (self.client.clone(), self.cube_device.clone(), Shape::new([elements]));
        self.block(empty_device_contiguous_dtype(client, device, shape, dtype), true)
    }

    fn give(&self, block: CudaBlock) -> Buffer {
        let CudaBlock { tensor, resource, .. } = block;
        drop(resource);
        let (shape, dtype) = (tensor.meta.shape().clone(), tensor.dtype);
        let handle = match dtype {
            _ if dtype.is_float() => CubeBackend::float_tensor_handle(tensor),
            _ if dtype.is_bool() => CubeBackend::bool_tensor_handle(tensor),
            _ => CubeBackend::int_tensor_handle(tensor),
        };
        let client = get_client::<CubeBackend>(&self.cube_device);
        let made = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
        let tensor: FusionTensor<FusionCubeRuntime> =
            client.register(StreamId::current(), OperationIr::Init(made), NoOp::<CubeBackend>::new()).output();
        let tensor = match dtype {
            _ if dtype.is_float() => BackendTensor::Float(tensor),
            _ if dtype.is_bool() => BackendTensor::Bool(tensor),
            _ => BackendTensor::Int(tensor),
        };
        let (kind, autodiff) = (DispatchTensorKind::Cube(tensor), DispatchAutodiffContext::Disabled);
        Buffer::from_dispatch(DispatchTensor { kind, autodiff })
    }

    fn pointer(&self, block: &CudaBlock) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(block.resource.resource().ptr as usize)
    }

    fn bytes(&self, block: &CudaBlock) -> usize {
        block.tensor.meta.shape().num_elements() * block.tensor.dtype.size()
    }

    fn is_own(&self, block: &CudaBlock) -> bool {
        block.is_own
    }
}

// SAFETY: a stream of the context is idle when the driver says so.
unsafe impl Stream for CudaQueue {
    fn raw(&self) -> *mut c_void {
        self.0.cu_stream().cast()
    }

    fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.0.cu_stream()) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            error => Err(failed("look at a stream", &DriverError(error))),
        }
    }
}

/// What the driver refused.
pub(super) fn failed(what: &str, error: &DriverError) -> Error {
    Error::Engine { message: format!("CUDA's driver could not {what}: {error}; see nvidia-smi") }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaMemory({:?})", self.device)
    }
}

impl fmt::Debug for CudaBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBlock({:?})", self.tensor)
    }
}
