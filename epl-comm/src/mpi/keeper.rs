//! The thread that starts the MPI library and leaves it.
//!
//! The standard wants both done by one thread (`MPI_Is_thread_main`), at whatever thread level. A process may end on any of
//! its threads; so a thread is kept for it, which does nothing else.

use core::ffi::{c_char, c_int};
use core::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use mpi::ffi;

use crate::error::{Error, Result};

/// How many runs go on, or were not ended by all processes together: until then the library would wait, when it is
/// left in order, for processes that wait for this one.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The id of the process that has started the library.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Records that a run begins.
pub(super) fn open() {
    OPEN.fetch_add(1, Ordering::AcqRel);
}

/// Records that all processes have ended a run.
pub(super) fn close() {
    OPEN.fetch_sub(1, Ordering::AcqRel);
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Starting,
    /// With the thread level that the library gives.
    On(Result<c_int>),
    /// The process ends.
    Leaving,
    /// Whether the thread was the one that had started it, and the library's code.
    Left(bool, c_int),
}

static PHASE: Mutex<Phase> = Mutex::new(Phase::Starting);
static CHANGED: Condvar = Condvar::new();

/// Starts the library, which is not on, and has it left in order when the process ends in order. The thread level it gives.
pub(super) fn begin() -> Result<c_int> {
    let thread = Builder::new().name("MPI".into()).spawn(keep);
    if let Err(error) = thread {
        let message = format!("cannot start the thread that starts MPI: {error}; allow the process more threads");
        return Err(Error::Medium { message });
    }
    let mut phase = phase();
    loop {
        match &*phase {
            Phase::On(begun) => return begun.clone(),
            _ => phase = wait(phase),
        }
    }
}

/// The life of the thread.
fn keep() {
    let (wanted, mut provided) = (ffi_level(), 0);
    // SAFETY: the library has not been started; without arguments, as the standard allows; a pointer to a variable that
    // lives as long as the call.
    let code = unsafe { ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), wanted, &mut provided) };
    let begun = check("MPI_Init_thread", code).map(|()| provided);
    let is_on = begun.is_ok();
    if is_on {
        OWNER.store(std::process::id(), Ordering::Release);
        // SAFETY: the function lives as long as the process. When it is not taken, mpirun says so at the end.
        let _ = unsafe { atexit(at_exit) };
    }
    change(Phase::On(begun));
    let mut phase = phase();
    while !matches!(*phase, Phase::Leaving) {
        phase = wait(phase);
    }
    drop(phase);
    let mut is_main = 0;
    // SAFETY: it was started by this thread, and is left once; no run goes on.
    let code = unsafe {
        ffi::MPI_Is_thread_main(&mut is_main);
        ffi::MPI_Finalize()
    };
    change(Phase::Left(is_main != 0, code));
}

fn ffi_level() -> c_int {
    // SAFETY: a constant.
    unsafe { ffi::RSMPI_THREAD_MULTIPLE }
}

unsafe extern "C" {
    fn atexit(last: extern "C" fn()) -> c_int;
}

extern "C" fn at_exit() {
    // A child that was made by `fork` has the function, and not the thread that would answer; the library is its parent's.
    let is_child = OWNER.load(Ordering::Acquire) != std::process::id();
    if !is_child && OPEN.load(Ordering::Acquire) == 0 {
        leave();
    }
}

/// Has the library left, which is on. Whether that was done by the thread that had started it, and the library's code.
fn leave() -> (bool, c_int) {
    change(Phase::Leaving);
    let mut phase = phase();
    loop {
        match &*phase {
            Phase::Left(is_main, code) => return (*is_main, *code),
            _ => phase = wait(phase),
        }
    }
}

fn change(to: Phase) {
    *phase() = to;
    CHANGED.notify_all();
}

fn phase() -> MutexGuard<'static, Phase> {
    PHASE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(phase: MutexGuard<'static, Phase>) -> MutexGuard<'static, Phase> {
    CHANGED.wait(phase).unwrap_or_else(PoisonError::into_inner)
}

/// An error code as an error.
pub(super) fn check(call: &str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let (mut text, mut len) = ([0_u8; 8192], 0);
    // SAFETY: more room than the longest text of any library.
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut len) } == 0;
    let text = if known { String::from_utf8_lossy(&text[..len.max(0) as usize]).into_owned() } else { String::new() };
    Err(Error::Medium { message: format!("{call} returned {code}: {text}") })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::library::start;
    use super::super::testing::mpirun;
    use super::*;

    /// Started on one thread, left on another, which are not those that the library sees.
    #[test]
    #[ignore = "run by the test below"]
    fn child() {
        thread::spawn(|| start().map(drop)).join().expect("no panic").expect("the library starts");
        let left = thread::spawn(leave).join().expect("no panic");
        println!("has left: {left:?}");
        // Without what is done at the end of a process: it was.
        std::process::Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status().expect("`kill`");
    }

    #[test]
    fn the_thread_that_started_the_library_leaves_it() {
        let text = mpirun(1, "mpi::keeper::tests::child", |_| ());
        assert!(text.contains("has left: (true, 0)"), "{text}");
    }
}
