//! This program under `mpirun`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use epl_comm::mpi;

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

    fn goes_in_stages(self) -> bool {
        self.per_host.is_some() || (self.processes > 1 && self.ranks > 1)
    }
}

/// Runs some tests of this program in several processes; ends them when they take too long.
pub fn mpirun(world: World, limit: Duration, test: &[&str], kind: &str) -> Output {
    mpirun_noting(world, limit, test, kind, None)
}

/// The same; `notes` is where it is noted which runs are made.
fn mpirun_noting(world: World, limit: Duration, test: &[&str], kind: &str, notes: Option<&Path>) -> Output {
    let World { processes, ranks, per_host } = world;
    let options = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", &processes.to_string()];
    Command::new("timeout")
        .args(["--kill-after=10", &limit.as_secs().to_string(), "mpirun"])
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .args(["--test-threads=1", "--nocapture"])
        .args(test)
        // As in a container, where there is no other user.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env(crate::RANKS, ranks.to_string())
        .envs(per_host.map(|processes| (crate::PER_HOST, processes.to_string())))
        .env(crate::faults::KIND, kind)
        .envs(notes.map(|notes| (crate::NOTES, notes)))
        .output()
        .expect("`timeout` of coreutils and `mpirun`")
}

/// What is a run of its own, or shares memory between ranks.
const NOT_THERE: [&str; 4] = ["processes::", "faults::", "large::", "a_member_that_still_computes_hides_nothing"];

/// What is otherwise where a call is made of stages: a sum is taken process by process, and only leaders know how much
/// members have for each other.
const NOT_IN_STAGES: [&str; 2] =
    ["sums_are_taken_in_the_order_of_the_members_bit_by_bit", "rows_that_a_peer_does_not_expect"];

/// Where everything is run, or one test.
const WORLDS: [(World, Option<&str>); 8] = [
    (World::of(1, 1), None),
    (World::of(2, 1), None),
    (World::of(3, 1), None),
    (World::of(4, 1), None),
    (World::of(2, 2), None),
    (World::of(4, 1).on_hosts_of(2), None),
    // Two hosts, one of which has two processes.
    (World::of(3, 2).on_hosts_of(2), None),
    (World::of(4, 2), Some("conformance::world_of_eight")),
];

/// Which runs were made and which were skipped, by where they stand in the suite and how many ranks they have.
#[derive(Default)]
struct Runs {
    made: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

fn suite(world: World, test: Option<&str>) -> Runs {
    let in_stages = NOT_IN_STAGES.iter().filter(|_| world.goes_in_stages());
    let which: Vec<&str> = match test {
        Some(test) => vec!["--exact", test],
        None => NOT_THERE.iter().chain(in_stages).flat_map(|name| ["--skip", *name]).collect(),
    };
    let notes = std::env::temp_dir().join(format!("epl-mpi-{}-{world:?}", std::process::id()));
    let output = mpirun_noting(world, Duration::from_secs(400), &which, "", Some(&notes));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{world:?}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(passed(&text), world.processes, "{world:?}\n{text}");
    let noted = std::fs::read_to_string(&notes).unwrap();
    std::fs::remove_file(&notes).unwrap();
    let of = |kind: &str| noted.lines().filter_map(|note| Some(note.strip_prefix(kind)?.trim().to_string())).collect();
    Runs { made: of(crate::MADE), skipped: of(crate::SKIPPED) }
}

/// How many processes say that none of their tests failed. Their lines are mixed in the middle, but not within this.
pub fn passed(text: &str) -> usize {
    text.matches(" passed; 0 failed; ").count()
}

/// What has too many ranks for one world is run in another one.
#[test]
fn every_run_of_the_suite_is_made_in_some_world() {
    if mpi::is_launched() {
        return;
    }
    let mut all = Runs::default();
    for (world, test) in WORLDS {
        let Runs { made, skipped } = suite(world, test);
        println!("{world:?}: {} kinds of runs over MPI, {} skipped", made.len(), skipped.len());
        all.made.extend(made);
        all.skipped.extend(skipped);
    }
    let nowhere: Vec<_> = all.skipped.difference(&all.made).collect();
    assert!(all.made.len() > 50 && nowhere.is_empty(), "{} made; nowhere: {nowhere:?}", all.made.len());
}
