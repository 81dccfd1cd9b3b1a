//! When ranks do what, given what each thing takes.
//!
//! ```text
//! rank 0   forward ─▶ start all_reduce ─▶ forward ──────▶ await          a started call begins when all have started it
//! rank 1   forward ──────────▶ start all_reduce ─▶ …      │              and the one before it on the group is over
//! helper                       [ all_reduce             ]─┘
//! ```
//!
//! A blocking call begins when its last member has come. What a stage sends goes on its way at once; whoever receives it waits
//! for its end.

use std::collections::HashMap;

use epl_comm::Operation;

use super::call::{Called, Members};
use super::list::{Op, RunKind};
use super::program::StepProgram;
use crate::error::{Error, Result};

/// What things take, in seconds or any other unit of time.
pub trait Costs {
    /// A segment of one micro-batch on a rank, without its collectives.
    fn run(&self, rank: usize, kind: RunKind, micro_batch: usize, segment: usize) -> f64;

    /// A collective of so many members, once all of them have come.
    fn call(&self, call: &Called, members: &[usize]) -> f64;

    /// The update of a unit on a rank; none: of all that lies in the model.
    fn update(&self, rank: usize, unit: Option<usize>) -> f64;
}

/// One thing that a rank did, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedOp {
    /// Its place in the rank's program.
    pub index: usize,
    /// When the rank began with it.
    pub begin: f64,
    /// When the rank went on.
    pub end: f64,
}

/// When every rank does what.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeline {
    /// By rank, in the order of its program.
    pub ranks: Vec<Vec<TimedOp>>,
}

impl StepTimeline {
    /// When the last rank is done; all begin at 0.
    pub fn makespan(&self) -> f64 {
        let last = |ops: &Vec<TimedOp>| ops.last().map_or(0.0, |op| op.end);
        self.ranks.iter().map(last).fold(0.0, f64::max)
    }
}

/// A group as its members are: the same for each of them.
type Group = (Members, Vec<usize>);

/// One call of a group.
#[derive(Default)]
struct Meeting {
    /// How many have come, and when the last one did.
    came: usize,
    latest: f64,
    /// When it is over.
    end: Option<f64>,
}

/// Runs the programs of all ranks; `members` tells who is in a group of a rank.
///
/// # Errors
///
/// When ranks wait for each other for ever, as where one does not make a call that another makes.
pub fn simulate_step(
    programs: &[StepProgram],
    members: &impl Fn(usize, &Members) -> Vec<usize>,
    costs: &impl Costs,
) -> Result<StepTimeline> {
    let mut run = TimelineRun::new(programs, members, costs);
    loop {
        let moved = (0..programs.len()).filter(|rank| run.advance(*rank)).count();
        if run.is_over() {
            return Ok(StepTimeline { ranks: run.ranks.into_iter().map(|rank| rank.done).collect() });
        }
        if moved == 0 {
            return Err(Error::invalid(run.stuck()));
        }
    }
}

/// Where one rank is.
#[derive(Default)]
struct RankState {
    clock: f64,
    done: Vec<TimedOp>,
    /// By group, the calls made so far.
    calls: HashMap<Group, usize>,
    /// The call of each place of the program that was started.
    started: HashMap<usize, (Group, usize)>,
    /// The call in which it waits.
    waits: Option<(Group, usize)>,
}

struct TimelineRun<'a, F, C> {
    programs: &'a [StepProgram],
    members: &'a F,
    costs: &'a C,
    ranks: Vec<RankState>,
    meetings: HashMap<Group, Vec<Meeting>>,
}

impl<'a, F: Fn(usize, &Members) -> Vec<usize>, C: Costs> TimelineRun<'a, F, C> {
    fn new(programs: &'a [StepProgram], members: &'a F, costs: &'a C) -> Self {
        let ranks = programs.iter().map(|_| RankState::default()).collect();
        Self { programs, members, costs, ranks, meetings: HashMap::new() }
    }

    fn is_over(&self) -> bool {
        self.ranks.iter().zip(self.programs).all(|(rank, program)| rank.done.len() == program.ops.len())
    }

    /// Who waits for what.
    fn stuck(&self) -> String {
        let waits = self.ranks.iter().zip(self.programs).enumerate().filter_map(|(rank, (state, program))| {
            let op = program.ops.get(state.done.len())?;
            Some(format!("rank {rank} waits in operation {} of its step, {op:?}", state.done.len()))
        });
        format!("ranks wait for each other: {}", waits.collect::<Vec<_>>().join("; "))
    }

    /// Does what a rank can do; tells whether that was anything.
    fn advance(&mut self, rank: usize) -> bool {
        let before = self.ranks[rank].done.len();
        while let Some(op) = self.programs[rank].ops.get(self.ranks[rank].done.len()) {
            let index = self.ranks[rank].done.len();
            let begin = self.ranks[rank].clock;
            let end = match op {
                Op::Run { kind, micro_batch, segment } => {
                    Some(begin + self.costs.run(rank, *kind, *micro_batch, *segment))
                }
                Op::Update(unit) => Some(begin + self.costs.update(rank, *unit)),
                Op::Start(call) => {
                    let started = self.come(rank, call);
                    self.ranks[rank].started.insert(index, started);
                    Some(begin)
                }
                Op::Await(start) => self.end_of(&self.ranks[rank].started[start]).map(|end| end.max(begin)),
                Op::Call(call) => {
                    let waits = match self.ranks[rank].waits.take() {
                        Some(waits) => waits,
                        None => self.come(rank, call),
                    };
                    let end = self.end_of(&waits).map(|end| end.max(begin));
                    self.ranks[rank].waits = end.is_none().then_some(waits);
                    end
                }
            };
            let Some(end) = end else { break };
            let state = &mut self.ranks[rank];
            state.done.push(TimedOp { index, begin, end });
            state.clock = end;
        }
        self.ranks[rank].done.len() > before
    }

