//! Ranks of a world, which a case runs without knowing what they go over. What each kind of world does is the test program's
//! (`crate::kind`).

use core::fmt::Display;
use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use epl_comm::{Error, ProcessGroup, Rank, Result};

use super::table::{Need, case};
use crate::kind::Kind;
use crate::watchdog::within_seconds;

/// Guards against hangs only, as do the cases' own bounds against what is slow.
const SECONDS: u64 = 300;

/// Runs a case of the list on a kind of world; it must run ranks there.
pub fn test(kind: &str, name: &'static str) {
    within_seconds(SECONDS, {
        let (kind, case) = (Kind::of(kind), case(name));
        move || {
            if let Some(why) = kind.stands_back(case) {
                println!("{name} is left to another world: {why}");
                return;
            }
            let world = World { kind, case: name, runs: AtomicUsize::new(0) };
            (case.run)(&world);
            assert!(world.runs.into_inner() > 0, "{name} has run no ranks on {kind:?}");
        }
    });
}

/// Where a case is run.
#[derive(Debug)]
pub struct World {
    pub kind: Kind,
    /// Which one, as the list names it.
    pub case: &'static str,
    runs: AtomicUsize,
}

impl World {
    /// Runs `f` on each of so many ranks, which all end well; what those that are here returned.
    #[track_caller]
    pub fn run<T: Send>(&self, ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
        self.ranks(ranks).run(f)
    }

    /// As [`Run::fail`].
    #[track_caller]
    pub fn fail<T: Send>(
        &self,
        ranks: usize,
        f: impl Fn(ProcessGroup) -> T + Sync,
        check: impl FnOnce(Vec<T>, (Rank, Error)),
    ) {
        self.ranks(ranks).fail(f, check);
    }

    /// A run of so many ranks.
    #[track_caller]
    pub fn ranks(&self, ranks: usize) -> Run<'_> {
        Run {
            world: self,
            ranks,
            place: Location::caller(),
            time_limit: None,
            eager_limit: None,
            lanes: None,
            check_order: false,
            on_failure: None,
            is_fresh: false,
            is_outlived: false,
        }
    }

    /// Which of so many ranks are here: in this process, or in those that the ranks of this one are taken for.
    pub fn here(&self, ranks: usize) -> Range<usize> {
        self.kind.here(ranks)
    }

    /// Whether it has what a case would need.
    pub fn has(&self, need: Need) -> bool {
        self.kind.has(need)
    }

    /// Which ranks each process has, and what it was told of a run that has failed. A process whose ranks had all returned
    /// well before may not have heard of it, where processes do not end together.
    pub fn failures<T, E>(&self, processes: Vec<Process<T, E>>) -> Vec<(Range<usize>, Rank, E)> {
        let (count, together) = (processes.len(), self.kind.ends_together());
        let told = processes.into_iter().filter_map(|process| match process.ended {
            Err((rank, error)) => Some((process.own, rank, error)),
            Ok(_) => None,
        });
        let told: Vec<_> = told.collect();
        assert!(told.len() == count || (!together && !told.is_empty()), "a world that failed is a failed run");
        told
    }

    /// Runs the rest of this case in a process of its own, where this one has other tests.
    pub fn alone(&self, rest: impl FnOnce()) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.kind.alone(self.case, || {
            let before = self.runs.load(Ordering::Relaxed);
            rest();
            assert!(self.runs.load(Ordering::Relaxed) > before, "{} has run no ranks on {:?}", self.case, self.kind);
        });
    }
}

/// What is done with a failure as soon as it is known.
pub type Report = dyn Fn(Rank, &Error) + Send + Sync;

/// Ranks that are to be run. What a kind of world has no option for stays as it is there.
#[derive(Clone)]
pub struct Run<'a> {
    pub world: &'a World,
    pub ranks: usize,
    /// Where it stands in a case.
    #[allow(dead_code, reason = "where runs may be skipped, it is noted which ones")]
    pub place: &'static Location<'static>,
    /// None: as the launcher has it; a none in it: there is none.
    pub time_limit: Option<Option<Duration>>,
    #[allow(dead_code, reason = "not every kind of world has one")]
    pub eager_limit: Option<usize>,
    pub lanes: Option<usize>,
    #[allow(dead_code, reason = "not every kind of world compares it")]
    pub check_order: bool,
    pub on_failure: Option<Arc<Report>>,
    /// Whether no call of a rank's groups may have been made before.
    #[allow(dead_code, reason = "not every kind of world makes any")]
    pub is_fresh: bool,
    /// Whether something may hold a group when the run is over.
    #[allow(dead_code, reason = "not every kind of world counts what is given back")]
    pub is_outlived: bool,
}

