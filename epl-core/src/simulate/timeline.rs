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

use std::collections::VecDeque;
use std::sync::Arc;

use epl_comm::Operation;
use rustc_hash::FxHashMap;

use super::call::{Called, Members};
use super::list::{Op, Purpose, RunKind, short};
use super::program::StepProgram;
use crate::error::{Error, Result};

/// What things take, in seconds or any other unit of time.
pub trait Costs {
    /// A segment of one micro-batch on a rank, without its collectives.
    fn run(&self, rank: usize, kind: RunKind, micro_batch: usize, segment: usize) -> f64;

    /// A collective, once all of its members have come; `rank` is one of them. It goes on beside them where they started it.
    fn call(&self, rank: usize, call: &Called, is_started: bool) -> f64;

    /// What a rank loses itself when it starts a collective, which goes on its way behind that.
    fn start(&self, rank: usize, purpose: Purpose, call: &Called) -> f64 {
        let _ = (rank, purpose, call);
        0.0
    }

    /// A rank's share of the norm of all gradients.
    fn norm(&self, rank: usize) -> f64 {
        let _ = rank;
        0.0
    }

    /// The update of a unit on a rank; none: of all that lies in the model.
    fn update(&self, rank: usize, unit: Option<usize>) -> f64;
}

/// One thing that a rank did, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedOp {
    /// When the rank began with it.
    pub begin: f64,
    /// When the rank went on.
    pub end: f64,
}

/// When every rank does what.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeline {
    /// By rank and operation of its program, when the rank went on. It began the next one then, and the first one at 0.
    ends: Vec<Vec<f64>>,
}

impl StepTimeline {
    /// What a rank did, in the order of its program.
    pub fn ops(&self, rank: usize) -> impl Iterator<Item = TimedOp> + '_ {
        let begins = [0.0].into_iter().chain(self.ends[rank].iter().copied());
        begins.zip(&self.ends[rank]).map(|(begin, end)| TimedOp { begin, end: *end })
    }

    /// When the last rank is done; all begin at 0.
    pub fn makespan(&self) -> f64 {
        self.ends.iter().filter_map(|ends| ends.last().copied()).fold(0.0, f64::max)
    }
}

/// One call of a group.
struct Meeting {
    /// The largest of the calls that its members make.
    call: Arc<Called>,
    /// How many have come.
    came: u32,
    is_over: bool,
    /// When the last one came that did; of one that is over, its end.
    at: f64,
}

impl Meeting {
    fn end(&self) -> Option<f64> {
        self.is_over.then_some(self.at)
    }
}

/// A group, as all of its members know it.
struct Group {
    members: Vec<usize>,
    meetings: Vec<Meeting>,
}

/// The number of a group, and of a call in it.
type At = (u32, u32);

/// Where one rank is.
#[derive(Default)]
struct RankState {
    /// When it went on behind each operation that is done.
    ends: Vec<f64>,
    /// Its few groups, by their numbers, and how many calls it has made in each.
    groups: Vec<(Members, At)>,
    started: StartedCalls,
    /// The call in which it waits.
    waits: Option<At>,
}

/// The calls that a rank has started, by their places in its program, which rise. One that was waited for is empty until those before
/// it are, too.
#[derive(Default)]
struct StartedCalls(VecDeque<(u32, Option<At>)>);

impl StartedCalls {
    fn push(&mut self, place: u32, at: At) {
        self.0.push_back((place, Some(at)));
    }

    fn find(&self, place: u32) -> Option<usize> {
        self.0.binary_search_by_key(&place, |(place, _)| *place).ok()
    }

    fn get(&self, place: u32) -> Option<At> {
        self.0[self.find(place)?].1
    }

    fn remove(&mut self, place: u32) {
        if let Some(found) = self.find(place) {
            self.0[found].1 = None;
        }
        while self.0.pop_front_if(|(_, at)| at.is_none()).is_some() {}
    }
}

