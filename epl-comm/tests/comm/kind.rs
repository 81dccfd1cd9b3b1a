//! The worlds whose ranks are all in this process.

use core::fmt::Display;
use core::ops::Range;
use core::time::Duration;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use epl_comm::nccl::Worker;
use epl_comm::{Error, MemoryStore, ProcessGroup, Rank, Result, local};
use proptest::test_runner::{Config as ProptestConfig, TestRunner};

use crate::cases::table::{Case, Need, lacks};
use crate::cases::world::{Process, Run, with_options};
use crate::fake::Fake;
use crate::host_memory::HostMemory;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Threads,
    /// Hosts of two ranks each, on threads.
    Hosts,
    /// Over the stand-in for NCCL, launched together.
    Nccl,
    /// Over the stand-in for NCCL, each as the only rank of a process.
    Workers,
}

impl Kind {
    pub fn of(name: &str) -> Self {
        let all = [Self::Threads, Self::Hosts, Self::Nccl, Self::Workers];
        all.into_iter().find(|kind| kind.name() == name).unwrap()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Hosts => "hosts",
            Self::Nccl => "nccl",
            Self::Workers => "workers",
        }
    }

    /// Each has all that it says it has.
    pub fn stands_back(self, _case: &Case) -> Option<&'static str> {
        None
    }

    pub fn has(self, need: Need) -> bool {
        !lacks(self.name()).any(|(lack, _)| lack == need)
    }

    /// Whether ranks that wait for each other in a circle are always found.
    pub fn finds_circles(self) -> bool {
        self.has(Need::Circles)
    }

    pub fn here(self, ranks: usize) -> Range<usize> {
        0..ranks
    }

    /// How many ranks share the cores with a rank, of so many that are run.
    pub fn on_host(self, ranks: usize) -> usize {
        if self == Self::Workers { 1 } else { ranks }
    }

    /// Whether a process whose ranks have returned well waits for the others, and hears how the run ended.
    pub fn ends_together(self) -> bool {
        self != Self::Workers
    }

    /// Whether a started call is over before the next one of its group begins.
    pub fn ends_calls_in_order(self) -> bool {
        matches!(self, Self::Threads | Self::Hosts)
    }

    /// Everything is large; as it is unless it is said otherwise; everything is small. Over NCCL, a limit of 0 stands for
    /// results that may be made in the memory of a call's buffer.
    pub fn eager_limits(self) -> &'static [usize] {
        match self {
            Self::Threads | Self::Hosts => &[0, 8 << 10, usize::MAX],
            Self::Nccl | Self::Workers => &[0, 8 << 10],
        }
    }

    /// Whether a mismatch tells who is alone with its call. Of more than two, all are compared at once, but where a call is
    /// made of stages.
    pub fn knows_the_odd_one(self, ranks: usize) -> bool {
        ranks > 2 && self.has(Need::OneStage)
    }

    /// Whether it compares the order of calls when it is asked to.
    pub fn checks_order(self) -> bool {
        self != Self::Workers
    }

    /// What draws so many random programs for threads; fewer for the others, which take longer and compute with the same.
    pub fn draws(self, programs: u32, source: &'static str) -> TestRunner {
        let cases = match self {
            Self::Threads => programs,
            Self::Hosts => programs / 5,
            Self::Nccl => programs / 15,
            Self::Workers => programs / 40,
        };
        TestRunner::new(ProptestConfig { cases, source_file: Some(source), ..ProptestConfig::default() })
    }

    /// How many draw faults side by side, and how many each.
    pub fn faults(self) -> (u32, u32) {
        if self == Self::Threads { (6, 50) } else { (6, 10) }
    }

    /// Longer than those who come need to come.
    pub fn patience(self) -> Duration {
        Duration::from_secs(1)
    }

    /// After how many steps memory is looked at, and after how many again.
    pub fn steps(self) -> (usize, usize) {
        if self == Self::Threads { (1_000, 10_000) } else { (250, 1_000) }
    }

    pub fn alone(self, case: &str, rest: impl FnOnce()) {
        epl_testing::alone_as(&format!("on::{}::{case}", self.name()), rest);
    }

    pub fn launch<T, E>(self, run: &Run<'_>, f: &(dyn Fn(ProcessGroup) -> Result<T, E> + Sync)) -> Vec<Process<T, E>>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        let all = |ended| vec![Process { own: 0..run.ranks, ended }];
        match self {
            Self::Threads => all(threads(run).run(f)),
            Self::Hosts => all(threads(run).hosts_of(2).run(f)),
            Self::Nccl => {
                let fake = Fake::new();
                let launcher = with_options!(fake.launcher(run.ranks), run);
                let launcher = if run.check_order { launcher.check_order() } else { launcher };
                let ended = launcher.run_on(|rank| Ok(memory(&fake, rank, run)), |group| f(as_it_is_later(run, group)));
                check(&fake, run, ended.is_ok());
                all(ended)
            }
            Self::Workers => workers(run, f),
        }
    }
}

fn threads(run: &Run<'_>) -> local::Launcher {
    let launcher = with_options!(local::Launcher::new(run.ranks), run);
    let launcher = if run.check_order { launcher.check_order() } else { launcher };
    match run.eager_limit {
        Some(limit) => launcher.eager_limit(limit),
        None => launcher,
    }
}

/// Whether results may be made in the memory of a call's buffer.
fn is_own(run: &Run<'_>) -> bool {
    run.eager_limit.is_none_or(|limit| limit == 0)
}

/// In one of the two ways in which what moves is run, that of a device that works behind its rank.
fn memory(fake: &Fake, rank: Rank, run: &Run<'_>) -> HostMemory {
    if is_own(run) { HostMemory::new(fake, rank, true) } else { HostMemory::behind(fake, rank) }
}

/// Warmed up, in one of the two ways in which what moves is run.
fn as_it_is_later(run: &Run<'_>, group: ProcessGroup) -> ProcessGroup {
    if !is_own(run) {
        group.warmed_up();
    }
    group
}

/// No communicator is left, and none was used in a way that NCCL does not allow.
fn check(fake: &Fake, run: &Run<'_>, is_good: bool) {
    let is_left = fake.count("made") > fake.count("aborted") + fake.count("destroyed");
    assert!(run.is_outlived || !is_left, "{} communicators made", fake.count("made"));
    assert_eq!(fake.count("misused"), 0);
    assert!(!is_good || fake.count("aborted") == 0, "{} aborted in a run that ended well", fake.count("aborted"));
}

fn workers<T, E>(run: &Run<'_>, f: &(dyn Fn(ProcessGroup) -> Result<T, E> + Sync)) -> Vec<Process<T, E>>
where
    T: Send,
    E: From<Error> + Display + Send,
{
    let (fake, store, ranks) = (Fake::new(), Arc::new(MemoryStore::new()), run.ranks);
    let process = |rank: usize| {
        let worker = Worker::new(store.clone(), rank..rank + 1, ranks).library(fake.library.clone());
        let worker = with_options!(worker, run);
        let memory = |rank: Rank| Ok(memory(&fake, rank, run));
        let f = |group: ProcessGroup| f(as_it_is_later(run, group));
        Process { own: rank..rank + 1, ended: worker.run_on(memory, f) }
    };
    let processes: Vec<Process<T, E>> = thread::scope(|scope| {
        let process = &process;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || process(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|payload| resume_unwind(payload))).collect()
    });
    check(&fake, run, processes.iter().all(|process| process.ended.is_ok()));
    processes
}
