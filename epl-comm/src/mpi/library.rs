//! The MPI library: the few calls of it that are used, its error codes turned into errors.
//!
//! Nothing here waits for another process but [`start`]: everything else is begun, and asked for later. How the library is
//! left is in `keeper`.

use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr;
use std::sync::OnceLock;

use mpi::ffi;

use super::keeper::{self, check};
use crate::error::{Error, Result};

/// Where this process stands among those that were started with it, from the MPI library itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of this process, from 0.
    pub process: usize,
    /// How many processes there are.
    pub processes: usize,
    /// The number of this process among those on its host, from 0.
    pub local: usize,
    /// How many processes are on its host.
    pub locals: usize,
}

/// The most bytes of one message: counts are 32 bits wide.
pub(super) const MOST: usize = 1 << 30;

/// Starts the library, once a process. All processes come out of it together.
pub(super) fn start() -> Result<Place> {
    Ok(started()?.0)
}

/// The first process on the host of each process.
pub(super) fn hosts() -> Result<Vec<usize>> {
    Ok(started()?.1)
}

fn started() -> Result<(Place, Vec<usize>)> {
    static STARTED: OnceLock<Result<(Place, Vec<usize>)>> = OnceLock::new();
    STARTED.get_or_init(initialise).clone()
}

fn initialise() -> Result<(Place, Vec<usize>)> {
    let (mut is_on, mut is_over, mut provided) = (0, 0, 0);
    // SAFETY: pointers to variables that live as long as the calls; both may be called at any time.
    unsafe {
        check("MPI_Initialized", ffi::MPI_Initialized(&mut is_on))?;
        check("MPI_Finalized", ffi::MPI_Finalized(&mut is_over))?;
    }
    if is_over != 0 {
        let message = "this process has left MPI already (MPI_Finalize), and it cannot be started again".to_string();
        return Err(Error::Medium { message });
    }
    if is_on == 0 {
        provided = keeper::begin()?;
    }
    // SAFETY: as above; it is on.
    unsafe {
        if is_on != 0 {
            check("MPI_Query_thread", ffi::MPI_Query_thread(&mut provided))?;
        }
        if provided < ffi::RSMPI_THREAD_MULTIPLE {
            return Err(Error::Medium {
                message: format!(
                    "MPI gives thread level {provided}, but ranks call it from several threads, which is level {} \
                     (MPI_THREAD_MULTIPLE); use a library that was built with it, and let the first MPI_Init_thread \
                     of the process ask for it",
                    ffi::RSMPI_THREAD_MULTIPLE
                ),
            });
        }
        check("MPI_Comm_set_errhandler", {
            ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN)
        })?;
    }
    place()
}

/// Where this process stands, and the first process on the host of each.
fn place() -> Result<(Place, Vec<usize>)> {
    let mut numbers = [0; 4];
    let [process, processes, local, locals] = &mut numbers;
    let mut hosts;
    // SAFETY: the library is on; pointers to variables that live as long as the calls, the last one to a number for each
    // process; the communicator is made before it is used, and freed once.
    unsafe {
        let (world, mut host, int) = (ffi::RSMPI_COMM_WORLD, ffi::RSMPI_COMM_NULL, ffi::RSMPI_INT32_T);
        check("MPI_Comm_rank", ffi::MPI_Comm_rank(world, process))?;
        check("MPI_Comm_size", ffi::MPI_Comm_size(world, processes))?;
        check("MPI_Comm_split_type", {
            ffi::MPI_Comm_split_type(world, ffi::RSMPI_COMM_TYPE_SHARED, *process, ffi::RSMPI_INFO_NULL, &mut host)
        })?;
        check("MPI_Comm_rank", ffi::MPI_Comm_rank(host, local))?;
        check("MPI_Comm_size", ffi::MPI_Comm_size(host, locals))?;
        let mut first = *process;
        hosts = vec![0_i32; *processes as usize];
        check("MPI_Bcast", ffi::MPI_Bcast((&raw mut first).cast(), 1, int, 0, host))?;
        check("MPI_Allgather", {
            ffi::MPI_Allgather((&raw const first).cast(), 1, int, hosts.as_mut_ptr().cast(), 1, int, world)
        })?;
        check("MPI_Comm_free", ffi::MPI_Comm_free(&mut host))?;
    }
    let [process, processes, local, locals] = numbers.map(|number| number as usize);
    Ok((Place { process, processes, local, locals }, hosts.into_iter().map(|host| host as usize).collect()))
}

/// All processes, in a space of messages of its own. It is never freed: peers may still send.
#[derive(Clone, Copy)]
pub(super) struct Comm(ffi::MPI_Comm);

// SAFETY: a handle; the library may be called from any thread, as `start` has made sure.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// Something that was begun.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Request(ffi::MPI_Request);

// SAFETY: as for a communicator.
unsafe impl Send for Request {}

/// A message that has come.
pub(super) struct Arrived {
    pub(super) process: usize,
    pub(super) len: usize,
    tag: c_int,
}

/// A message on its way into this process.
pub(super) struct Arriving {
    pub(super) process: usize,
    bytes: ManuallyDrop<Vec<u8>>,
    request: Request,
}

impl Arriving {
    /// The message, once all of it is here. To be asked for until then.
    pub(super) fn bytes(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(self.request.test()?.then(|| core::mem::take(&mut *self.bytes)))
    }
}

impl Comm {
    /// Begins a copy of the world. It may be used when the request is over.
    pub(super) fn begin(into: &mut Self) -> Result<Request> {
        // SAFETY: nothing is asked.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the caller keeps `into` where it is until the request is over, see `join` in `mpi/join.rs`.
        let code = unsafe { ffi::MPI_Comm_idup(ffi::RSMPI_COMM_WORLD, &mut into.0, &mut request) };
        check("MPI_Comm_idup", code).map(|()| Request(request))
    }

