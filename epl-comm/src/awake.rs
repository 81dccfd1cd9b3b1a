//! Threads of a rank's pool that stay awake between its operations.
//!
//! A thread of rayon looks for work some thirty times, for about 15 µs, and sleeps; to wake it again takes longer than that, and each
//! product of a step would wait for it. As OpenMP's threads do (`KMP_BLOCKTIME` of LLVM's runtime, 200 ms), the threads of a rank look
//! further between operations in host memory, until none has come for [`PATIENCE`].
//!
//! What looks is a job on each of the other threads, which runs what it finds inside itself. They are started by an operation, when
//! none is awake: the others have had nothing to do for so long that they are not inside of a job that waits. One that a program has
//! spawned by itself may be: what looks inside of it ends after [`LONGEST`], whatever it has found.

use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use crate::scoped::scoped;

/// After so long without work a thread sleeps.
const PATIENCE: Duration = Duration::from_millis(1);

/// After so long what looks ends, and is started again by the next operation.
const LONGEST: Duration = Duration::from_millis(100);

/// Threads of the pools of all ranks that live in this process.
static POOLED: AtomicUsize = AtomicUsize::new(0);

/// Nanoseconds that threads have looked for work.
static LOOKED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OTHERS: RefCell<Option<Arc<Others>>> = const { RefCell::new(None) };
}

/// The other threads of a rank's pool.
#[derive(Default)]
struct Others {
    count: usize,
    awake: AtomicUsize,
    is_over: AtomicBool,
}

/// Runs `f`, the life of a rank, on a thread of its pool of so many.
pub(crate) fn with_pool<R>(threads: usize, f: impl FnOnce() -> R) -> R {
    struct Over(Arc<Others>);

    impl Drop for Over {
        fn drop(&mut self) {
            self.0.is_over.store(true, Ordering::Relaxed);
            POOLED.fetch_sub(self.0.count + 1, Ordering::Relaxed);
        }
    }

    POOLED.fetch_add(threads, Ordering::Relaxed);
    let over = Over(Arc::new(Others { count: threads - 1, ..Others::default() }));
    scoped(&OTHERS, over.0.clone(), f)
}

/// Keeps the other threads awake, if this is the thread of a rank, and none is awake. Where ranks have more threads than there are
/// cores, a thread that looks would take the core of one that computes.
pub(crate) fn keep_awake() {
    let asleep = |others: &&Arc<Others>| others.count > 0 && others.awake.load(Ordering::Relaxed) == 0;
    let others = OTHERS.with_borrow(|others| others.as_ref().filter(asleep).cloned());
    if let Some(others) = others.filter(|_| POOLED.load(Ordering::Relaxed) <= cores()) {
        others.wake();
    }
}

/// How long all threads have looked for work, in sum: time in which they computed nothing, by the clock on the wall.
pub(crate) fn looked() -> Duration {
    Duration::from_nanos(LOOKED.load(Ordering::Relaxed))
}

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

impl Others {
    fn wake(self: &Arc<Self>) {
        let (Some(own), others) = (rayon::current_thread_index(), self.clone()) else { return };
        self.awake.store(self.count, Ordering::Relaxed);
        rayon::spawn_broadcast(move |place| {
            if place.index() != own {
                others.look();
                others.awake.fetch_sub(1, Ordering::Relaxed);
            }
        });
        // This thread's own, which has nothing to do: of those that are left a rank would have one for each time.
        rayon::yield_local();
    }

    fn look(&self) {
        let begin = Instant::now();
        let (mut since, mut last) = (begin, begin);
        while !self.is_over.load(Ordering::Relaxed) && since.elapsed() < PATIENCE && begin.elapsed() < LONGEST {
            if matches!(rayon::yield_now(), Some(rayon::Yield::Executed)) {
                since = Instant::now();
                last = since;
                continue;
            }
            thread::yield_now();
            let looked = last.elapsed();
            LOOKED.fetch_add(looked.as_nanos() as u64, Ordering::Relaxed);
            last += looked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| with_pool(threads, f))
    }

    fn rank() -> Arc<Others> {
        OTHERS.with_borrow(Clone::clone).expect("of a rank")
    }

    fn awake() -> usize {
        OTHERS.with_borrow(|others| others.as_ref().map_or(0, |others| others.awake.load(Ordering::SeqCst)))
    }

    /// Waits until it is so, as it will be within milliseconds.
    fn until(is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is not so");
            thread::yield_now();
        }
    }

    #[test]
    fn nothing_is_left_of_those_that_have_ended() {
        on_pool(3, || {
            for _ in 0..20 {
                rank().wake();
                until(|| awake() == 0);
            }
            // This one, that of the rank, and of those that end their last job.
            until(|| Arc::strong_count(&rank()) <= 3);
        });
    }

    #[test]
    fn threads_are_awake_until_no_work_has_come_and_share_what_comes() {
        on_pool(3, || {
            assert_eq!(awake(), 0);
            rank().wake();
            // All three at once, or none would go on.
            let met = std::sync::Barrier::new(3);
            rayon::join(|| met.wait(), || rayon::join(|| met.wait(), || met.wait()));
            until(|| awake() == 0);
            assert!(!looked().is_zero());
        });
    }

    #[test]
    fn the_end_of_a_rank_ends_them() {
        let others = on_pool(2, || {
            rank().wake();
            rank()
        });
        // The pool may have gone before one began to look.
        assert!(others.is_over.load(Ordering::SeqCst) && others.awake.load(Ordering::SeqCst) <= 1);
    }

    #[test]
    fn nobody_else_is_kept_awake() {
        keep_awake();
        on_pool(1, || {
            keep_awake();
            assert_eq!(awake(), 0, "one thread has no others");
        });
        let threads = cores() + 1;
        on_pool(threads, || {
            keep_awake();
            assert_eq!(awake(), 0, "more threads than cores");
        });
    }
}
