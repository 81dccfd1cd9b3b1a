//! Host memory as that of a device, for the library that has NCCL's functions over it.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Bytes, DType, Device, Shape, Tensor, TensorData};
use epl_comm::nccl::{Event, Memory, Stream};
use epl_comm::{Buffer, Error, Rank, Result};

use crate::fake::Fake;

/// The fake's driver (`tests/fake_nccl/device.rs`).
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    bind: extern "C" fn(usize),
    stream: extern "C" fn(usize, bool) -> usize,
    launch: extern "C" fn(usize, extern "C" fn(*mut c_void), usize),
    record: extern "C" fn(usize) -> usize,
    wait: extern "C" fn(usize, usize),
    is_over: extern "C" fn(usize) -> bool,
    synchronize: extern "C" fn(usize) -> bool,
    synchronize_device: extern "C" fn(usize) -> bool,
}

impl Driver {
    pub fn of(library: &libloading::Library) -> Self {
        // SAFETY: the functions are declared like this.
        unsafe {
            Self {
                bind: *library.get("fake_bind").unwrap(),
                stream: *library.get("fake_stream").unwrap(),
                launch: *library.get("fake_launch").unwrap(),
                record: *library.get("fake_record").unwrap(),
                wait: *library.get("fake_wait").unwrap(),
                is_over: *library.get("fake_is_over").unwrap(),
                synchronize: *library.get("fake_synchronize").unwrap(),
                synchronize_device: *library.get("fake_synchronize_device").unwrap(),
            }
        }
    }
}

type Hold = Box<dyn Fn() -> bool + Send>;

/// A device with the stream on which its rank computes.
pub struct FakeDevice {
    driver: Driver,
    index: usize,
    stream: usize,
    held: Mutex<Option<(String, Hold)>>,
    /// How often it was waited for what the rank has asked for.
    settled: AtomicUsize,
    /// Memory that calls have worked on: not to be used for anything else before the device is done with it.
    kept: Mutex<HashMap<usize, Arc<Bytes>>>,
}

#[allow(dead_code, reason = "not all test programs need all of it")]
impl FakeDevice {
    pub fn new(driver: Driver, index: usize) -> Self {
        let stream = (driver.stream)(index, false);
        Self { driver, index, stream, held: Mutex::default(), settled: AtomicUsize::new(0), kept: Mutex::default() }
    }

    /// Adds to a tensor in its memory, on the rank's stream: later.
    pub fn add(&self, x: &Tensor<1>, value: f32) {
        let (to, len) = place(x);
        self.launch(move || (0..len).for_each(|index| to.set(index, to.get(index) + value)));
    }

    /// Copies a tensor into another one, on the rank's stream: later.
    pub fn copy(&self, from: &Tensor<1>, to: &Tensor<1>) {
        let ((from, len), (to, _)) = (place(from), place(to));
        self.launch(move || (0..len).for_each(|index| to.set(index, from.get(index))));
    }

