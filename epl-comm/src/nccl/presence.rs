//! Whether there is what CUDA needs: asked before anything is called that would panic without it.

use core::ffi::c_int;
use std::env;

use cudarc::driver::{DriverError, result, sys};

use super::abi::MULTI_RANK_VERSION;
use super::library::Library;
use crate::error::{Error, Result};

/// The variable by which NCCL is told that ranks may share a GPU.
const MULTI_RANK: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// How many CUDA devices this process sees.
///
/// # Errors
///
/// [`Error::Engine`] when there is no driver, or it does not answer.
pub fn devices() -> Result<usize> {
    // SAFETY: looks for the library, and calls nothing of it.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Engine {
            message: "cannot load CUDA's driver (libcuda.so.1): install NVIDIA's driver, or run without CUDA".into(),
        });
    }
    result::init().map_err(|error| failed("begin", &error))?;
    let count = result::device::get_count().map_err(|error| failed("count its devices", &error))?;
    Ok(count.max(0) as usize)
}

/// Whether there is a device with this index.
pub(super) fn check_index(index: usize) -> Result<()> {
    let count = devices()?;
    if index < count {
        return Ok(());
    }
    let seen = if count == 0 { "none".to_string() } else { format!("{count}, the last with index {}", count - 1) };
    Err(Error::Engine {
        message: format!(
            "there is no CUDA device with index {index}: this process sees {seen}; run fewer ranks, name devices that \
             are there, or see CUDA_VISIBLE_DEVICES"
        ),
    })
}

/// Whether ranks that are threads of one process may have these devices.
pub(super) fn check_devices(ranks: usize, indices: &[usize], library: &Library) -> Result<()> {
    if indices.len() != ranks {
        return Err(Error::invalid(format!(
            "{} devices for {ranks} ranks; name one for each rank, in their order",
            indices.len()
        )));
    }
    let has_leave = env::var(MULTI_RANK).is_ok_and(|value| value.trim() == "1");
    shared(indices, library.version_code(), has_leave)?;
    indices.iter().try_for_each(|index| check_index(*index))
}

/// Whether NCCL lets ranks of one process share devices, if they do.
fn shared(indices: &[usize], version: c_int, has_leave: bool) -> Result<()> {
    let is_again = |(place, index): (usize, &usize)| indices[..place].contains(index);
    let Some((second, index)) = indices.iter().enumerate().find(|pair| is_again(*pair)) else { return Ok(()) };
    if version >= MULTI_RANK_VERSION && has_leave {
        return Ok(());
    }
    let remedy = match version >= MULTI_RANK_VERSION {
        true => format!("set {MULTI_RANK}=1"),
        false => format!(
            "take NCCL 2.30 with {MULTI_RANK}=1, or, for tests, run each rank in a process of its own with another \
             NCCL_HOSTID"
        ),
    };
    Err(Error::Engine {
        message: format!(
            "rank {second} and a rank before it both have CUDA device {index}, which NCCL refuses; give each rank a \
             device of its own, or {remedy}"
        ),
    })
}

/// What the driver refused.
pub(super) fn failed(what: &str, error: &DriverError) -> Error {
    Error::Engine { message: format!("CUDA's driver could not {what}: {error}; see nvidia-smi") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_device_needs_a_new_library_and_leave() {
        assert_eq!(shared(&[0, 1], 21_800, false), Ok(()));
        assert_eq!(shared(&[0, 0], 23_001, true), Ok(()));
        let text = |version| shared(&[0, 1, 1], version, false).map_err(|error| error.to_string()).unwrap_err();
        assert!(text(22_900).contains("rank 2") && text(22_900).contains("NCCL_HOSTID"), "{}", text(22_900));
        assert!(text(23_001).ends_with("or set NCCL_MULTI_RANK_GPU_ENABLE=1"), "{}", text(23_001));
    }
}