/// How a run ended for one process, or for what is taken for one.
#[derive(Debug)]
pub struct Process<T, E> {
    /// Which ranks are its own.
    pub own: Range<usize>,
    pub ended: Result<Vec<T>, (Rank, E)>,
}

/// Sets the options of a run on a launcher, which all have the same names for them.
macro_rules! with_options {
    ($launcher:expr, $run:expr) => {{
        let (mut launcher, run) = ($launcher, $run);
        launcher = match run.time_limit {
            Some(Some(limit)) => launcher.time_limit(limit),
            Some(None) => launcher.no_time_limit(),
            None => launcher,
        };
        if let Some(lanes) = run.lanes {
            launcher = launcher.lanes(lanes);
        }
        if let Some(report) = run.on_failure.clone() {
            launcher = launcher.on_failure(move |rank, error| report(rank, error));
        }
        launcher
    }};
}
pub(crate) use with_options;

impl Run<'_> {
    pub fn time_limit(self, limit: Duration) -> Self {
        Self { time_limit: Some(Some(limit)), ..self }
    }

    pub fn no_time_limit(self) -> Self {
        Self { time_limit: Some(None), ..self }
    }

    pub fn eager_limit(self, bytes: usize) -> Self {
        Self { eager_limit: Some(bytes), ..self }
    }

    pub fn lanes(self, lanes: usize) -> Self {
        Self { lanes: Some(lanes), ..self }
    }

    pub fn check_order(self) -> Self {
        Self { check_order: true, ..self }
    }

    /// No call of a rank's groups has been made before.
    pub fn fresh(self) -> Self {
        Self { is_fresh: true, ..self }
    }

    /// Groups may be held when the run is over.
    pub fn outlived(self) -> Self {
        Self { is_outlived: true, ..self }
    }

    pub fn on_failure(self, report: impl Fn(Rank, &Error) + Send + Sync + 'static) -> Self {
        Self { on_failure: Some(Arc::new(report)), ..self }
    }

    /// How the run ended for each process that is here; for none, where the world is too small for it.
    pub fn launch<T, E>(self, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Vec<Process<T, E>>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        self.world.runs.fetch_add(1, Ordering::Relaxed);
        self.world.kind.launch(&self, &f)
    }

    /// As [`World::run`].
    pub fn run<T: Send>(self, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
        let ended = self.launch(|group| Ok::<T, Error>(f(group)));
        let values =
            |process: Process<T, Error>| process.ended.unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"));
        ended.into_iter().flat_map(values).collect()
    }

    /// Runs `f` on ranks whose world fails, though each of them returns. Where some are here, checks what they returned, and
    /// the failure of the run, which is one rank's for all processes.
    pub fn fail<T: Send>(self, f: impl Fn(ProcessGroup) -> T + Sync, check: impl FnOnce(Vec<T>, (Rank, Error))) {
        let (world, ranks, seen) = (self.world, self.ranks, Mutex::new(BTreeMap::new()));
        let processes = self.launch(|group| {
            let (rank, value) = (group.rank(), f(group));
            seen.lock().unwrap().insert(rank, value);
            Ok::<_, Error>(())
        });
        let failures: Vec<_> = world.failures(processes).into_iter().map(|(_, rank, error)| (rank, error)).collect();
        let Some(first) = failures.first() else { return };
        assert!(failures.iter().all(|(rank, _)| *rank == first.0), "{failures:?}");
        let seen = seen.into_inner().unwrap();
        assert!(seen.keys().copied().eq(world.here(ranks)), "a rank panicked: {failures:?}");
        if !seen.is_empty() {
            check(seen.into_values().collect(), first.clone());
        }
    }
}
