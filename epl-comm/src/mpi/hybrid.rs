//! Groups of ranks that are near to some and far from others.
//!
//! | the members | what carries their data |
//! |---|---|
//! | all in this process | a board in its memory, as of [`local`](crate::local) |
//! | each in a process of its own | MPI |
//! | in several processes of one host | both: a [`hierarchy`], with one leader in each process |
//! | on several hosts | one of those in each host, and MPI between one leader each |

use std::sync::Arc;

use super::endpoint::Endpoint;
use super::group::{MpiTransport, New, agree};
use super::wait_query::Answers;
use super::waits::{Channel, DOWNWARD, HOST_LEADERS, KINDS, LEADERS, UPWARD};
use super::world::MpiWorld;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::hierarchy::{self, Level, Medium};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::Transport;

/// The name of the group of all ranks.
const WORLD: &str = "world";

/// The group of all ranks, as one of this process sees it.
pub(super) fn of_world(world: &Arc<MpiWorld>, answers: &Arc<Answers>, rank: Rank) -> Result<Arc<dyn Transport>> {
    let members: Vec<Rank> = (0..world.ranks()).map(Rank).collect();
    let (world, answers) = (world.clone(), answers.clone());
    let hosts = world.hosts();
    let is_one_host = hosts.iter().all(|host| *host == hosts[0]);
    if world.threads == 1 && is_one_host {
        let (name, channel, member) = (WORLD.to_string(), 0, rank.0);
        return Ok(Arc::new(MpiTransport::new(Endpoint { world, answers, channel, name, members, member })));
    }
    let processes: Arc<dyn Medium> = Arc::new(Processes { world: world.clone(), answers });
    let medium = if is_one_host { processes } else { Arc::new(Level::new(processes, hosts)) };
    Mixed::group(&world, &medium, 0, WORLD, members, rank)
}

/// What groups are made over: the memory of this process, and MPI between processes.
#[derive(Debug)]
struct Processes {
    world: Arc<MpiWorld>,
    answers: Arc<Answers>,
}

impl Processes {
    /// A group over MPI.
    fn between(&self, channel: u64, name: &str, members: &[Rank], rank: Rank) -> Arc<dyn Transport> {
        let member = members.iter().position(|other| *other == rank).expect("a rank asks for groups of its own");
        let (world, answers) = (self.world.clone(), self.answers.clone());
        let (name, members) = (name.to_string(), members.to_vec());
        Arc::new(MpiTransport::new(Endpoint { world, answers, channel, name, members, member }))
    }

    fn is_inside(&self, members: &[Rank]) -> bool {
        members.iter().all(|member| self.host(*member) == self.world.place.process)
    }
}

/// The first channel of a group whose key begins with its number.
fn channel(key: &str) -> u64 {
    let digits = key.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
    digits.parse::<u64>().expect("keys begin with a number: `Mixed` makes them") * KINDS
}

/// Which of a group's channels is that of a group over MPI that is made for it. A rank is in one of each kind.
fn kind(key: &str) -> u64 {
    match (key.contains("host"), key.ends_with("leaders")) {
        // The group itself, or its part in a host.
        (_, false) => 0,
        (false, true) => LEADERS,
        (true, true) => HOST_LEADERS,
    }
}

impl Medium for Processes {
    fn host(&self, rank: Rank) -> usize {
        self.world.process(rank)
    }

    fn group(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Result<Arc<dyn Transport>> {
        if self.is_inside(members) {
            return Ok(self.world.inside.group(key, name, members, rank));
        }
        Ok(self.between(channel(key) + kind(key), name, members, rank))
    }

    /// Of those in this process: the others are asked when a wait takes long.
    fn wholes(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Option<Arc<dyn Transport>> {
        let near: Vec<Rank> = members.iter().copied().filter(|member| self.is_inside(&[*member])).collect();
        (near.len() > 1).then(|| self.world.inside.group(key, name, &near, rank))
    }

    fn link(&self, key: &str, name: &str, from: Rank, to: Rank, rank: Rank) -> Result<Arc<dyn Transport>> {
        let members = [from, to];
        if self.is_inside(&members) {
            let key = format!("{key}, {} to {}", from.0, to.0);
            return Ok(self.world.inside.group(&key, name, &members, rank));
        }
        let kind = if from < to { UPWARD } else { DOWNWARD };
        Ok(self.between(channel(key) + kind, name, &members, rank))
    }
}

/// A group of whatever kind it needs to be. Its number, from which those of its messages follow, its members have agreed
/// upon.
#[derive(Debug)]
struct Mixed {
    world: Arc<MpiWorld>,
    medium: Arc<dyn Medium>,
    number: u64,
    group: Arc<dyn Transport>,
}

impl Mixed {
    fn group(
        world: &Arc<MpiWorld>,
        medium: &Arc<dyn Medium>,
        number: u64,
        name: &str,
        members: Vec<Rank>,
        rank: Rank,
    ) -> Result<Arc<dyn Transport>> {
        // Another group of this number has no rank in common with this one.
        let key = format!("{number} of {}", members[0].0);
        let group = hierarchy::group(medium, &key, name, members, rank)?;
        Ok(Arc::new(Self { world: world.clone(), medium: medium.clone(), number, group }))
    }

    fn rank(&self) -> Rank {
        self.group.members()[self.group.member()]
    }
}

impl Transport for Mixed {
    fn name(&self) -> &str {
        self.group.name()
    }

    fn member(&self) -> usize {
        self.group.member()
    }

    fn members(&self) -> &[Rank] {
        self.group.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.group.reserve(operation)
    }

    fn reserve_stage(&self, whole: Operation, stage: Operation) -> u64 {
        self.group.reserve_stage(whole, stage)
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        self.group.run(call, buffer)
    }

    fn moves_rows(&self) -> bool {
        self.group.moves_rows()
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let New { number, ranks, .. } = agree(&*self.group, &self.world, sequence, name, [color, key])?;
        Self::group(&self.world, &self.medium, number, name, ranks, self.rank())
    }

    /// The wishes are known, but not the number that is free.
    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        self.group.link(from, to)
    }

    fn lanes(&self) -> usize {
        self.world.lanes
    }

    fn warmed_up(&self) {}

    fn trim(&self) {
        self.group.trim();
        self.world.arena.trim();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        let (world, rank) = (&self.world, self.rank());
        if !world.rank_state(rank).owner.is_here() {
            // A helper thread: its rank goes on.
            return sleep();
        }
        let call = format!("{operation}, call {sequence} of group `{}`", self.name());
        world.waits.fall_asleep(rank, Channel::of(self.number * KINDS, self.members()), call);
        self.group.sleep(operation, sequence, sleep);
        world.waits.wake_up(rank);
    }

    fn abort(&self, cause: &Error) {
        self.group.abort(cause);
    }
}
