//! The world of the processes that `mpirun` has started, as which this program starts itself (`processes`).
//!
//! A run of fewer ranks is that of a sub-group, while the others look on. A run of more ranks than there are is skipped, which
//! is noted: all that one world skips another one makes, as `processes` sees to. Nothing is computed that does not go over MPI,
//! and what a run gives is what the ranks of this process gave.

use core::fmt::Display;
use core::ops::Range;
use core::time::Duration;
use std::fs::OpenOptions;
use std::io::Write;

use epl_comm::{Error, ProcessGroup, Result, mpi};
use proptest::test_runner::{Config as ProptestConfig, RngAlgorithm, TestRng, TestRunner};

use crate::cases::table::{Case, Need, lacks};
use crate::cases::world::{Process, Run, with_options};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind;

/// How many ranks are in each process.
pub fn ranks_each() -> usize {
    std::env::var(crate::RANKS).map_or(1, |ranks| ranks.parse().unwrap())
}

/// How many processes are taken for one host's; none where all are.
fn per_host() -> Option<usize> {
    std::env::var(crate::PER_HOST).ok().map(|processes| processes.parse().unwrap())
}

/// A launcher of the ranks and hosts of which there are to be so many.
pub fn launcher() -> mpi::Launcher {
    let launcher = mpi::Launcher::new().ranks(ranks_each());
    match per_host() {
        Some(processes) => launcher.hosts_of(processes),
        None => launcher,
    }
}

/// Notes, once for all processes, what is made or skipped.
fn note(is_made: bool, what: &str) {
    let place = mpi::place().unwrap();
    if let (0, Some(notes)) = (place.process, std::env::var_os(crate::NOTES)) {
        let mut notes = OpenOptions::new().append(true).create(true).open(notes).unwrap();
        writeln!(notes, "{} {what}", if is_made { crate::MADE } else { crate::SKIPPED }).unwrap();
    }
}

impl Kind {
    pub fn of(name: &str) -> Self {
        assert_eq!(name, "mpi");
        Self
    }

    /// Why a case is left to another world of processes: what has no one stage here has not what depends on it.
    pub fn stands_back(self, case: &Case) -> Option<&'static str> {
        if case.needs.iter().all(|need| self.has(*need)) {
            return None;
        }
        note(false, case.name);
        Some("here a call goes through several smaller groups")
    }

    pub fn has(self, need: Need) -> bool {
        let is_in_stages = per_host().is_some() || (ranks_each() > 1 && mpi::place().unwrap().processes > 1);
        match need {
            Need::OneStage | Need::SumsInOrder | Need::SourceOfWaits if is_in_stages => false,
            need => !lacks("mpi").any(|(lack, _)| lack == need),
        }
    }

    /// Whether ranks that wait for each other in a circle are always found. Where a call goes through several groups, what a
    /// process waits for in one of them is not told to those who wait in another.
    pub fn finds_circles(self) -> bool {
        self.has(Need::OneStage)
    }

    pub fn here(self, ranks: usize) -> Range<usize> {
        let first = (mpi::place().unwrap().process * ranks_each()).min(ranks);
        first..(first + ranks_each()).min(ranks)
    }

    /// All processes are on one machine, whichever hosts they are taken for.
    pub fn on_host(self, _ranks: usize) -> usize {
        mpi::place().unwrap().locals * ranks_each()
    }

    pub fn ends_together(self) -> bool {
        true
    }

    pub fn ends_calls_in_order(self) -> bool {
        true
    }

    /// Of the transport of threads; this one has a limit of its own.
    pub fn eager_limits(self) -> &'static [usize] {
        &[8 << 10]
    }

    /// Whether a mismatch tells who is alone with its call. Where a call is made of stages, two are compared at a time.
    pub fn knows_the_odd_one(self, ranks: usize) -> bool {
        ranks > 2 && self.has(Need::OneStage)
    }

    pub fn checks_order(self) -> bool {
        false
    }

    /// The same in all processes.
    pub fn draws(self, programs: u32, _source: &str) -> TestRunner {
        let cases = programs * 3 / 20;
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]))
    }

    /// A process runs one world at a time.
    pub fn faults(self) -> (u32, u32) {
        (1, 60)
    }

    pub fn patience(self) -> Duration {
        Duration::from_secs(2)
    }

    pub fn steps(self) -> (usize, usize) {
        (250, 1_000)
    }

    /// Tests are run one after the other here.
    pub fn alone(self, _case: &str, rest: impl FnOnce()) {
        rest();
    }

    pub fn launch<T, E>(self, run: &Run<'_>, f: &(dyn Fn(ProcessGroup) -> Result<T, E> + Sync)) -> Vec<Process<T, E>>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        let ranks = run.ranks;
        let all = mpi::place().unwrap().processes * ranks_each();
        // A part of the world is made by a call, on each rank's thread.
        let is_made = ranks == all || (ranks < all && !run.is_fresh);
        note(is_made, &format!("{}, {} with {ranks} ranks", run.world.case, run.place));
        if !is_made {
            return Vec::new();
        }
        let ended = with_options!(launcher(), run).run(|world| {
            if world.size() == ranks {
                return f(world).map(Some);
            }
            let takes_part = world.rank() < ranks;
            let group = world.split("world", usize::from(takes_part), 0)?;
            // No rank can fail in `f` before all are out of the split, where they would hear of it instead of in `f`. Who takes part
            // and hears of it here is told again by the first call in `f`.
            let _ = world.barrier();
            takes_part.then(|| f(group)).transpose()
        });
        let ended = ended.map(|values: Vec<Option<T>>| values.into_iter().flatten().collect());
        vec![Process { own: self.here(ranks), ended }]
    }
}