    /// A rank comes to its next call of a group.
    fn come(&mut self, rank: usize, call: &Called) -> (Group, usize) {
        let members = match &call.over {
            Members::Link { from, to } => {
                let stages = (self.members)(rank, &Members::Stages);
                vec![stages[*from], stages[*to]]
            }
            over => (self.members)(rank, over),
        };
        let group = (call.over.clone(), members);
        let now = self.ranks[rank].clock;
        let made = self.ranks[rank].calls.entry(group.clone()).or_default();
        let at = core::mem::replace(made, *made + 1);
        let meetings = self.meetings.entry(group.clone()).or_default();
        meetings.resize_with(meetings.len().max(at + 1), Meeting::default);
        let is_link = matches!(call.over, Members::Link { .. });
        // What is received goes on its way when it is sent.
        if !is_link || call.operation == Operation::Send {
            // Whoever comes has come to the one before, so that is over, or will be once all have.
            let before = at.checked_sub(1).and_then(|before| meetings[before].end).unwrap_or(0.0);
            let meeting = &mut meetings[at];
            meeting.came += 1;
            meeting.latest = meeting.latest.max(now);
            if is_link || meeting.came == group.1.len() {
                meeting.end = Some(meeting.latest.max(before) + self.costs.call(call, &group.1));
            }
        }
        (group, at)
    }

    /// When a call of a group is over, if all its members have come.
    fn end_of(&self, (group, number): &(Group, usize)) -> Option<f64> {
        self.meetings.get(group)?.get(*number)?.end
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;
    use epl_comm::ReduceOp;

    use super::*;

    /// A second for each byte, and for each forward; two for each backward.
    struct Usual;

    impl Costs for Usual {
        fn run(&self, rank: usize, kind: RunKind, _: usize, segment: usize) -> f64 {
            let forward = (rank + segment + 1) as f64;
            if kind == RunKind::Backward { 2.0 * forward } else { forward }
        }

        fn call(&self, call: &Called, _: &[usize]) -> f64 {
            call.bytes() as f64
        }

        fn update(&self, _: usize, _: Option<usize>) -> f64 {
            0.5
        }
    }

    fn called(over: Members, operation: Operation) -> Called {
        Called { over, operation, dtype: DType::I8, elements: 4 }
    }

    fn run(segment: usize) -> Op {
        Op::Run { kind: RunKind::Forward, micro_batch: 0, segment }
    }

    fn times(timeline: &StepTimeline, rank: usize) -> Vec<(f64, f64)> {
        timeline.ranks[rank].iter().map(|op| (op.begin, op.end)).collect()
    }

    fn simulated(programs: [Vec<Op>; 2]) -> Result<StepTimeline> {
        let programs = programs.map(|ops| StepProgram { ops });
        simulate_step(&programs, &|_, _| vec![0, 1], &Usual)
    }

    #[test]
    fn a_blocking_call_begins_when_the_last_has_come_and_a_started_one_goes_on_beside() {
        let sum = || called(Members::World, Operation::AllReduce(ReduceOp::Sum));
        let blocking = || vec![run(0), Op::Call(sum()), Op::Update(None)];
        let timeline = simulated([blocking(), blocking()]).unwrap();
        assert_eq!(times(&timeline, 0), [(0.0, 1.0), (1.0, 6.0), (6.0, 6.5)]);
        assert_eq!(times(&timeline, 1), [(0.0, 2.0), (2.0, 6.0), (6.0, 6.5)]);
        // Two started ones of a group go one after the other.
        let started = || vec![Op::Start(sum()), run(0), Op::Start(sum()), Op::Await(0), Op::Await(2)];
        let timeline = simulated([started(), started()]).unwrap();
        assert_eq!(times(&timeline, 1), [(0.0, 0.0), (0.0, 2.0), (2.0, 2.0), (2.0, 4.0), (4.0, 8.0)]);
        assert_eq!(timeline.makespan(), 8.0);
    }

    #[test]
    fn what_is_sent_goes_on_its_way_before_it_is_wanted() {
        let link = |operation| called(Members::Link { from: 0, to: 1 }, operation);
        let sender = vec![run(0), Op::Start(link(Operation::Send)), run(4), Op::Await(1)];
        let receiver = |segment| vec![run(segment), Op::Call(link(Operation::Receive))];
        let early = simulated([sender.clone(), receiver(0)]).unwrap();
        assert_eq!(times(&early, 0)[3], (6.0, 6.0));
        assert_eq!(times(&early, 1), [(0.0, 2.0), (2.0, 5.0)]);
        let late = simulated([sender, receiver(8)]).unwrap();
        assert_eq!(times(&late, 1), [(0.0, 10.0), (10.0, 10.0)]);
    }

    #[test]
    fn ranks_that_wait_for_ever_are_named() {
        let call = |over| Op::Call(called(over, Operation::Barrier));
        let error = simulated([vec![call(Members::World)], vec![call(Members::Stages)]]).unwrap_err().to_string();
        assert!(error.contains("rank 0 waits in operation 0") && error.contains("rank 1 waits"), "{error}");
    }
}
