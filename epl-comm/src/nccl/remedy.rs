//! What may help when NCCL fails.

use core::ffi::c_int;

use super::abi::{INVALID_USAGE, REMOTE_ERROR, Status};

/// What to do about a status, of which NCCL says `details`.
pub(super) fn of(status: Status, details: &str, version: c_int) -> &'static str {
    match status {
        INVALID_USAGE if details.contains("Duplicate GPU") && version >= 23_000 => {
            "two ranks use the same GPU: give each its own, or set NCCL_MULTI_RANK_GPU_ENABLE=1"
        }
        INVALID_USAGE if details.contains("Duplicate GPU") => {
            "two ranks use the same GPU: give each its own, or, for tests, run each in a process of its own with another \
             NCCL_HOSTID, or take NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1"
        }
        REMOTE_ERROR => "another rank's process or its network is gone; see what that rank says",
        _ => "set NCCL_DEBUG=WARN to see what NCCL says, NCCL_DEBUG=INFO for more",
    }
}
