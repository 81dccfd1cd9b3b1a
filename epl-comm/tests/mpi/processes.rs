//! This program under `mpirun`.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::cases::table::{CASES, Case, WORLDS as WORLDS_OF_CASES};

/// Which processes there are.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub processes: usize,
    /// Of each process.
    pub ranks: usize,
    /// Processes that are taken for one host's; otherwise all are.
    pub per_host: Option<usize>,
}

impl World {
    /// On one host.
    pub const fn of(processes: usize, ranks: usize) -> Self {
        Self { processes, ranks, per_host: None }
    }

    /// On hosts of so many processes.
    pub const fn on_hosts_of(self, processes: usize) -> Self {
        Self { per_host: Some(processes), ..self }
    }
}

/// Runs some tests of this program in several processes; ends them when they take too long.
pub fn mpirun(world: World, limit: Duration, test: &[&str], kind: &str) -> Output {
    run(world, limit, test, |command| command.env(crate::faults::KIND, kind).output())
}

fn run<T>(world: World, limit: Duration, test: &[&str], end: impl FnOnce(&mut Command) -> io::Result<T>) -> T {
    let World { processes, ranks, per_host } = world;
    epl_testing::mpirun(processes, limit, |command| {
        command
            .args(["--test-threads=1", "--nocapture"])
            .args(test)
            .env(crate::RANKS, ranks.to_string())
            .envs(per_host.map(|processes| (crate::PER_HOST, processes.to_string())));
        end(command)
    })
}

/// What is run under `mpirun`, in every world: the cases, and MPI's own tests of what is there.
const UNDER: [&str; 3] = ["on::mpi::", "hosts::", "limits::"];

/// The cases that have runs of eight ranks.
const OF_EIGHT: [&str; 3] = ["world_of_eight", "eight_ranks_take_turns", "in_a_blocking_collective"];

/// Where they are run, or some of them.
const WORLDS: [(World, &[&str]); 9] = [
    (World::of(1, 1), &UNDER),
    (World::of(2, 1), &UNDER),
    (World::of(3, 1), &UNDER),
    (World::of(4, 1), &UNDER),
    (World::of(2, 2), &UNDER),
    (World::of(4, 1).on_hosts_of(2), &UNDER),
    // Two hosts, one of which has two processes.
    (World::of(3, 2).on_hosts_of(2), &UNDER),
    (World::of(4, 2), &OF_EIGHT),
    (World::of(8, 1), &OF_EIGHT),
];

/// Which runs were made and which were skipped: of which case, where they stand in it, and how many ranks they have.
#[derive(Default)]
struct Runs {
    made: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

fn run_cases(world: World, tests: &[&str]) -> Runs {
    let which = [&["--ignored"], tests].concat();
    let folder = tempfile::tempdir().unwrap();
    let [notes, printed] = ["notes", "printed"].map(|name| folder.path().join(name));
    // Into one file: what a test that fails says, in panics, stands before it.
    let [out, err] = [(); 2].map(|()| OpenOptions::new().append(true).create(true).open(&printed).unwrap());
    let status = run(world, Duration::from_secs(600), &which, |command| {
        // Many tests panic, as they should.
        command
            .env("RUST_BACKTRACE", "0")
            .env(crate::NOTES, &notes)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .status()
    });
    let text = std::fs::read(&printed).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(status.success(), "{world:?}\n{text}\n{world:?} in short:\n{}", before_failures(&text));
    assert_eq!(passed(&text), world.processes, "{world:?}\n{text}");
    let noted = std::fs::read_to_string(&notes).unwrap();
    let of = |kind: &str| noted.lines().filter_map(|note| Some(note.strip_prefix(kind)?.trim().to_string())).collect();
    Runs { made: of(crate::MADE), skipped: of(crate::SKIPPED) }
}

/// What was printed just before each test that failed, of which there may be few lines among thousands; the last lines where none
/// came to its end.
fn before_failures(text: &str) -> String {
    const LINES: usize = 15;
    let lines: Vec<&str> = text.lines().collect();
    let has_failed = |at: &usize| lines[*at].contains("FAILED") && !lines[*at].contains("test result");
    let mut shown: BTreeSet<usize> =
        (0..lines.len()).filter(has_failed).flat_map(|at| at.saturating_sub(LINES)..=at).collect();
    if shown.is_empty() {
        shown.extend(lines.len().saturating_sub(3 * LINES)..lines.len());
    }
    shown.into_iter().map(|at| format!("{}\n", lines[at])).collect()
}

/// How many processes say that none of their tests failed. Their lines are mixed in the middle, but not within this.
pub fn passed(text: &str) -> usize {
    text.matches(" passed; 0 failed; ").count()
}

/// What has too many ranks for one world, or needs what it lacks, is run in another one.
#[test]
fn every_run_of_every_case_is_made_in_some_world() {
    // A world mostly waits, for processes that start, hang or are asked: so as many at once as there are cores.
    let of_world = |(world, tests): (World, &[&str])| {
        let (begun, runs) = (Instant::now(), run_cases(world, tests));
        let [made, skipped] = [&runs.made, &runs.skipped].map(BTreeSet::len);
        println!("{world:?}: {made} kinds of runs over MPI, {skipped} skipped, {:?}", begun.elapsed());
        runs
    };
    let mut all = Runs::default();
    for Runs { made, skipped } in WORLDS.into_par_iter().map(of_world).collect::<Vec<_>>() {
        all.made.extend(made);
        all.skipped.extend(skipped);
    }
    let is_made = |case: &Case| all.made.iter().any(|run| run.split(", ").next() == Some(case.name));
    let mpi = WORLDS_OF_CASES.iter().find(|world| world.name == "mpi").unwrap();
    for case in CASES {
        assert_eq!(is_made(case), mpi.why_not(case).is_none(), "{}", case.name);
    }
    let is_case = |what: &&String| CASES.iter().any(|case| case.name == **what);
    let nowhere: Vec<_> = all.skipped.difference(&all.made).filter(|what| !is_case(what)).collect();
    assert!(nowhere.is_empty(), "{} made; nowhere: {nowhere:?}", all.made.len());
}
