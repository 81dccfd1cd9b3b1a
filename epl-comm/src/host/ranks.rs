//! The ranks of one process, each a thread: their lives, and what becomes of a run in which some failed.

use core::fmt::Display;
use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use rayon::{ThreadBuilder, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::awake::with_pool;
use crate::error::{Error, Result, catch};
use crate::process_group::ProcessGroup;
use crate::rank::Rank;

/// How long a rank waits for its peers unless it is said otherwise: as long as other libraries' ranks wait.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// As much as a program's first thread has: a rank runs whole models, which a thread's default was not made for.
const STACK: usize = 8 << 20;

/// What the caller does with the first failure, whoever hears of it.
pub(crate) type Report = dyn Fn(Rank, &Error) + Send + Sync;

/// What every rank of this process runs. It returns nothing: what a rank has for the caller, it leaves in [`values_of`].
pub(crate) type Program<'a, E> = dyn Fn(ProcessGroup) -> Result<(), E> + Sync + 'a;

/// What `f` returned on each rank of this process, which `run` runs as a [`Program`]: all that starts and ends ranks is
/// compiled once for each type of error, and not again for each closure and each type that it returns.
///
/// # Errors
///
/// What `run` gives.
pub(crate) fn values_of<T: Send, E>(
    f: impl Fn(ProcessGroup) -> Result<T, E> + Sync,
    run: impl FnOnce(&Program<'_, E>) -> Result<(), (Rank, E)>,
) -> Result<Vec<T>, (Rank, E)> {
    let values = Mutex::new(BTreeMap::new());
    run(&|group| {
        let rank = group.rank();
        let value = f(group)?;
        values.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, value);
        Ok(())
    })?;
    Ok(values.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
}

/// What the ranks of a run know of each other.
pub(crate) trait Supervisor: Sync {
    /// Records that a rank of this process failed, unless another did before, and releases everybody.
    fn fail(&self, rank: Rank, cause: String);

    /// Records that a rank of this process begins no further call.
    fn end(&self, rank: Rank);

    /// The first failure, if there was one: who caused it, and as it is told to one that was released from `operation`.
    fn first_failure(&self, operation: &str) -> Option<(Rank, Error)>;
}

/// The ranks of this process.
pub(crate) struct Ranks<'a, F> {
    supervisor: &'a F,
    ranks: Range<usize>,
    /// Threads on which each may compute.
    threads: usize,
    /// Whose own code failed before anybody was known to have failed: the culprit, unless a collective found it, and those that
    /// failed beside it, perhaps alike, as of one wrong option. What a collective finds is told to all its members in the same
    /// words, and has one culprit.
    own: Mutex<BTreeSet<Rank>>,
}

/// How each rank ended; or what the caller's own code panicked with, when it handled an error.
pub(crate) type Ended<E> = Vec<thread::Result<Result<(), E>>>;

impl<'a, F: Supervisor> Ranks<'a, F> {
    /// These ranks, on a host that has `on_host` in all.
    pub(crate) fn new(supervisor: &'a F, ranks: Range<usize>, on_host: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { supervisor, ranks, threads: (cores / on_host).max(1), own: Mutex::default() }
    }

    /// Runs `f` on every rank, with what `begin` gives it, until all have ended. Each works inside its own rayon pool.
    pub(crate) fn run<G, E>(
        &self,
        begin: impl Fn(Rank) -> Result<G> + Sync,
        f: impl Fn(G) -> Result<(), E> + Sync,
    ) -> Ended<E>
    where
        E: From<Error> + Display + Send,
    {
        let life = |rank: Rank| {
            catch(|| begin(rank)).unwrap_or_else(Err).and_then(|given| catch(|| f(given))).unwrap_or_else(|error| {
                // Before the caller's code is run: whatever it does, the others do not wait for it.
                self.fail_by_itself(rank, error.to_string());
                Err(error.into())
            })
        };
        let life = &life;
        thread::scope(|scope| {
            let threads: Vec<_> = self.ranks.clone().map(|rank| self.spawn(scope, Rank(rank), life)).collect();
            let join = |thread: ScopedJoinHandle<'_, Result<(), E>>| thread.join();
            threads.into_iter().map(|thread| thread.map_or_else(|error| Ok(Err(error.into())), join)).collect()
        })
    }

    /// Starts the thread of one rank.
    fn spawn<'scope, E>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        rank: Rank,
        life: &'scope (impl Fn(Rank) -> Result<(), E> + Sync),
    ) -> Result<ScopedJoinHandle<'scope, Result<(), E>>>
    where
        E: From<Error> + Display + Send + 'scope,
    {
        let thread = Builder::new().name(rank.to_string()).spawn_scoped(scope, move || self.live(rank, life));
        thread.map_err(|error| self.fail_without(rank, no_thread(rank, "thread", &error)))
    }

    /// From the beginning of a rank's thread to its end.
    fn live<E: From<Error> + Display + Send>(
        &self,
        rank: Rank,
        life: &(impl Fn(Rank) -> Result<(), E> + Sync),
    ) -> Result<(), E> {
        let _departure = Departure { supervisor: self.supervisor, rank };
        let no_pool = |error: ThreadPoolBuildError| {
            self.fail_without(rank, no_thread(rank, &format!("{} threads", self.threads), &error))
        };
        let result = thread::scope(|scope| {
            let mut threads = Vec::with_capacity(self.threads);
            let start = |thread: ThreadBuilder| {
                let builder = Builder::new().name(rank.to_string()).stack_size(STACK);
                threads.push(builder.spawn_scoped(scope, || thread.run())?);
                Ok(())
            };
            let result = ThreadPoolBuilder::new().num_threads(self.threads).spawn_handler(start).build().map_or_else(
                |error| Err(no_pool(error).into()),
                |pool| pool.install(|| with_pool(self.threads, || life(rank))),
            );
            // A scope waits for what its threads run, but not for what is dropped as they end: scratch memory of
            // products, for example. A pool's thread that panics ends the process, so there is nothing to hear.
            threads.into_iter().for_each(|thread| drop(thread.join()));
            result
        });
        if let Err(error) = &result
            && self.supervisor.first_failure("").is_none()
        {
            // The caller's code, which may do anything; so not inside of `fail`.
            let text = catch(|| error.to_string());
            let cause = text.unwrap_or_else(|panic| format!("its error has no text, as its Display {panic}"));
            self.fail_by_itself(rank, cause);
        }
        result
    }

    /// A failure that no collective has found.
    fn fail_by_itself(&self, rank: Rank, cause: String) {
        if self.supervisor.first_failure("").is_none() {
            // Before it is known: whoever is the first is among these.
            self.by_themselves().insert(rank);
        }
        self.supervisor.fail(rank, cause);
    }

    fn by_themselves(&self) -> MutexGuard<'_, BTreeSet<Rank>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail_without(&self, rank: Rank, message: String) -> Error {
        self.supervisor.fail(rank, message.clone());
        Error::invalid(message)
    }

    /// Whether all ended well, or the one that counts among the failures: the first, or, where others failed alike by
    /// themselves, that of the lowest rank, so that it is the same in every run.
    ///
    /// # Panics
    ///
    /// With what the caller's own code panicked with.
    pub(crate) fn judge<E: From<Error> + Display>(&self, ended: Ended<E>) -> Result<(), (Rank, E)> {
        let mut failures = Vec::new();
        for (rank, ended) in self.ranks.clone().zip(ended) {
            if let Err(error) = ended.unwrap_or_else(|payload| std::panic::resume_unwind(payload)) {
                failures.push((Rank(rank), error));
            }
        }
        let failure = self.supervisor.first_failure("the run, whose ranks here all returned well");
        if failures.is_empty() {
            return failure.map_or(Ok(()), |(rank, error)| Err((rank, error.into())));
        }
        // The culprit may have returned well, too early, or in another process; then whoever noticed says so.
        let culprit = failure.map(|(rank, _)| rank);
        let index = failures.iter().position(|(rank, _)| Some(*rank) == culprit).unwrap_or(0);
        let text = |(_, error): &(Rank, E)| catch(|| error.to_string()).ok();
        let first = text(&failures[index]);
        let is_culprit = culprit.is_none_or(|culprit| culprit == failures[index].0);
        let by_itself = is_culprit && culprit.is_some_and(|culprit| self.by_themselves().contains(&culprit));
        let alike = failures.iter().position(|failure| by_itself && first.is_some() && text(failure) == first);
        let (rank, error) = failures.swap_remove(alike.unwrap_or(index));
        Err((if is_culprit { rank } else { culprit.unwrap_or(rank) }, error))
    }
}