/// Runs the programs of ranks, where `members` tells which of them are in a group of one.
///
/// Of ranks that do the same at the same time one alone is enough: a group then has those of its members that are there, and
/// [`Costs::call`] knows how many there would be.
///
/// ```
/// # use std::sync::Arc;
/// # use burn::tensor::DType;
/// # use epl_comm::{Operation, ReduceOp};
/// # use epl_core::simulate::{Called, Costs, Members, Op, RunKind, StepProgram, simulate_step};
/// struct Seconds;
/// impl Costs for Seconds {
///     fn run(&self, rank: usize, _: RunKind, _: usize, _: usize) -> f64 { [1.0, 2.0][rank] } // rank 1 is slower
///     fn call(&self, _: usize, call: &Called, _: bool) -> f64 { call.bytes() as f64 / 4.0 }
///     fn update(&self, _: usize, _: Option<usize>) -> f64 { 0.5 }
/// }
/// # let sum = Operation::AllReduce(ReduceOp::Sum);
/// let sum = Called { over: Members::World, operation: sum, dtype: DType::F32, elements: 3 };
/// let backward = Op::Run { kind: RunKind::Backward, micro_batch: 0, segment: 0 };
/// let program = StepProgram { ops: vec![backward, Op::Call(Arc::new(sum)), Op::Update(None)] };
/// let timeline = simulate_step(&[program.clone(), program], &|_, _| vec![0, 1], &Seconds)?;
/// let begins: Vec<f64> = timeline.ops(0).map(|op| op.begin).collect();
/// assert_eq!((&begins[..], timeline.makespan()), (&[0.0, 1.0, 5.0][..], 2.0 + 3.0 + 0.5)); // rank 0 waits in the sum
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// When ranks wait for each other for ever, as where one does not make a call that another makes; when they make different
/// calls of one group, or wait for what was not started.
pub fn simulate_step(
    programs: &[StepProgram],
    members: &impl Fn(usize, &Members) -> Vec<usize>,
    costs: &impl Costs,
) -> Result<StepTimeline> {
    let begin =
        |program: &StepProgram| RankState { ends: Vec::with_capacity(program.ops.len()), ..RankState::default() };
    let ranks = programs.iter().map(begin).collect();
    let mut run = TimelineRun { programs, members, costs, ranks, groups: Vec::new(), known: FxHashMap::default() };
    loop {
        let mut moved = false;
        for rank in 0..programs.len() {
            moved |= run.advance(rank)?;
        }
        if run.ranks.iter().zip(programs).all(|(rank, program)| rank.ends.len() == program.ops.len()) {
            return Ok(StepTimeline { ends: run.ranks.into_iter().map(|rank| rank.ends).collect() });
        }
        if !moved {
            return Err(Error::invalid(run.stuck()));
        }
    }
}

impl RankState {
    fn clock(&self) -> f64 {
        self.ends.last().copied().unwrap_or(0.0)
    }
}

struct TimelineRun<'a, F, C> {
    programs: &'a [StepProgram],
    members: &'a F,
    costs: &'a C,
    ranks: Vec<RankState>,
    groups: Vec<Group>,
    /// The numbers of the groups, by what they are and who is in them.
    known: FxHashMap<(Members, Vec<usize>), u32>,
}