    /// Holds up the thread of this name when it comes to put something on a stream of NCCL, as long as a condition holds.
    pub fn hold<'a>(&self, thread: &str, holds: impl Fn() -> bool + Send + 'a) {
        let holds: Box<dyn Fn() -> bool + Send + 'a> = Box::new(holds);
        // SAFETY: the run in which it is set outlives the device.
        let holds = unsafe { core::mem::transmute::<Box<dyn Fn() -> bool + Send + 'a>, Hold>(holds) };
        *self.held.lock().unwrap() = Some((thread.to_string(), holds));
    }

    /// How often it was waited for what the rank has asked for.
    pub fn settled(&self) -> usize {
        self.settled.load(Ordering::SeqCst)
    }

    /// How many pieces of memory that calls have worked on are held by somebody.
    pub fn held(&self) -> usize {
        self.kept.lock().unwrap().values().filter(|memory| Arc::strong_count(memory) > 1).count()
    }

    /// Another thread would have another stream, and another pool of memory.
    fn is_asked_by_its_rank(&self) {
        assert_eq!(thread::current().name(), Some(&*format!("rank {}", self.index)));
    }

    fn wait_if_held(&self) {
        let held = self.held.lock().unwrap().take_if(|(name, _)| thread::current().name() == Some(name));
        if let Some((_, holds)) = held {
            while holds() {
                thread::yield_now();
            }
        }
    }

    /// A tensor's values, as the rank's stream finds them.
    ///
    /// # Errors
    ///
    /// When nothing goes on any more.
    pub fn read(&self, x: &Tensor<1>) -> Result<Vec<f32>> {
        let ((from, len), found) = (place(x), Tensor::<1>::zeros(x.shape(), &Device::flex()));
        let (to, _) = place(&found);
        self.launch(move || (0..len).for_each(|index| to.set(index, from.get(index))));
        if (self.driver.synchronize)(self.stream) {
            return Ok(found.into_data().iter::<f32>().collect());
        }
        // The kernel may still run.
        core::mem::forget(found);
        Err(Error::Engine { message: "deadlock".into() })
    }

    /// What the driver does for a kernel that was never used before.
    ///
    /// # Errors
    ///
    /// When nothing goes on any more.
    pub fn load(&self) -> Result<()> {
        match (self.driver.synchronize_device)(self.index) {
            true => Ok(()),
            false => Err(Error::Engine { message: "deadlock".into() }),
        }
    }

    fn launch(&self, kernel: impl FnMut() + Send + 'static) {
        extern "C" fn run(kernel: *mut c_void) {
            // SAFETY: it was made below, and a kernel runs once.
            let mut kernel = unsafe { Box::from_raw(kernel.cast::<Box<dyn FnMut() + Send>>()) };
            kernel();
        }
        let kernel: Box<Box<dyn FnMut() + Send>> = Box::new(Box::new(kernel));
        (self.driver.launch)(self.stream, run, Box::into_raw(kernel) as usize);
    }
}

/// Numbers in the memory of a tensor, which its test holds.
#[derive(Clone, Copy)]
struct Place(usize);

impl Place {
    fn get(self, index: usize) -> f32 {
        // SAFETY: the test holds the tensor, and kernels run one at a time.
        unsafe { (self.0 as *const f32).add(index).read() }
    }

    fn set(self, index: usize, value: f32) {
        // SAFETY: as above.
        unsafe { (self.0 as *mut f32).add(index).write(value) }
    }
}

fn place(x: &Tensor<1>) -> (Place, usize) {
    let tensor = Buffer::from_tensor(x.clone()).into_flex().unwrap();
    assert!(tensor.is_contiguous() && tensor.layout().start_offset() == 0);
    (Place(tensor.bytes().as_ptr() as usize), x.dims()[0])
}

impl core::fmt::Debug for FakeDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FakeDevice({})", self.index)
    }
}

/// Memory in which buffers may be written, or not: then results are made elsewhere.
#[derive(Debug)]
pub struct HostMemory {
    device: Arc<FakeDevice>,
    is_own: bool,
    /// Whether what is done with tensors is done on the rank's stream, which holds for [`FakeDevice`]'s methods only.
    is_ordered: bool,
    /// Whether a tensor is given when the rank's stream has come to it, for what is done in any other way.
    waits: bool,
}

impl HostMemory {
    pub fn new(fake: &Fake, rank: Rank, is_own: bool) -> Self {
        Self { device: Arc::new(fake.device(rank)), is_own, is_ordered: false, waits: false }
    }

    #[allow(dead_code, reason = "not all test programs need it")]
    pub fn ordered(device: &Arc<FakeDevice>) -> Self {
        Self { device: device.clone(), is_own: true, is_ordered: true, waits: false }
    }

    /// Calls go on behind their rank, as on a device.
    #[allow(dead_code, reason = "not all test programs need it")]
    pub fn behind(fake: &Fake, rank: Rank) -> Self {
        Self { device: Arc::new(fake.device(rank)), is_own: false, is_ordered: true, waits: true }
    }

    fn block(&self, tensor: FlexTensor, is_own: bool) -> Block {
        if self.is_ordered && !self.waits {
            self.device.kept.lock().unwrap().insert(tensor.bytes().as_ptr() as usize, tensor.data_arc());
        }
        Block::of(tensor, is_own)
    }

