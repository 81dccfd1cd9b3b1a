//! One group over several hosts, made of groups inside them and a group of one leader each.
//!
//! ```text
//!        host 0                 host 1
//!  ┌──────────────────┐   ┌──────────────────┐
//!  │ rank 0 ◀─ rank 1 │   │ rank 2 ◀─ rank 3 │   1. inside each host, to its leader
//!  │   │              │   │   │              │
//!  └───┼──────────────┘   └───┼──────────────┘
//!      └──────────◀───────────┘                  2. between the leaders
//!  ┌──────────────────┐   ┌──────────────────┐
//!  │ rank 0 ─▶ rank 1 │   │ rank 2 ─▶ rank 3 │   3. inside each host, from its leader
//!  └──────────────────┘   └──────────────────┘
//! ```
//!
//! A host is whatever is near: a process whose ranks are threads, a machine, and processes of one machine inside it
//! ([`Level`]). What goes between hosts is one buffer for each of them, however many ranks it has, and whatever engine
//! moves it needs to know of one rank a host only. Both inner and outer groups are [`Transport`]s of other kinds; what can be said of a call by comparing them, they do: each of
//! their calls carries the whole one ([`Call::part_of`](crate::Call::part_of)).
//!
//! The idea is that of the hierarchical collectives of NCCL and of Open MPI's `han`.

mod arranged;
mod hosts;
mod level;
mod numbers;
mod stage;
mod collectives;
mod exchange;

use core::fmt::Debug;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;
use crate::transport::{Links, Transport, colors_and_keys, link_name, of_one_color, wishes};
use hosts::Hosts;
pub(crate) use level::Level;
use numbers::{StageNumbers, Stages, Taken};

/// What makes groups that lie in one host, or have one member in each of several.
pub(crate) trait Medium: Debug + Send + Sync {
    /// The host of a rank.
    fn host(&self, rank: Rank) -> usize;

    /// Whether there are no other members that could be told anything.
    fn is_dry(&self) -> bool {
        false
    }

    /// A group of `members`, of which `rank` is one, that all lie in one host, or each in a host of its own. Every
    /// member asks for it once, with the same key, and not necessarily at the same time.
    fn group(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Result<Arc<dyn Transport>>;

    /// Where the calls of a group that is made of several are counted as wholes, and waited for: a group in which nothing
    /// moves, of those of its `members` whose waits are looked at together. None where this rank's are not.
    fn wholes(&self, key: &str, name: &str, members: &[Rank], rank: Rank) -> Option<Arc<dyn Transport>>;

    /// The way from one rank to another, `rank` being one of them; `key` is that of a group of both. Each end asks
    /// once.
    fn link(&self, key: &str, name: &str, from: Rank, to: Rank, rank: Rank) -> Result<Arc<dyn Transport>> {
        self.group(&format!("{key}, {} to {}", from.0, to.0), name, &[from, to], rank)
    }
}

/// The group of `members`, of which `rank` is one, over a medium: of whichever kind it needs to be.
pub(crate) fn group(
    medium: &Arc<dyn Medium>,
    key: &str,
    name: &str,
    members: Vec<Rank>,
    rank: Rank,
) -> Result<Arc<dyn Transport>> {
    let hosts = Hosts::new(&members, rank, |rank| medium.host(rank));
    if hosts.is_one() || hosts.are_all_of_one() {
        return medium.group(key, name, &members, rank);
    }
    let of = |chosen: &[usize]| chosen.iter().map(|member| members[*member]).collect::<Vec<_>>();
    let inner = match hosts.own() {
        [_] => None,
        own => Some(medium.group(&format!("{key}, host {}", hosts.host()), name, &of(own), rank)?),
    };
    let outer = match hosts.leads() {
        true => Some(medium.group(&format!("{key}, leaders"), name, &of(&hosts.leaders()), rank)?),
        false => None,
    };
    let wholes = medium.wholes(&format!("{key}, wholes"), name, &members, rank);
    let (medium, key, name) = (medium.clone(), key.to_string(), name.to_string());
    let (numbers, links) = Default::default();
    Ok(Arc::new(Hierarchy { medium, key, name, members, hosts, inner, outer, wholes, numbers, links }))
}

/// A member of a group over several hosts, at least one of which has several members.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    medium: Arc<dyn Medium>,
    /// What all members, and no other group, call it.
    key: String,
    name: String,
    members: Vec<Rank>,
    hosts: Hosts,
    /// The members of this host; none if this is the only one.
    inner: Option<Arc<dyn Transport>>,
    /// The leaders, if this is one.
    outer: Option<Arc<dyn Transport>>,
    /// Which members have taken the numbers of its calls, as far as that is looked at.
    wholes: Option<Arc<dyn Transport>>,
    numbers: StageNumbers,
    links: Links<dyn Transport>,
}

