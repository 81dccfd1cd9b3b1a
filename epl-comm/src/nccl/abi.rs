//! The types and numbers of NCCL's C interface that are used here, as `nccl.h` has them since 2.18.

use core::ffi::{c_char, c_int, c_uint, c_void};

use burn::tensor::{BoolStore, DType};

use crate::error::{Error, Result};
use crate::operation::ReduceOp;

/// `ncclResult_t`.
pub(super) type Status = c_int;
/// `ncclComm_t`.
pub(super) type RawComm = *mut c_void;
/// `cudaStream_t`.
pub(super) type RawStream = *mut c_void;

pub(super) const SUCCESS: Status = 0;
pub(super) const INVALID_USAGE: Status = 5;
pub(super) const REMOTE_ERROR: Status = 6;
/// A call on a communicator that does not block has begun, but is not over.
pub(super) const IN_PROGRESS: Status = 7;
/// The color of a member that is in no part.
pub(super) const NO_COLOR: c_int = -1;

/// `ncclUniqueId`: what members of a new communicator find each other by.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId {
    pub(super) bytes: [c_char; 128],
}

impl UniqueId {
    #[allow(clippy::unnecessary_cast, reason = "a C char is signed here and unsigned elsewhere")]
    pub(super) fn to_bytes(self) -> [u8; 128] {
        self.bytes.map(|byte| byte as u8)
    }

    #[allow(clippy::unnecessary_cast, reason = "as above")]
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 128] = bytes.try_into().ok()?;
        Some(Self { bytes: bytes.map(|byte| byte as c_char) })
    }
}

/// `ncclConfig_t`, as long as it was in 2.18: a library takes a shorter one, with the version it has.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

/// The least version that can do all that is needed: to divide a communicator.
pub(super) const LEAST_VERSION: c_int = 21_800;
/// The first that lets several ranks of a process use one GPU.
#[cfg(feature = "cuda")]
pub(super) const MULTI_RANK_VERSION: c_int = 23_000;

impl Config {
    /// A communicator whose calls come back at once, so that nobody hangs in one whose peers never come.
    pub(super) fn not_blocking() -> Self {
        let unset = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: LEAST_VERSION as c_uint,
            blocking: 0,
            cga_cluster_size: unset,
            min_ctas: unset,
            max_ctas: unset,
            net_name: core::ptr::null(),
            split_share: unset,
        }
    }
}

/// `ncclDataType_t`, with the bytes that an element takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) code: c_int,
    pub(super) size: usize,
}

impl Element {
    /// What is only moved, of whatever type.
    pub(super) const BYTE: Self = Self { code: 1, size: 1 };

    /// The type in which numbers of a tensor are reduced. Those that NCCL has not are cast first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for what is not a plain number.
    pub(super) fn of(dtype: DType) -> Result<Self> {
        let (code, size) = match dtype {
            DType::I8 => (0, 1),
            DType::U8 => (1, 1),
            DType::I32 => (2, 4),
            DType::U32 => (3, 4),
            DType::I64 => (4, 8),
            DType::U64 => (5, 8),
            DType::F16 => (6, 2),
            DType::F32 => (7, 4),
            DType::F64 => (8, 8),
            DType::BF16 => (9, 2),
            other => return Err(unfit(other)),
        };
        Ok(Self { code, size })
    }
}

/// Whether numbers of this type can be moved: any plain ones, as bytes.
///
/// # Errors
///
/// [`Error::Invalid`] otherwise.
pub(super) fn check_movable(dtype: DType) -> Result<()> {
    match dtype {
        DType::I16 | DType::U16 | DType::Bool(BoolStore::Native | BoolStore::U8 | BoolStore::U32) => Ok(()),
        other => Element::of(other).map(drop),
    }
}

fn unfit(dtype: DType) -> Error {
    Error::invalid(format!(
        "a collective of {} over NCCL, which has no such type; cast() the tensor to a float or an int type",
        dtype.name()
    ))
}

/// `ncclRedOp_t`. A mean is a sum that is divided afterwards: NCCL's own multiplies each member's number by a rounded
/// reciprocal.
pub(super) fn reduction(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}

/// The name of a status in `nccl.h`.
pub(super) fn status_name(status: Status) -> &'static str {
    match status {
        SUCCESS => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        INVALID_USAGE => "ncclInvalidUsage",
        REMOTE_ERROR => "ncclRemoteError",
        IN_PROGRESS => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "an unknown status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!((size_of::<UniqueId>(), size_of::<Config>()), (128, 48));
        assert_eq!(core::mem::offset_of!(Config, net_name), 32);
        let id = UniqueId { bytes: core::array::from_fn(|index| index as c_char) };
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).map(UniqueId::to_bytes), Some(id.to_bytes()));
        assert!(UniqueId::from_bytes(&[0; 127]).is_none());
    }

    #[test]
    fn what_is_no_number_is_refused_with_the_remedy() {
        assert!(Element::of(DType::I16).is_err() && check_movable(DType::I16).is_ok());
        let error = check_movable(DType::Flex32).unwrap_err().to_string();
        assert!(error.contains("cast() the tensor"), "{error}");
    }
}