    fn is_unique(&self, tensor: &FlexTensor) -> bool {
        let is_kept = self.device.kept.lock().unwrap().contains_key(&(tensor.bytes().as_ptr() as usize));
        // One is asked with.
        Arc::strong_count(&tensor.data_arc()) == 2 + usize::from(is_kept)
    }
}

/// A tensor in a row.
#[derive(Debug)]
pub struct Block {
    tensor: FlexTensor,
    pointer: usize,
    bytes: usize,
    is_own: bool,
}

impl Block {
    fn of(tensor: FlexTensor, is_own: bool) -> Self {
        let size = tensor.dtype().size();
        let pointer = tensor.bytes().as_ptr() as usize + tensor.layout().start_offset() * size;
        let bytes = tensor.layout().num_elements() * size;
        Self { tensor, pointer, bytes, is_own }
    }
}

#[derive(Debug)]
pub struct HostStream {
    device: Arc<FakeDevice>,
    number: usize,
}

#[derive(Debug)]
pub struct HostEvent {
    driver: Driver,
    number: usize,
}

// SAFETY: a block is memory on the heap, of the length it says, held by the tensor; streams and events keep the order that
// the fake's driver gives them.
unsafe impl Memory for HostMemory {
    type Block = Block;
    type Event = HostEvent;
    type Stream = HostStream;

    fn device(&self) -> Device {
        Device::flex()
    }

    fn bind(&self) -> Result<()> {
        (self.device.driver.bind)(self.device.index);
        Ok(())
    }

    fn settle(&self) {
        self.device.settled.fetch_add(1, Ordering::SeqCst);
    }

    fn stream(&self) -> Result<HostStream> {
        let device = self.device.clone();
        Ok(HostStream { number: (device.driver.stream)(device.index, true), device })
    }

    fn take(&self, buffer: Buffer) -> Result<Block> {
        self.device.is_asked_by_its_rank();
        let tensor = buffer.into_flex().unwrap();
        let tensor = if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() };
        let is_own = self.is_own && self.is_unique(&tensor);
        Ok(self.block(tensor, is_own))
    }

    fn allocate(&self, dtype: DType, elements: usize) -> Result<Block> {
        self.device.is_asked_by_its_rank();
        assert!(elements > 0);
        let bytes = Bytes::from_bytes_vec(vec![0xab; elements * dtype.size()]);
        Ok(self.block(FlexTensor::from_data(TensorData::from_bytes(bytes, Shape::new([elements]), dtype)), true))
    }

    fn give(&self, block: Block) -> Buffer {
        self.device.is_asked_by_its_rank();
        if self.waits {
            // What has failed is told by the next call.
            (self.device.driver.synchronize)(self.device.stream);
        }
        Buffer::from_flex(block.tensor)
    }

    fn pointer(&self, block: &Block) -> *mut c_void {
        block.pointer as *mut c_void
    }

    fn bytes(&self, block: &Block) -> usize {
        block.bytes
    }

    fn is_own(&self, block: &Block) -> bool {
        block.is_own
    }

    fn mark(&self) -> Result<HostEvent> {
        self.device.is_asked_by_its_rank();
        let driver = self.device.driver;
        Ok(HostEvent { driver, number: (driver.record)(self.device.stream) })
    }

    fn follow(&self, event: &HostEvent) -> Result<()> {
        self.device.is_asked_by_its_rank();
        (self.device.driver.wait)(self.device.stream, event.number);
        Ok(())
    }

    fn is_ordered(&self, _device: &Device) -> bool {
        self.is_ordered
    }
}

// SAFETY: the fake's driver keeps the order of a stream.
unsafe impl Stream for HostStream {
    type Event = HostEvent;

    fn raw(&self) -> *mut c_void {
        self.number as *mut c_void
    }

    fn wait(&self, event: &HostEvent) -> Result<()> {
        self.device.wait_if_held();
        (self.device.driver.wait)(self.number, event.number);
        Ok(())
    }

    fn mark(&self) -> Result<HostEvent> {
        let driver = self.device.driver;
        Ok(HostEvent { driver, number: (driver.record)(self.number) })
    }
}

// SAFETY: as the fake's driver says.
unsafe impl Event for HostEvent {
    fn is_over(&self) -> Result<bool> {
        Ok((self.driver.is_over)(self.number))
    }
}
