//! The memory of a CUDA device, as Burn has it: tensors stay where they are.
//!
//! ```text
//! Burn's stream   ... what computes the tensor ...●          │ ... other work ...  ○ ... what uses the result ...
//! rank's thread              resolve, pin, record ┘          │     wait for, register ┘
//! NCCL's stream                                   └▶[ NCCL ]────────────▶●
//! ```
//!
//! Fusion has not yet computed a tensor when it is handed over: it is resolved first, which puts all that waits in its
//! stream on the device, and the result is registered with fusion again. NCCL works on streams of its own in the same
//! (primary) context. Burn's stream and these wait for each other's events; no thread does.
//!
//! All that is asked of Burn is asked by the rank's own thread, for which Burn has one stream with one pool of memory:
//! the memory of results comes from that pool and goes back there. Burn looks at a tensor's stream only when memory is
//! taken, not when it is written again, so another thread would not wait for what is computed in place.

use core::ffi::c_void;
use core::fmt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind};
use burn::tensor::{DType, Device, Shape};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_fusion::{FusionTensor, NoOp, get_client};
use burn_ir::{BackendIr, InitOperationIr, OperationIr, OperationOutput};
use burn_std::device_handle::DeviceHandle;
use burn_std::stream::StreamId;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerStorage;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use cubecl_server::stream::WriteScoped;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};

use super::memory::{Event, Memory, Stream};
use super::presence::{check_index, failed};
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
    /// Burn's streams, by their threads. The driver's streams are made when they are first used, and stay.
    streams: Mutex<HashMap<StreamId, usize>>,
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

/// An event on one of the device's streams.
#[derive(Debug)]
pub struct CudaPoint(CudaEvent);

impl CudaMemory {
    /// That of the device with this index.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] when there is no driver or no such device, or the device does not answer.
    pub fn new(index: usize) -> Result<Self> {
        check_index(index)?;
        let context = CudaContext::new(index).map_err(|error| failed("use the device", &error))?;
        let cube_device = CubeDevice::Cuda(burn_cubecl::cubecl::device::CudaDevice::new(index));
        let (device, client, streams) = (Device::cuda(index), cube_device.client(), Mutex::default());
        Ok(Self { device, client, cube_device, context, streams })
    }

    /// The driver's stream on which Burn puts the calling thread's work; all that the thread has asked for is there.
    fn own_stream(&self) -> Result<sys::CUstream> {
        let own = StreamId::current();
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.get(&own) {
            return Ok(core::ptr::with_exposed_provenance_mut(*stream));
        }
        let handle = DeviceHandle::<Server>::new(self.client.service_id().device);
        let found = handle.submit_blocking(move |server| {
            server.write_streams().try_stream_mut(&own).map(|stream| stream.sys.expose_provenance())
        });
        let Ok(Some(stream)) = found else {
            let message = format!("Burn has no stream of this thread on {:?}: nothing was computed there", self.device);
            return Err(Error::Engine { message });
        };
        streams.insert(own, stream);
        Ok(core::ptr::with_exposed_provenance_mut(stream))
    }

    fn block(&self, tensor: CubeTensor, is_own: bool) -> Result<CudaBlock> {
        // Comes back when all that the thread has asked for is on its stream, which waits for another one if the tensor
        // is from there; tells a fault of what was to compute the tensor.
        let resource = self.client.get_resource::<Server>(tensor.handle.clone()).map_err(|error| Error::Engine {
            message: format!("a tensor that is to be sent has no place on {:?}: {error}", self.device),
        })?;
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
// neither: all that ever used the memory is on the calling thread's stream, from whose pool it is, before the event that
// is recorded next, or on a stream for which that one waits. What Burn computes for the thread later is put on its stream
// later.
unsafe impl Memory for CudaMemory {
    type Block = CudaBlock;
    type Event = CudaPoint;
    type Stream = CudaQueue;

    fn device(&self) -> Device {
        self.device.clone()
    }

    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|error| failed("use the device", &error))
    }

    fn settle(&self) {
        let _ = get_client::<CubeBackend>(&self.cube_device).try_sync(|| ());
        let handle = DeviceHandle::<Server>::new(self.client.service_id().device);
        // Comes after all that was submitted before.
        let _ = handle.submit_blocking(|_| ());
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

    fn mark(&self) -> Result<CudaPoint> {
        let stream = self.own_stream()?;
        let event = self.context.new_event(None).map_err(|error| failed("make an event", &error))?;
        // SAFETY: the event was just made; Burn's streams stay.
        unsafe { result::event::record(event.cu_event(), stream) }
            .map_err(|error| failed("record an event", &error))?;
        Ok(CudaPoint(event))
    }

    fn follow(&self, event: &CudaPoint) -> Result<()> {
        let (stream, flags) = (self.own_stream()?, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT);
        // SAFETY: the event is alive; Burn's streams stay.
        unsafe { result::stream::wait_event(stream, event.0.cu_event(), flags) }
            .map_err(|error| failed("wait for an event", &error))
    }

    fn is_ordered(&self, device: &Device) -> bool {
        *device == self.device
    }
}

// SAFETY: streams of a context and their events are in the driver's order.
unsafe impl Stream for CudaQueue {
    type Event = CudaPoint;

    fn raw(&self) -> *mut c_void {
        self.0.cu_stream().cast()
    }

    fn wait(&self, event: &CudaPoint) -> Result<()> {
        self.0.wait(&event.0).map_err(|error| failed("wait for an event", &error))
    }

    fn mark(&self) -> Result<CudaPoint> {
        self.0.record_event(None).map(CudaPoint).map_err(|error| failed("record an event", &error))
    }
}

// SAFETY: an event is over when the driver says so.
unsafe impl Event for CudaPoint {
    fn is_over(&self) -> Result<bool> {
        self.0.try_is_complete().map_err(|error| failed("look at an event", &error))
    }
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
