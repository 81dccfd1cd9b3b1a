//! Host memory as that of a device, for the library that has NCCL's functions over it.

use core::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::flex::FlexTensor;
use burn::tensor::{Bytes, DType, Device, Shape, TensorData};
use epl_comm::nccl::{Memory, Stream};
use epl_comm::{Buffer, Result};

/// Memory in which buffers may be written, or not: then results are made elsewhere.
#[derive(Debug)]
pub struct HostMemory {
    pub is_own: bool,
}

/// A copy of a buffer.
#[derive(Debug)]
pub struct Block {
    words: Box<[u64]>,
    bytes: usize,
    dtype: DType,
}

/// How much is left to be done. It stays for ever, as what failed may be done late.
#[derive(Debug)]
pub struct HostStream(&'static AtomicUsize);

// SAFETY: a block is memory on the heap, of the length it says; the fake library counts down what it is done with.
unsafe impl Memory for HostMemory {
    type Block = Block;
    type Stream = HostStream;

    fn device(&self) -> Device {
        Device::flex()
    }

    fn bind(&self) -> Result<()> {
        Ok(())
    }

    fn stream(&self) -> Result<HostStream> {
        Ok(HostStream(Box::leak(Box::default())))
    }

    fn take(&self, buffer: Buffer) -> Result<Block> {
        let data = buffer.into_flex().unwrap().to_contiguous().into_data();
        let (bytes, _, dtype) = data.into_parts();
        let mut block = self.allocate(dtype, bytes.len() / dtype.size())?;
        // SAFETY: the block is as long as the buffer.
        unsafe { std::slice::from_raw_parts_mut(block.words.as_mut_ptr().cast(), bytes.len()) }.copy_from_slice(&bytes);
        Ok(block)
    }

    fn allocate(&self, dtype: DType, elements: usize) -> Result<Block> {
        assert!(elements > 0);
        let bytes = elements * dtype.size();
        Ok(Block { words: vec![0xabab_abab_abab_abab; bytes.div_ceil(8)].into(), bytes, dtype })
    }

    fn give(&self, block: Block) -> Buffer {
        // SAFETY: as long as it is; words are bytes.
        let bytes = unsafe { std::slice::from_raw_parts(block.words.as_ptr().cast::<u8>(), block.bytes) }.to_vec();
        let shape = Shape::new([block.bytes / block.dtype.size()]);
        let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, block.dtype);
        Buffer::from_flex(FlexTensor::from_data(data))
    }

    fn pointer(&self, block: &Block) -> *mut c_void {
        block.words.as_ptr().cast_mut().cast()
    }

    fn bytes(&self, block: &Block) -> usize {
        block.bytes
    }

    fn is_own(&self, _block: &Block) -> bool {
        self.is_own
    }
}

// SAFETY: the fake library counts up what is put on it, and down what is over.
unsafe impl Stream for HostStream {
    fn raw(&self) -> *mut c_void {
        std::ptr::from_ref(self.0).cast_mut().cast()
    }

    fn is_idle(&self) -> Result<bool> {
        Ok(self.0.load(Ordering::Acquire) == 0)
    }
}
