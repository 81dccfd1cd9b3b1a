//! NCCL, loaded when it is asked for: a program that was built with it runs where it is not.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use core::mem::ManuallyDrop;
use std::env;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use super::abi::{Config, LEAST_VERSION, RawComm, RawStream, SUCCESS, Status, UniqueId, status_name};
use crate::error::{Error, Result};

/// Where to look for NCCL before anywhere else.
const VARIABLE: &str = "EPL_NCCL_LIBRARY";
/// The name that packages install, and the one of a development package.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Declares the functions that are used, and finds them in a library.
macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        /// The functions of `nccl.h` that are used.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument: $type),*) -> $result,)+
        }

        impl Functions {
            /// Finds all of them, or says which is missing.
            fn find(handle: &libloading::Library) -> core::result::Result<Self, &'static str> {
                Ok(Self { $(
                    // SAFETY: the symbol is a function of NCCL with the arguments that `nccl.h` declares.
                    $name: *unsafe {
                        handle.get::<unsafe extern "C" fn($($type),*) -> $result>($symbol)
                    }.map_err(|_| $symbol)?,
                )+ })
            }
        }
    };
}

functions! {
    get_version: "ncclGetVersion" (version: *mut c_int) -> Status;
    get_unique_id: "ncclGetUniqueId" (id: *mut UniqueId) -> Status;
    comm_init: "ncclCommInitRankConfig"
        (comm: *mut RawComm, ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config) -> Status;
    comm_split: "ncclCommSplit"
        (comm: RawComm, color: c_int, key: c_int, new: *mut RawComm, config: *mut Config) -> Status;
    comm_finalize: "ncclCommFinalize" (comm: RawComm) -> Status;
    comm_destroy: "ncclCommDestroy" (comm: RawComm) -> Status;
    comm_abort: "ncclCommAbort" (comm: RawComm) -> Status;
    comm_async_error: "ncclCommGetAsyncError" (comm: RawComm, status: *mut Status) -> Status;
    error_string: "ncclGetErrorString" (status: Status) -> *const c_char;
    last_error: "ncclGetLastError" (comm: RawComm) -> *const c_char;
    group_start: "ncclGroupStart" () -> Status;
    group_end: "ncclGroupEnd" () -> Status;
    all_reduce: "ncclAllReduce" (from: *const c_void, to: *mut c_void, count: usize, element: c_int, op: c_int,
        comm: RawComm, stream: RawStream) -> Status;
    reduce_scatter: "ncclReduceScatter" (from: *const c_void, to: *mut c_void, count: usize, element: c_int,
        op: c_int, comm: RawComm, stream: RawStream) -> Status;
    reduce: "ncclReduce" (from: *const c_void, to: *mut c_void, count: usize, element: c_int, op: c_int, root: c_int,
        comm: RawComm, stream: RawStream) -> Status;
    all_gather: "ncclAllGather" (from: *const c_void, to: *mut c_void, count: usize, element: c_int, comm: RawComm,
        stream: RawStream) -> Status;
    broadcast: "ncclBroadcast" (from: *const c_void, to: *mut c_void, count: usize, element: c_int, root: c_int,
        comm: RawComm, stream: RawStream) -> Status;
    send: "ncclSend" (from: *const c_void, count: usize, element: c_int, peer: c_int, comm: RawComm,
        stream: RawStream) -> Status;
    receive: "ncclRecv" (to: *mut c_void, count: usize, element: c_int, peer: c_int, comm: RawComm,
        stream: RawStream) -> Status;
}

/// NCCL, or another library with its functions.
pub struct Library {
    pub(super) functions: Functions,
    name: OsString,
    version: c_int,
    /// Never closed: it has threads of its own.
    _handle: ManuallyDrop<libloading::Library>,
}