    /// No communicator.
    pub(super) fn none() -> Self {
        // SAFETY: a constant.
        Self(unsafe { ffi::RSMPI_COMM_NULL })
    }

    /// The largest tag of a message.
    pub(super) fn tag_limit(self) -> Result<u64> {
        let (mut value, mut is_set) = (ptr::null_mut::<c_int>(), 0);
        // SAFETY: the attribute is a pointer to a number that lives as long as the library is on.
        unsafe {
            let place = ptr::from_mut(&mut value).cast();
            // The tag limit is an attribute of the world; a copy has it by its own right in some libraries only.
            let key = ffi::MPI_TAG_UB as c_int;
            check("MPI_Comm_get_attr", ffi::MPI_Comm_get_attr(ffi::RSMPI_COMM_WORLD, key, place, &mut is_set))?;
            Ok(if is_set != 0 && !value.is_null() { *value as u64 } else { 32767 })
        }
    }

    /// Begins to send up to [`MOST`] bytes.
    ///
    /// # Safety
    ///
    /// The memory is alive, and nobody writes it, until the request is over.
    pub(super) unsafe fn send(self, from: *const u8, len: usize, process: usize, tag: c_int) -> Result<Request> {
        // SAFETY: a constant.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        assert!(len <= MOST, "a message of {len} bytes");
        // SAFETY: the caller's promise.
        let code = unsafe {
            let bytes = ffi::RSMPI_UINT8_T;
            ffi::MPI_Isend(from.cast(), len as c_int, bytes, process as c_int, tag, self.0, &mut request)
        };
        check("MPI_Isend", code).map(|()| Request(request))
    }

    /// Begins to receive up to [`MOST`] bytes: as many, or fewer.
    ///
    /// # Safety
    ///
    /// The memory is alive, and nobody else reads or writes it, until the request is over.
    pub(super) unsafe fn receive(self, to: *mut u8, len: usize, process: usize, tag: c_int) -> Result<Request> {
        // SAFETY: a constant.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        assert!(len <= MOST, "a message of {len} bytes");
        // SAFETY: the caller's promise.
        let code = unsafe {
            let bytes = ffi::RSMPI_UINT8_T;
            ffi::MPI_Irecv(to.cast(), len as c_int, bytes, process as c_int, tag, self.0, &mut request)
        };
        check("MPI_Irecv", code).map(|()| Request(request))
    }

    /// Begins to gather some numbers of every process.
    ///
    /// # Safety
    ///
    /// Both are alive, and nobody uses them, until the request is over; `all` has room for those of all processes.
    pub(super) unsafe fn gather(self, own: &[u64], all: *mut u64) -> Result<Request> {
        // SAFETY: constants.
        let (mut request, kind) = unsafe { (ffi::RSMPI_REQUEST_NULL, ffi::RSMPI_UINT64_T) };
        let (from, count) = (own.as_ptr().cast(), own.len() as c_int);
        // SAFETY: the caller's promise.
        let code = unsafe { ffi::MPI_Iallgather(from, count, kind, all.cast(), count, kind, self.0, &mut request) };
        check("MPI_Iallgather", code).map(|()| Request(request))
    }

    /// A message that has come, if there is one, from whomever. One thread asks, and takes it before it asks again.
    pub(super) fn look(self) -> Result<Option<Arrived>> {
        let mut is_here = 0;
        let mut count = 0;
        // SAFETY: a status is plain data; all pointers are to variables that live as long as the calls.
        unsafe {
            let mut status: ffi::MPI_Status = core::mem::zeroed();
            let (any, any_tag) = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG);
            check("MPI_Iprobe", ffi::MPI_Iprobe(any, any_tag, self.0, &mut is_here, &mut status))?;
            if is_here == 0 {
                return Ok(None);
            }
            check("MPI_Get_count", ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut count))?;
            let process = status.MPI_SOURCE as usize;
            Ok(Some(Arrived { process, len: count.max(0) as usize, tag: status.MPI_TAG }))
        }
    }

    /// Begins to take it: a long one comes only when its sender goes on with it.
    pub(super) fn take(self, message: &Arrived) -> Result<Arriving> {
        let mut bytes = ManuallyDrop::new(vec![0_u8; message.len]);
        // SAFETY: room for all of it, which stays where it is until the request is over, for ever if it never is.
        let request = unsafe { self.receive(bytes.as_mut_ptr(), message.len, message.process, message.tag) }?;
        Ok(Arriving { process: message.process, bytes, request })
    }
}

impl Request {
    /// Whether it is over.
    pub(super) fn test(&mut self) -> Result<bool> {
        let mut is_over = 0;
        // SAFETY: a request that was begun, or is over, which is another value that may be asked for.
        let code = unsafe { ffi::MPI_Test(&mut self.0, &mut is_over, ffi::RSMPI_STATUS_IGNORE) };
        check("MPI_Test", code).map(|()| is_over != 0)
    }
}

/// Whether all are over.
pub(super) fn test_all(requests: &mut [Request]) -> Result<bool> {
    let mut are_over = 0;
    // SAFETY: a list of requests: the wrapper is transparent in memory, as its only field is one.
    let code = unsafe {
        let (first, count) = (requests.as_mut_ptr().cast::<ffi::MPI_Request>(), requests.len() as c_int);
        ffi::MPI_Testall(count, first, &mut are_over, ffi::RSMPI_STATUSES_IGNORE)
    };
    check("MPI_Testall", code).map(|()| are_over != 0)
}
