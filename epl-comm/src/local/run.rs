//! Starting ranks as threads, and ending them together.

use core::fmt::Display;
use std::sync::Arc;
use std::thread::{self, Builder};

use rayon::ThreadPoolBuilder;

use super::board::Board;
use super::transport::LocalTransport;
use super::world::World;
use crate::error::{Error, catch};
use crate::pending::Helpers;
use crate::process_group::ProcessGroup;
use crate::rank::Rank;

/// As much as a program's first thread has: a rank runs whole models, which a thread's default was not made for.
const STACK: usize = 8 << 20;

/// Runs `f` once for each of `ranks` ranks, each on a thread of its own, and returns what each returned.
///
/// Each rank works inside its own rayon pool of (cores ÷ ranks) threads, at least one, so that the loops of Flex do
/// not fight over one pool. When this returns, no thread of it is left, but for the idle helper threads of groups that
/// outlive it.
///
/// A rank that returns an error, panics or unwinds releases the others from whatever collective they wait in; so does
/// one that returns while others wait for it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_comm::{Error, ReduceOp, local};
///
/// let sums = local::run(2, |group| {
///     let x = Tensor::<1>::full([1], group.rank() as f32 + 1.0, &Device::flex());
///     Ok::<_, Error>(group.all_reduce(x, ReduceOp::Sum)?.into_scalar::<f32>())
/// });
/// assert_eq!(sums.ok(), Some(vec![3.0, 3.0]));
/// ```
///
/// # Errors
///
/// When a rank did not succeed, or a collective failed, even if every rank made up for it and returned well: the
/// failure that came first, with the rank that caused it. Where no single rank did (two calls that do not fit, ranks
/// that wait for each other), the rank is the lowest of those that the error names.
///
/// # Panics
///
/// When the conversion into `E` panics; the ranks have been released by then.
pub fn run<T, E>(ranks: usize, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
where
    T: Send,
    E: From<Error> + Display + Send,
{
    if ranks == 0 {
        return Err((Rank(0), Error::invalid("a world of 0 ranks; run at least 1").into()));
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let world = Arc::new(World::new(ranks, cores));
    let board = Arc::new(Board::new("world", (0..ranks).map(Rank).collect(), &world));
    let helpers = Helpers::default();
    let launch = Launch { world: &world, board: &board, helpers: &helpers, threads: (cores / ranks).max(1) };
    let results = thread::scope(|scope| {
        let spawn = |rank| {
            let (launch, f) = (&launch, &f);
            Builder::new().name(rank_name(rank)).spawn_scoped(scope, move || launch.rank(rank, f)).map_err(|error| {
                let error = Error::invalid(format!(
                    "cannot start the thread of {rank} of {ranks}: {error}; run fewer ranks, or allow the process more \
                     threads"
                ));
                launch.world.fail(rank, error.to_string());
                Err(error.into())
            })
        };
        let threads: Vec<_> = (0..ranks).map(|rank| spawn(Rank(rank))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<T, E>>| thread.join();
        threads.into_iter().map(|thread| thread.map_or_else(Ok, join)).collect::<Vec<_>>()
    });
    helpers.join();
    let unwrap = |result: thread::Result<_>| result.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
    judge(&world, results.into_iter().map(unwrap).collect())
}

/// What the threads of one launch share.
struct Launch<'a> {
    world: &'a Arc<World>,
    board: &'a Arc<Board>,
    helpers: &'a Helpers,
    threads: usize,
}

impl Launch<'_> {
    /// The life of one rank.
    fn rank<T: Send, E: From<Error> + Display + Send>(
        &self,
        rank: Rank,
        f: &(impl Fn(ProcessGroup) -> Result<T, E> + Sync),
    ) -> Result<T, E> {
        let _departure = Departure { world: self.world, rank };
        let body = || {
            let transport = LocalTransport::new(self.world.clone(), self.board.clone(), rank.0);
            let driver = self.world.driver(rank).clone();
            let group = ProcessGroup::with_driver(Arc::new(transport), self.helpers.clone(), driver);
            catch(|| f(group)).unwrap_or_else(|error| {
                // Before the caller's code is run: whatever it does, the others do not wait for it.
                self.world.fail(rank, error.to_string());
                Err(error.into())
            })
        };
        let pool =
            ThreadPoolBuilder::new().num_threads(self.threads).stack_size(STACK).thread_name(move |_| rank_name(rank));
        // Scoped, so that the pool's threads have ended when this returns.
        let result = pool
            .build_scoped(|thread| thread.run(), |pool| pool.install(body))
            .unwrap_or_else(|error| Err(self.no_pool(rank, &error).into()));
        if let Err(error) = &result
            && self.world.failure().is_none()
        {
            // The caller's code, which may do anything; so not inside of `fail`.
            let text = catch(|| error.to_string());
            let cause = text.unwrap_or_else(|panic| format!("its error has no text, as its Display {panic}"));
            self.world.fail(rank, cause);
        }
        result
    }

    fn no_pool(&self, rank: Rank, cause: &rayon::ThreadPoolBuildError) -> Error {
        let message = format!(
            "cannot start the {} threads of {rank}: {cause}; run fewer ranks, or allow the process more threads",
            self.threads
        );
        self.world.fail(rank, message.clone());
        Error::invalid(message)
    }
}

/// Tells the others that a rank has ended, when it is dropped: at its end, or when the caller's own code panics.
struct Departure<'a> {
    world: &'a World,
    rank: Rank,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // The rank's own panics are caught: this one is in the code that turns them into the caller's error.
            self.world.fail(self.rank, "it panicked while it handled an error".to_string());
        }
        self.world.end(self.rank);
    }
}

fn rank_name(rank: Rank) -> String {
    rank.to_string()
}

/// All results, or the one that counts among the failures.
fn judge<T, E: From<Error>>(world: &World, results: Vec<Result<T, E>>) -> Result<Vec<T>, (Rank, E)> {
    let culprit = world.failure().map(|failure| failure.rank);
    let mut values = Vec::with_capacity(results.len());
    let mut failures = Vec::new();
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            Err(error) => failures.push((Rank(rank), error)),
        }
    }
    if failures.is_empty() {
        return match world.failure() {
            None => Ok(values),
            Some(failure) => {
                Err((failure.rank, failure.to_error("the run, whose ranks all returned well".into()).into()))
            }
        };
    }
    // The culprit may have returned well, too early; then whoever noticed says so.
    let index = failures.iter().position(|(rank, _)| Some(*rank) == culprit).unwrap_or(0);
    let (rank, error) = failures.swap_remove(index);
    Err((culprit.unwrap_or(rank), error))
}