impl Library {
    /// NCCL as this machine has it: what the variable `EPL_NCCL_LIBRARY` names, or else `libnccl.so.2`, or
    /// `libnccl.so`, where the system looks for libraries (`LD_LIBRARY_PATH` says where else).
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] when there is none, when it lacks a function, or is older than 2.18.
    pub fn open() -> Result<Arc<Self>> {
        if let Some(path) = env::var_os(VARIABLE) {
            return Self::at(&path).map_err(|error| Error::Engine { message: format!("{error} ({VARIABLE} is set)") });
        }
        let mut tried = Vec::new();
        for name in NAMES {
            // SAFETY: what runs when NCCL is loaded is its own initialisation.
            match unsafe { libloading::Library::new(name) } {
                Ok(handle) => return Self::of(name.as_ref(), handle),
                Err(error) => tried.push(format!("`{name}` ({error})")),
            }
        }
        Err(Error::Engine {
            message: format!(
                "cannot load NCCL: tried {}; install NCCL 2.18 or newer (the package libnccl2), name its folder in \
                 LD_LIBRARY_PATH, or name the file in {VARIABLE}",
                tried.join(" and ")
            ),
        })
    }

    /// The library in this file.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn at(path: impl AsRef<OsStr>) -> Result<Arc<Self>> {
        let path = path.as_ref();
        // SAFETY: the caller names a library with NCCL's functions; what runs when it is loaded is its own
        // initialisation.
        let handle = unsafe { libloading::Library::new(path) }.map_err(|error| Error::Engine {
            message: format!("cannot load NCCL from {path:?}: {error}; name a file that is there"),
        })?;
        Self::of(path, handle)
    }

    fn of(name: &OsStr, handle: libloading::Library) -> Result<Arc<Self>> {
        let functions = Functions::find(&handle).map_err(|symbol| Error::Engine {
            message: format!(
                "{name:?} has no function {symbol}: it is not NCCL, or older than 2.18; install a newer one"
            ),
        })?;
        let handle = ManuallyDrop::new(handle);
        let mut library = Self { functions, name: name.to_owned(), version: 0, _handle: handle };
        let mut version = 0;
        // SAFETY: `version` is there to be written.
        let status = unsafe { (library.functions.get_version)(&mut version) };
        library.check(status, "ncclGetVersion")?;
        if version < LEAST_VERSION {
            return Err(Error::Engine {
                message: format!("{name:?} is NCCL {}; install 2.18 or newer", version_text(version)),
            });
        }
        library.version = version;
        Ok(Arc::new(library))
    }

    /// Its version, such as `2.21.5`.
    pub fn version(&self) -> String {
        version_text(self.version)
    }

    /// Its version as NCCL counts.
    #[cfg(feature = "cuda")]
    pub(super) fn version_code(&self) -> c_int {
        self.version
    }

    /// A new name for a communicator to be made.
    pub(super) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId { bytes: [0; 128] };
        // SAFETY: `id` is there to be written.
        let status = unsafe { (self.functions.get_unique_id)(&mut id) };
        self.check(status, "ncclGetUniqueId")?;
        Ok(id)
    }

    /// An error for every status but success, which `what` has given.
    pub(super) fn check(&self, status: Status, what: &str) -> Result<()> {
        if status == SUCCESS { Ok(()) } else { Err(self.error(status, what)) }
    }

    /// The error of a status.
    pub(super) fn error(&self, status: Status, what: &str) -> Error {
        // SAFETY: a function of NCCL that gives a text, which it keeps, for any number.
        let text = text(unsafe { (self.functions.error_string)(status) });
        // SAFETY: as above; NCCL does not use the communicator.
        let last = text_or_nothing(unsafe { (self.functions.last_error)(core::ptr::null_mut()) });
        let last = if last.is_empty() { String::new() } else { format!(": {last}") };
        Error::Engine {
            message: format!(
                "{what} gave {} ({text}){last}; {}",
                status_name(status),
                super::remedy::of(status, &last, self.version)
            ),
        }
    }
}

fn text(text: *const c_char) -> String {
    let text = text_or_nothing(text);
    if text.is_empty() { "no text".to_string() } else { text }
}

fn text_or_nothing(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: NCCL gives texts that end with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_string()
}

fn version_text(code: c_int) -> String {
    // Until 2.8 the numbers had fewer digits.
    let scale = if code < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", code / scale, code % scale / 100, code % 100)
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} ({})", self.version(), self.name.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_as_people_write_them() {
        assert_eq!([2_708, 21_805, 23_001].map(version_text), ["2.7.8", "2.18.5", "2.30.1"]);
    }
}