impl Hierarchy {
    fn rank(&self) -> Rank {
        self.members[self.member()]
    }

    /// The group of those with this member's color.
    fn part(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let color = wishes[self.member()].0;
        let (chosen, _) = of_one_color(wishes, self.member());
        let members = chosen.iter().map(|member| self.members[*member]).collect();
        let key = format!("{} / {name} {sequence} {color}", self.key);
        group(&self.medium, &key, name, members, self.rank())
    }

    /// The groups that this one is made of.
    fn parts(&self) -> impl Iterator<Item = &Arc<dyn Transport>> {
        self.inner.iter().chain(&self.outer)
    }
}

/// Takes numbers for stages of `whole`; none in a group that is not there.
fn take(group: &Option<Arc<dyn Transport>>, whole: Operation, stages: Vec<Operation>) -> Stages {
    let Some(group) = group else { return Stages::default() };
    let numbered: Vec<_> = stages.into_iter().map(|stage| (stage, group.reserve_stage(whole, stage))).collect();
    numbered.into_iter()
}

impl Transport for Hierarchy {
    fn name(&self) -> &str {
        &self.name
    }

    fn member(&self) -> usize {
        self.hosts.member()
    }

    fn members(&self) -> &[Rank] {
        &self.members
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.reserve_stage(operation, operation)
    }

    fn reserve_stage(&self, whole: Operation, stage: Operation) -> u64 {
        let (inside, between) = self.stages(stage);
        self.numbers.issue(|| {
            if let Some(wholes) = &self.wholes {
                wholes.reserve(whole);
            }
            Taken { inside: take(&self.inner, whole, inside), between: take(&self.outer, whole, between) }
        })
    }

    fn moves_rows(&self) -> bool {
        false
    }

    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        let whole = self.numbers.run(*call)?;
        // Who is missing in one stage tells little of who keeps the call waiting.
        let (mut buffer, mut result) = (Some(buffer), None);
        self.sleep(whole.operation, whole.sequence, &mut || {
            result = buffer.take().map(|buffer| self.take_part(&whole, buffer));
        });
        let result = result.expect("a sleep is slept once")?;
        debug_assert!(whole.is_over(), "{} has taken more numbers than it has stages", whole.call);
        Ok(result)
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        let wishes = wishes(self, sequence, name, &[color as i64, key as i64])?;
        self.part(sequence, name, &colors_and_keys(&wishes))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        if self.medium.is_dry() {
            self.numbers.forget(sequence);
            return self.part(sequence, name, wishes);
        }
        // Numbers were taken for its stages, so these are made, though all wishes are known.
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        let name = link_name(&self.name, from, to);
        let link = || self.medium.link(&self.key, &name, self.members[from], self.members[to], self.rank());
        self.links.get(from, to, link)
    }

    fn lanes(&self) -> usize {
        self.parts().map(|part| part.lanes()).min().unwrap_or(1)
    }

    fn is_dry(&self) -> bool {
        self.medium.is_dry()
    }

    fn warmed_up(&self) {
        self.parts().for_each(|part| part.warmed_up());
    }

    fn trim(&self) {
        self.parts().for_each(|part| part.trim());
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        match &self.wholes {
            Some(wholes) => wholes.sleep(operation, sequence, sleep),
            None => sleep(),
        }
    }

    fn abort(&self, cause: &Error) {
        self.parts().for_each(|part| part.abort(cause));
    }
}
