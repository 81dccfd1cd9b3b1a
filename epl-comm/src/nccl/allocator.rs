//! How CubeCL takes memory of CUDA devices beside NCCL: in the order of streams.
//!
//! CubeCL's other way, and its default, is `cuMemAlloc` and `cuMemFree`. These wait until nothing runs on the device, also
//! no kernel of NCCL that waits there for a peer, whose device may wait in the same way for another one. How it is done is
//! CubeCL's configuration for all devices, which stands when the first one has been used.
//!
//! Memory in the order of streams is open to its own device only, unless it is said otherwise, and NCCL reads and writes the
//! buffers of another GPU of the same process where they lie.

use core::ffi::c_int;
use std::env;
use std::fs;
use std::path::Path;

use cubecl_runtime::config::memory::CudaAllocator;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use cudarc::driver::{DriverError, result, sys};

use crate::error::{Error, Result};

/// Sees to it that memory is taken in the order of streams, if there are several ranks.
///
/// # Errors
///
/// [`Error::Invalid`] when the user's configuration says otherwise, or CubeCL has begun otherwise.
pub(super) fn settle(ranks: usize) -> Result<()> {
    if ranks < 2 {
        return Ok(());
    }
    if env::current_dir().is_ok_and(|folder| chosen(&folder).as_deref() == Some("sync")) {
        return Err(Error::invalid(
            "CubeCL's configuration (cubecl.toml, or `cubecl` in burn.toml) has allocator = \"sync\" in [memory.cuda]: \
             memory would wait for calls of NCCL that wait for other ranks; say \"async\", or nothing",
        ));
    }
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.memory.cuda.allocator = CudaAllocator::Async;
    if CubeClRuntimeConfig::try_set(config) || CubeClRuntimeConfig::get().memory.cuda.allocator == CudaAllocator::Async
    {
        return Ok(());
    }
    Err(Error::invalid(
        "CubeCL has begun with the allocator \"sync\", as a CUDA device was used before ranks were started: memory would \
         wait for calls of NCCL that wait for other ranks; start ranks first, or write allocator = \"async\" under \
         [memory.cuda] in cubecl.toml",
    ))
}

/// Opens the memory of these devices, which ranks of this process have, to each other, if there are several ranks.
///
/// # Errors
///
/// [`Error::Engine`] when a device cannot take memory in the order of streams (CubeCL would fall back to the other way
/// without a word), or the driver refuses.
pub(super) fn share(indices: &[usize], ranks: usize) -> Result<()> {
    if ranks < 2 {
        return Ok(());
    }
    indices.iter().try_for_each(|index| check_pool(*index))?;
    let pairs = indices.iter().flat_map(|own| indices.iter().map(move |other| (own, other)));
    pairs.filter(|(own, other)| own != other).try_for_each(|(own, other)| {
        open(*own, *other).map_err(|error| super::presence::failed("open a GPU's memory to another GPU", &error))
    })
}

fn check_pool(index: usize) -> Result<()> {
    let pools = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    let device = result::device::get(index as c_int);
    // SAFETY: the device is there.
    let has_pools = device.and_then(|device| unsafe { result::device::get_attribute(device, pools) });
    match has_pools.map_err(|error| super::presence::failed("tell how a GPU takes memory", &error))? {
        0 => Err(Error::Engine {
            message: format!(
                "CUDA device {index} has no memory pools, so memory would wait for calls of NCCL that wait for other ranks; \
                 take a device and a driver that have them (a virtual GPU may not), or run one rank"
            ),
        }),
        _ => Ok(()),
    }
}

fn open(own: usize, other: usize) -> core::result::Result<(), DriverError> {
    let [own, peer] = [own, other].map(|index| result::device::get(index as c_int));
    let (own, peer, mut can, mut pool) = (own?, peer?, 0, core::ptr::null_mut());
    // SAFETY: the devices are there, and `can` is there to be written.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, peer, own) }.result()?;
    if can == 0 {
        // Nor can NCCL, which goes another way.
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { sys::cuDeviceGetMemPool(&mut pool, own) }.result()?;
    let place = [sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int, other as c_int];
    let access = sys::CUmemAccessDesc {
        // SAFETY: the kind of a place and its number, whichever way the driver's header of a version writes that.
        location: unsafe { core::mem::transmute::<[c_int; 2], sys::CUmemLocation>(place) },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the pool is the device's; one description.
    unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) }.result()
}

/// What the configuration says that CubeCL finds from this folder: that of the nearest folder with one.
fn chosen(folder: &Path) -> Option<String> {
    folder.ancestors().find_map(|folder| {
        let table = |name: &str| fs::read_to_string(folder.join(name)).ok()?.parse::<toml::Table>().ok();
        let own = CubeClRuntimeConfig::file_names().iter().find_map(|name| table(name));
        let section = |(name, section): &(&str, &str)| table(name)?.get(*section)?.as_table().cloned();
        own.or_else(|| CubeClRuntimeConfig::section_file_names().iter().find_map(section)).map(allocator)
    })?
}

fn allocator(config: toml::Table) -> Option<String> {
    Some(config.get("memory")?.get("cuda")?.get("allocator")?.as_str()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_configuration_says_how() {
        let folder = env::temp_dir().join(format!("epl-allocator-{}", std::process::id()));
        let inner = folder.join("inner");
        fs::create_dir_all(&inner).unwrap();
        fs::write(folder.join("burn.toml"), "[cubecl.memory.cuda]\nallocator = \"sync\"\n").unwrap();
        assert_eq!(chosen(&inner).as_deref(), Some("sync"));
        fs::write(inner.join("cubecl.toml"), "[memory.cuda]\nallocator = \"async\"\n").unwrap();
        assert_eq!(chosen(&inner).as_deref(), Some("async"));
        fs::write(inner.join("cubecl.toml"), "").unwrap();
        assert_eq!(chosen(&inner), None, "this one counts");
        fs::remove_dir_all(folder).unwrap();
    }
}