impl<F: Fn(usize, &Members) -> Vec<usize>, C: Costs> TimelineRun<'_, F, C> {
    /// Who waits for what.
    fn stuck(&self) -> String {
        let waits = self.ranks.iter().zip(self.programs).enumerate().filter_map(|(rank, (state, program))| {
            let op = program.ops.get(state.ends.len())?;
            Some(format!("rank {rank} waits in operation {} of its step, {op:?}", state.ends.len()))
        });
        format!("ranks wait for each other: {}", waits.collect::<Vec<_>>().join("; "))
    }

    /// Does what a rank can do; tells whether that was anything.
    fn advance(&mut self, rank: usize) -> Result<bool> {
        let before = self.ranks[rank].ends.len();
        while let Some(op) = self.programs[rank].ops.get(self.ranks[rank].ends.len()) {
            let (index, begin) = (self.ranks[rank].ends.len(), self.ranks[rank].clock());
            let Some(end) = self.end_of_op(rank, (index, op), begin)? else { break };
            self.ranks[rank].ends.push(end);
        }
        Ok(self.ranks[rank].ends.len() > before)
    }

    /// When a rank goes on that begins an operation now; none: not known before others have come.
    fn end_of_op(&mut self, rank: usize, (index, op): (usize, &Op), begin: f64) -> Result<Option<f64>> {
        Ok(match op {
            Op::Run { kind, micro_batch, segment } => {
                Some(begin + self.costs.run(rank, *kind, *micro_batch as usize, *segment as usize))
            }
            Op::Norm => Some(begin + self.costs.norm(rank)),
            Op::Update(unit) => Some(begin + self.costs.update(rank, unit.map(|unit| unit as usize))),
            Op::Start(purpose, call) => {
                let started = begin + self.costs.start(rank, *purpose, call);
                let at = self.come(rank, call, Some(started))?;
                self.ranks[rank].started.push(short(index), at);
                Some(started)
            }
            Op::Await(start) => {
                let at = self.ranks[rank].started.get(*start).ok_or_else(|| {
                    Error::invalid(format!(
                        "operation {index} of rank {rank} waits for {start}, which was not started, or was waited for already"
                    ))
                })?;
                let end = self.end_of(at).map(|end| end.max(begin));
                if end.is_some() {
                    self.ranks[rank].started.remove(*start);
                }
                end
            }
            Op::Call(call) => {
                let at = match self.ranks[rank].waits.take() {
                    Some(at) => at,
                    None => self.come(rank, call, None)?,
                };
                let end = self.end_of(at).map(|end| end.max(begin));
                self.ranks[rank].waits = end.is_none().then_some(at);
                end
            }
        })
    }

    /// The number of a rank's group, and of the next call that it makes there.
    fn next_call(&mut self, rank: usize, over: &Members) -> At {
        if let Some((_, (group, calls))) = self.ranks[rank].groups.iter_mut().find(|(known, _)| known == over) {
            *calls += 1;
            return (*group, *calls - 1);
        }
        let members = (self.members)(rank, over);
        let groups = &mut self.groups;
        let group = *self.known.entry((over.clone(), members.clone())).or_insert_with(|| {
            groups.push(Group { members, meetings: Vec::new() });
            short(groups.len() - 1)
        });
        self.ranks[rank].groups.push((over.clone(), (group, 1)));
        (group, 0)
    }

    /// A rank comes to its next call of a group, now or when it has started it.
    fn come(&mut self, rank: usize, call: &Arc<Called>, started: Option<f64>) -> Result<At> {
        let now = started.unwrap_or(self.ranks[rank].clock());
        let (number, call_number) = self.next_call(rank, &call.over);
        let (Group { members, meetings }, at) = (&mut self.groups[number as usize], call_number as usize);
        if at == meetings.len() {
            meetings.push(Meeting { call: call.clone(), came: 0, is_over: false, at: 0.0 });
        }
        // Whoever comes has come to the call before, so that is over, or will be once all have.
        let before = at.checked_sub(1).and_then(|before| meetings[before].end()).unwrap_or(0.0);
        let (meeting, is_link) = (&mut meetings[at], matches!(call.over, Members::Link { .. }));
        let is_other = meeting.call.operation != call.operation && !is_link || meeting.call.dtype != call.dtype;
        // What is put together, or exchanged, may be longer on one member than on another.
        let may_differ =
            matches!(call.operation, Operation::AllGather | Operation::Gather { .. } | Operation::AllToAll);
        if is_other || meeting.call.elements != call.elements && !may_differ {
            return Err(Error::invalid(format!("rank {rank} makes {call}, and another member {}", meeting.call)));
        }
        // What is received goes on its way when it is sent.
        if !is_link || call.operation == Operation::Send {
            if is_link || call.bytes() > meeting.call.bytes() {
                meeting.call = call.clone();
            }
            meeting.came += 1;
            meeting.at = meeting.at.max(now);
            if is_link || meeting.came as usize == members.len() {
                meeting.at = meeting.at.max(before) + self.costs.call(rank, &meeting.call, started.is_some());
                meeting.is_over = true;
            }
        }
        Ok((number, call_number))
    }

    /// When a call of a group is over, if all its members have come.
    fn end_of(&self, (group, at): At) -> Option<f64> {
        self.groups[group as usize].meetings[at as usize].end()
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

        fn call(&self, _: usize, call: &Called, _: bool) -> f64 {
            call.bytes() as f64
        }

        fn update(&self, _: usize, _: Option<usize>) -> f64 {
            0.5
        }
    }

    fn called(over: Members, operation: Operation) -> Called {
        Called { over, operation, dtype: DType::I8, elements: 4 }
    }

    fn run(segment: u32) -> Op {
        Op::Run { kind: RunKind::Forward, micro_batch: 0, segment }
    }

    fn times(timeline: &StepTimeline, rank: usize) -> Vec<(f64, f64)> {
        timeline.ops(rank).map(|op| (op.begin, op.end)).collect()
    }

    fn simulated(programs: [Vec<Op>; 2]) -> Result<StepTimeline> {
        let programs = programs.map(|ops| StepProgram { ops });
        simulate_step(&programs, &|_, _| vec![0, 1], &Usual)
    }

    #[test]
    fn a_blocking_call_begins_when_the_last_has_come_and_a_started_one_goes_on_beside() {
        let sum = || called(Members::World, Operation::AllReduce(ReduceOp::Sum));
        let blocking = || vec![run(0), Op::Call(sum().into()), Op::Update(None)];
        let timeline = simulated([blocking(), blocking()]).unwrap();
        assert_eq!(times(&timeline, 0), [(0.0, 1.0), (1.0, 6.0), (6.0, 6.5)]);
        assert_eq!(times(&timeline, 1), [(0.0, 2.0), (2.0, 6.0), (6.0, 6.5)]);
        // Two started ones of a group go one after the other.
        let started = || {
            vec![
                Op::Start(Purpose::Bucket(0), sum().into()),
                run(0),
                Op::Start(Purpose::Bucket(0), sum().into()),
                Op::Await(0),
                Op::Await(2),
            ]
        };
        let timeline = simulated([started(), started()]).unwrap();
        assert_eq!(times(&timeline, 1), [(0.0, 0.0), (0.0, 2.0), (2.0, 2.0), (2.0, 4.0), (4.0, 8.0)]);
        assert_eq!(timeline.makespan(), 8.0);
    }

    #[test]
    fn what_is_sent_goes_on_its_way_before_it_is_wanted() {
        let link = |operation| called(Members::Link { from: 0, to: 1 }, operation);
        let sender = vec![run(0), Op::Start(Purpose::Parcel, link(Operation::Send).into()), run(4), Op::Await(1)];
        let receiver = |segment| vec![run(segment), Op::Call(link(Operation::Receive).into())];
        let early = simulated([sender.clone(), receiver(0)]).unwrap();
        assert_eq!(times(&early, 0)[3], (6.0, 6.0));
        assert_eq!(times(&early, 1), [(0.0, 2.0), (2.0, 5.0)]);
        let late = simulated([sender, receiver(8)]).unwrap();
        assert_eq!(times(&late, 1), [(0.0, 10.0), (10.0, 10.0)]);
    }

    #[test]
    fn the_largest_call_of_a_group_counts_and_different_ones_are_refused() {
        let gather = |elements| Called { elements, ..called(Members::World, Operation::AllGather) };
        for elements in [[4, 9], [9, 4]] {
            let timeline = simulated(elements.map(|elements| vec![Op::Call(gather(elements).into())])).unwrap();
            assert_eq!(timeline.makespan(), 9.0);
        }
        let other = called(Members::World, Operation::Barrier);
        let error =
            simulated([vec![Op::Call(gather(4).into())], vec![Op::Call(other.into())]]).unwrap_err().to_string();
        assert!(error.contains("rank 1 makes barrier") && error.contains("another member all_gather"), "{error}");
        let error = simulated([vec![Op::Await(3)], vec![]]).unwrap_err().to_string();
        assert!(error.contains("operation 0 of rank 0 waits for 3"), "{error}");
        let sum = |elements| Called { elements, ..called(Members::World, Operation::AllReduce(ReduceOp::Sum)) };
        let error = simulated([4, 9].map(|elements| vec![Op::Call(sum(elements).into())])).unwrap_err().to_string();
        assert!(error.contains("of 9 i8") && error.contains("of 4 i8"), "{error}");
    }

    #[test]
    fn started_calls_are_waited_for_in_any_order_each_once() {
        let started = |awaits: &[u32]| {
            let start = || Op::Start(Purpose::Bucket(0), called(Members::World, Operation::Barrier).into());
            [start(), start(), start()]
                .into_iter()
                .chain(awaits.iter().map(|place| Op::Await(*place)))
                .collect::<Vec<_>>()
        };
        assert_eq!(simulated([started(&[1, 2, 0]), started(&[0, 1, 2])]).unwrap().makespan(), 12.0);
        for twice in [[1, 1], [0, 0]] {
            let error = simulated([started(&twice), started(&twice)]).unwrap_err().to_string();
            assert!(error.contains(&format!("operation 4 of rank 1 waits for {}", twice[0])), "{error}");
        }
    }

    #[test]
    fn ranks_that_wait_for_ever_are_named() {
        let call = |over| Op::Call(called(over, Operation::Barrier).into());
        let error = simulated([vec![call(Members::World)], vec![call(Members::Stages)]]).unwrap_err().to_string();
        assert!(error.contains("rank 0 waits in operation 0") && error.contains("rank 1 waits"), "{error}");
    }
}
