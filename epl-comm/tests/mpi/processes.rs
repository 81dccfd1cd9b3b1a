//! This program under `mpirun`.

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
        .output()
        .expect("`timeout` of coreutils and `mpirun`")
}

/// What is a run of its own, shares memory between ranks, or compares what different ranks give.
const NOT_THERE: [&str; 6] = [
    "processes::",
    "faults::",
    "large::",
    "a_member_that_still_computes_hides_nothing",
    "a_rank_that_has_returned_is_named_by_a_chain_that_ends_in_it",
    "a_split_pair_of_layers_equals_the_whole_one",
];

/// What is otherwise where a call is made of stages: a sum is taken process by process, and only leaders know how much
/// members have for each other.
const NOT_IN_STAGES: [&str; 2] =
    ["sums_are_taken_in_the_order_of_the_members_bit_by_bit", "rows_that_a_peer_does_not_expect"];

fn suite(world: World) {
    if mpi::is_launched() {
        return;
    }
    let in_stages = NOT_IN_STAGES.iter().filter(|_| world.goes_in_stages());
    let skip: Vec<&str> = NOT_THERE.iter().chain(in_stages).flat_map(|name| ["--skip", *name]).collect();
    let output = mpirun(world, Duration::from_secs(400), &skip, "");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(passed(&text), world.processes, "{text}");
}

/// How many processes say that none of their tests failed. Their lines are mixed in the middle, but not within this.
pub fn passed(text: &str) -> usize {
    text.matches(" passed; 0 failed; ").count()
}

#[test]
fn one() {
    suite(World::of(1, 1));
}

#[test]
fn two() {
    suite(World::of(2, 1));
}

#[test]
fn three() {
    suite(World::of(3, 1));
}

#[test]
fn four() {
    suite(World::of(4, 1));
}

#[test]
fn two_of_two_ranks_each() {
    suite(World::of(2, 2));
}

#[test]
fn two_hosts_of_two_processes() {
    suite(World::of(4, 1).on_hosts_of(2));
}

#[test]
fn two_hosts_one_of_which_has_two_processes_of_two_ranks_each() {
    suite(World::of(3, 2).on_hosts_of(2));
}