/// Why a rank is not run: the system gives it no thread.
pub(crate) fn no_thread(rank: Rank, what: &str, error: &dyn Display) -> String {
    format!("cannot start the {what} of {rank}: {error}; run fewer ranks, or allow the process more threads")
}

/// Tells the others that a rank has ended, when it is dropped: at its end, or when the caller's own code panics.
struct Departure<'a, F: Supervisor> {
    supervisor: &'a F,
    rank: Rank,
}

impl<F: Supervisor> Drop for Departure<'_, F> {
    fn drop(&mut self) {
        if thread::panicking() {
            // The rank's own panics are caught: this one is in the code that turns them into the caller's error.
            self.supervisor.fail(self.rank, "it panicked while it handled an error".to_string());
        }
        self.supervisor.end(self.rank);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier, OnceLock};

    use super::*;

    /// The rank that failed first.
    struct First(Rank);

    impl Supervisor for First {
        fn fail(&self, _rank: Rank, _cause: String) {}

        fn end(&self, _rank: Rank) {}

        fn first_failure(&self, operation: &str) -> Option<(Rank, Error)> {
            Some((self.0, Error::invalid(format!("released from {operation}"))))
        }
    }

    /// Who is said to have failed, where ranks failed with these texts and rank `first` was the first, by itself or as a
    /// collective found.
    fn told(texts: [&str; 3], first: usize, by_itself: bool) -> (Rank, String) {
        let supervisor = First(Rank(first));
        let ended = texts.map(|text| Ok(Err(Error::invalid(text)))).into();
        let ranks = Ranks::new(&supervisor, 0..3, 3);
        if by_itself {
            ranks.by_themselves().insert(Rank(first));
        }
        let (rank, error) = ranks.judge(ended).unwrap_err();
        (rank, error.to_string())
    }

    /// Keeps who was the first to say so, after a while in which others may do the same.
    #[derive(Debug, Default)]
    struct Board(OnceLock<Rank>);

    impl Supervisor for Board {
        fn fail(&self, rank: Rank, _cause: String) {
            thread::sleep(Duration::from_millis(5 - rank.0 as u64));
            let _ = self.0.set(rank);
        }

        fn end(&self, _rank: Rank) {}

        fn first_failure(&self, _operation: &str) -> Option<(Rank, Error)> {
            self.0.get().map(|rank| (*rank, Error::invalid("released")))
        }
    }

    #[test]
    fn ranks_that_fail_alike_at_the_same_time_are_told_alike_whoever_was_the_first() {
        for _ in 0..20 {
            let (board, together) = (Board::default(), Barrier::new(4));
            let ranks = Ranks::new(&board, 0..4, 4);
            let ended = ranks.run(Ok, |_| {
                together.wait();
                Err::<(), _>(Error::invalid("a wrong option"))
            });
            let (rank, error) = ranks.judge(ended).unwrap_err();
            assert_eq!((rank, error.to_string().contains("a wrong option")), (Rank(0), true), "{error}, of {board:?}");
        }
    }

    /// What a thread keeps until it has ended; it takes its time.
    struct Scratch(Arc<AtomicUsize>);

    impl Drop for Scratch {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(50));
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_the_threads_of_a_rank_keep_is_gone_when_its_run_is_over() {
        thread_local!(static KEPT: RefCell<Option<Scratch>> = const { RefCell::new(None) });
        let (board, kept) = (Board::default(), Arc::new(AtomicUsize::new(0)));
        let ended = Ranks::new(&board, 0..2, 1).run(Ok, |_| {
            let keep = |_: rayon::BroadcastContext<'_>| {
                kept.fetch_add(1, Ordering::SeqCst);
                KEPT.set(Some(Scratch(kept.clone())));
            };
            assert!(!rayon::broadcast(keep).is_empty());
            Ok::<_, Error>(())
        });
        assert!(ended.into_iter().all(|ended| matches!(ended, Ok(Ok(())))));
        assert_eq!(kept.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn of_ranks_that_fail_alike_the_lowest_is_told() {
        for first in 0..3 {
            let (rank, text) = told(["a wrong option"; 3], first, true);
            assert_eq!((rank, text.contains("a wrong option")), (Rank(0), true), "rank {first} was the first: {text}");
        }
        assert_eq!(told(["released", "a wrong option", "a wrong option"], 2, true).0, Rank(1));
        assert_eq!(told(["released", "released", "a bad sample"], 2, true).0, Rank(2));
        // All members of a call are told of the one that is alone with it.
        assert_eq!(told(["a mismatch"; 3], 2, false).0, Rank(2));
    }
}
