//! The functions of `nccl.h`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use crate::clique::{Clique, Comm, IN_PROGRESS, Kind, Op};
use crate::device;
use crate::reduce::size;
use crate::switches::{count, is_on, version};

type Status = i32;
type Id = [u8; 128];

static CLIQUES: LazyLock<Mutex<HashMap<Id, (Arc<Clique>, usize)>>> = LazyLock::new(Mutex::default);
static IDS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// How deep the groups are, and what was called in them.
    static GROUP: RefCell<(usize, Vec<(usize, Op)>)> = const { RefCell::new((0, Vec::new())) };
}

/// `ncclUniqueId`.
#[repr(C)]
pub struct UniqueId(Id);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(code: *mut i32) -> Status {
    unsafe { *code = version() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&IDS.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
    bytes[127] = 7;
    unsafe { (*id).0 = bytes };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut *mut Comm,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    config: *const c_void,
) -> Status {
    let (ranks, rank) = (ranks as usize, rank as usize);
    // The size, the magic number and the version begin the configuration; then whether it blocks.
    let (magic, blocking) = unsafe { (*config.cast::<u32>().add(2), *config.cast::<i32>().add(4)) };
    if magic != 0xcafe_beef || blocking != 0 || rank >= ranks || id.0[127] != 7 {
        count("misused");
        return 4;
    }
    if is_on("fail", "ncclCommInitRankConfig", rank) {
        return 5;
    }
    let mut cliques = CLIQUES.lock().unwrap();
    let (clique, joined) = cliques.entry(id.0).or_insert_with(|| (Clique::of(ranks), 0));
    *joined += 1;
    unsafe { *comm = Comm::make(clique.clone(), rank) };
    if !is_on("hang", "ncclCommInitRankConfig", rank) {
        clique.join();
    }
    if *joined == ranks {
        cliques.remove(&id.0);
    }
    IN_PROGRESS
}

#[cfg(not(without_split))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: *mut Comm,
    color: i32,
    key: i32,
    new: *mut *mut Comm,
    _config: *const c_void,
) -> Status {
    let comm = unsafe { &*comm };
    if !comm.is_ready() || is_on("fail", "ncclCommSplit", comm.rank) {
        count("misused");
        return 4;
    }
    count("ncclCommSplit");
    comm.clique.split(comm.rank, color, key, new as usize);
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: *mut Comm) -> Status {
    unsafe { &*comm }.is_finalized.store(1, Ordering::Release);
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut Comm) -> Status {
    let comm = unsafe { Box::from_raw(comm) };
    if comm.is_finalized.load(Ordering::Acquire) == 0 || !comm.is_ready() {
        count("misused");
    }
    count("destroyed");
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut Comm) -> Status {
    let comm = unsafe { Box::from_raw(comm) };
    comm.clique.leave(comm.rank);
    device::stir();
    count("aborted");
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut Comm, status: *mut Status) -> Status {
    unsafe { *status = (*comm).status() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(status: Status) -> *const c_char {
    let text = match status {
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"internal error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(_comm: *mut Comm) -> *const c_char {
    if device::has_deadlock() { c"deadlock".as_ptr() } else { c"".as_ptr() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> Status {
    GROUP.with_borrow_mut(|group| group.0 += 1);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> Status {
    GROUP.with_borrow_mut(|(depth, ops)| {
        *depth -= 1;
        if *depth > 0 {
            return 0;
        }
        let left = Arc::new(AtomicUsize::new(ops.len()));
        let Some(comm) = ops.first().map(|(comm, _)| *comm) else { return 0 };
        if ops.iter().any(|(other, op)| *other != comm || op.stream != ops[0].1.stream) {
            // Allowed by NCCL, but not done by the transport.
            count("misused");
            return 4;
        }
        let group = ops.drain(..).map(|(_, op)| Op { left: left.clone(), ..op }).collect();
        // SAFETY: a communicator is alive until it is given back, and that it is not while it is used.
        unsafe { &*(comm as *const Comm) }.begun.lock().unwrap().push(group);
        IN_PROGRESS
    })
}

/// Takes a call into the group; one outside of a group is its own.
fn call(comm: *mut Comm, function: &'static str, elements: usize, op: Op) -> Status {
    count(function);
    let end = unsafe { &*comm };
    let Some(size) = size(op.element) else { return 4 };
    if !end.is_ready() || op.stream == 0 {
        count("misused");
        return 4;
    }
    if is_on("fail", function, end.rank) {
        return 3;
    }
    let op = Op { len: elements * size, function, ..op };
    unsafe { ncclGroupStart() };
    GROUP.with_borrow_mut(|group| group.1.push((comm as usize, op)));
    unsafe { ncclGroupEnd() }.min(0)
}

macro_rules! collectives {
    ($($function:ident, $kind:expr, ($($name:ident: $type:ty),*);)+) => {$(
        #[unsafe(no_mangle)]
        #[allow(unused_variables, non_snake_case)]
        pub unsafe extern "C" fn $function(
            from: *const c_void, to: *mut c_void, elements: usize, element: i32, $($name: $type,)*
            comm: *mut Comm, stream: *mut c_void,
        ) -> Status {
            let (kind, reduction): (Kind, i32) = $kind;
            let (from, to, stream) = (from as usize, to as usize, stream as usize);
            let op = Op { function: "", kind, from, to, len: 0, element, op: reduction, stream, left: Arc::default() };
            call(comm, stringify!($function), elements, op)
        }
    )+};
}

collectives! {
    ncclAllReduce, (Kind::AllReduce, op), (op: i32);
    ncclReduceScatter, (Kind::ReduceScatter, op), (op: i32);
    ncclReduce, (Kind::Reduce(root as usize), op), (op: i32, root: i32);
    ncclAllGather, (Kind::AllGather, 0), ();
    ncclBroadcast, (Kind::Broadcast(root as usize), 0), (root: i32);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    from: *const c_void,
    elements: usize,
    element: i32,
    peer: i32,
    comm: *mut Comm,
    stream: *mut c_void,
) -> Status {
    let (from, kind, stream) = (from as usize, Kind::Send(peer as usize), stream as usize);
    call(comm, "ncclSend", elements, Op { function: "", kind, from, to: 0, len: 0, element, op: 0, stream, left: Arc::default() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    to: *mut c_void,
    elements: usize,
    element: i32,
    peer: i32,
    comm: *mut Comm,
    stream: *mut c_void,
) -> Status {
    let (to, kind, stream) = (to as usize, Kind::Receive(peer as usize), stream as usize);
    call(comm, "ncclRecv", elements, Op { function: "", kind, from: 0, to, len: 0, element, op: 0, stream, left: Arc::default() })
}
