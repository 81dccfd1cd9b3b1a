//! Where the time of a step went, by what a rank's trace recorded of it, in the parts that a simulated step has.
//!
//! ```text
//! the rank   [stages][receive][forward 0 [all_reduce]]  [backward 0]m[wait for bucket 0] [norm][all_reduce][update 1 [all_gather]]
//! its part    stages  stages   compute    layers         compute      gradients           report            update    parameters
//! a helper                                                           [all_reduce       ]                          is not counted
//! ```
//!
//! What lies inside something else is taken from that. What nothing covers belongs to what came before it (`m`: a mark, as of a
//! bucket that is started): behind a segment are the gradients that are added up, behind a wait what has come is put where it
//! belongs, behind the sum of the norm clipping is decided. Before all of it weights are summed, which is of the report.

use std::cmp::Reverse;
use std::time::Instant;

use epl_comm::{Event, EventKind, Operation, Rank};

use super::call::Members;
use super::list::RunKind;
use super::parts::{Part, StepTime};

/// With what the mark begins of a bucket that is started, and of one of which rows are sent.
pub(crate) const START_BUCKET: &str = "start bucket ";
pub(crate) const START_ROWS: &str = "start rows of bucket ";
/// With what a span begins in which a rank waits for either.
pub(crate) const WAIT_BUCKET: &str = "wait for bucket ";
/// With what the mark begins of a unit whose parameters are asked for, and the span in which a rank waits for them.
pub(crate) const START_GATHER: &str = "start gather of unit ";
pub(crate) const WAIT_UNIT: &str = "wait for unit ";
/// With what spans of an update begin: of all of it, and of what lies in the model or in a unit.
pub(crate) const UPDATE: &str = "update ";
/// With what a span of the loss of a micro-batch begins.
pub(crate) const LOSS: &str = "loss ";
/// The span in which gradients are put together, to be sent.
pub(crate) const FLATTENS: &str = "flatten gradients";
/// That in which a rank waits until other stages have what it sent.
pub(crate) const SENT: &str = "wait for what was sent";
/// That in which a rank's share of the norm is taken, and losses are read.
pub(crate) const NORM: &str = "norm";

/// With what the words of spans and marks begin, but those of segments.
const WORDS: [(&str, Part); 10] = [
    (LOSS, Part::Compute),
    (START_BUCKET, Part::Gradients),
    (START_ROWS, Part::Gradients),
    (FLATTENS, Part::Gradients),
    (WAIT_BUCKET, Part::Gradients),
    (START_GATHER, Part::Parameters),
    (WAIT_UNIT, Part::Parameters),
    (SENT, Part::Stages),
    (NORM, Part::Report),
    (UPDATE, Part::Update),
];

impl StepTime {
    /// Of a rank's step from one moment to another, by the events that were recorded meanwhile; those that the rank did not wait
    /// for are not counted: collectives that helper threads make for the engine. What a layer starts counts whole. Together the parts
    /// are the time between the moments.
    pub(crate) fn measured(events: &[Event], rank: Rank, (begin, end): (Instant, Instant)) -> Self {
        let is_own = |event: &&Event| event.rank == rank && event.end >= begin && event.begin <= end;
        let mut events: Vec<&Event> = events.iter().filter(is_own).collect();
        events.sort_by_key(|event| (event.begin, Reverse(event.end)));
        let is_link = |event: &&Event| match &event.kind {
            EventKind::Collective { group, .. } => matches!(Members::named(group), Members::Link { .. }),
            _ => false,
        };
        let is_staged = events.iter().any(is_link);
        let mut sweep = Sweep { time: Self::default(), at: begin, open: Vec::new(), between: Part::Report };
        for event in events {
            sweep.go_to(event.begin);
            match &event.kind {
                EventKind::Counter { .. } => {}
                EventKind::Mark(what) => sweep.between = of_words(what).unwrap_or(sweep.between),
                EventKind::Span(what) => sweep.enter(of_words(what).filter(|_| !sweep.is_in_segment()), event.end),
                EventKind::Collective { group, operation, .. } => {
                    sweep.enter(sweep.of_call(&Members::named(group), *operation, is_staged), event.end);
                }
            }
        }
        sweep.go_to(end);
        sweep.time
    }
}

fn of_words(what: &str) -> Option<Part> {
    let is_run = |kind: &RunKind| {
        let words = what.strip_prefix(kind.name());
        words.is_some_and(|words| words.starts_with(' ') && words.contains(" segment "))
    };
    let run = [RunKind::Forward, RunKind::Recompute, RunKind::Backward].into_iter().find(is_run);
    let known = || WORDS.into_iter().find(|(words, _)| what.starts_with(words)).map(|(_, part)| part);
    run.map(Part::of_run).or_else(known)
}

/// A walk through a step.
struct Sweep {
    time: StepTime,
    /// Until when it is known where the time went.
    at: Instant,
    /// What the rank does, the innermost last, and until when.
    open: Vec<(Part, Instant)>,
    /// To which part it belongs that the rank does nothing that is known.
    between: Part,
}

impl Sweep {
    fn go_to(&mut self, to: Instant) {
        while let Some((part, end)) = self.open.pop_if(|(_, end)| *end <= to) {
            self.add(part, end);
            if self.open.is_empty() {
                self.between = part;
            }
        }
        self.add(self.inside().unwrap_or(self.between), to);
    }

    fn add(&mut self, part: Part, to: Instant) {
        *self.time.part(part) += to.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(to);
    }

    /// Something that begins now, if it counts.
    fn enter(&mut self, part: Option<Part>, end: Instant) {
        let end = self.open.last().map_or(end, |(_, outer)| end.min(*outer));
        self.open.extend(part.map(|part| (part, end)));
    }

    fn inside(&self) -> Option<Part> {
        self.open.last().map(|(part, _)| *part)
    }

    /// What a layer says that it does is a part of its segment.
    fn is_in_segment(&self) -> bool {
        self.open.first().is_some_and(|(part, _)| matches!(part, Part::Compute | Part::Recompute))
    }

    /// The part of a collective; none where a helper thread makes it.
    fn of_call(&self, over: &Members, operation: Operation, is_staged: bool) -> Option<Part> {
        match over {
            // Of tied weights the rank itself calls a pool, behind their sum over stages.
            Members::Pool(..) => None,
            Members::Link { .. } if operation != Operation::Receive => None,
            // What is updated goes to the replicas as part of the update, when all that was started has come.
            Members::Gather(_) if self.inside() != Some(Part::Update) => None,
            _ if self.is_in_segment() => Some(Part::Layers),
            over => Some(Part::of_call(over, is_staged)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::tensor::{DType, Shape};
    use epl_comm::{Rank, ReduceOp};

    use super::*;
    use crate::topology::cluster::Axis;

    const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

    /// What was done from one millisecond to another.
    type Done = (EventKind, u64, u64);

    fn span(what: &str, from: u64, to: u64) -> Done {
        (EventKind::Span(what.to_string()), from, to)
    }

    fn mark(what: &str, at: u64) -> Done {
        (EventKind::Mark(what.to_string()), at, at)
    }

    fn call(over: Members, operation: Operation, from: u64, to: u64) -> Done {
        let (group, shape) = (over.to_string(), Shape::new([1]));
        (EventKind::Collective { group, sequence: 1, operation, dtype: DType::F32, shape }, from, to)
    }

    /// The parts, in milliseconds, of a step from the 10th to the 110th; events are in the order in which they end.
    fn measured(mut done: Vec<Done>) -> StepTime {
        let zero = Instant::now();
        let at = |time: u64| zero + Duration::from_millis(time);
        done.sort_by_key(|(_, _, to)| *to);
        let event = |(kind, from, to): Done| Event { rank: Rank(0), kind, begin: at(from), end: at(to) };
        let mut events: Vec<Event> = done.into_iter().map(event).collect();
        // Of a rank that has the same trace.
        let other = EventKind::Span("recompute 0 segment 0".to_string());
        events.push(Event { rank: Rank(1), kind: other, begin: at(0), end: at(120) });
        let mut time = StepTime::measured(&events, Rank(0), (at(10), at(110)));
        assert!((time.total() - 0.1).abs() < 1e-9, "the parts are the step: {time}");
        let parts = [
            Part::Compute,
            Part::Recompute,
            Part::Layers,
            Part::Stages,
            Part::Gradients,
            Part::Parameters,
            Part::Update,
        ];
        for part in parts.into_iter().chain([Part::Report]) {
            let rounded = (*time.part(part) * 1e3).round();
            *time.part(part) = rounded;
        }
        time
    }

    #[test]
    fn what_lies_inside_something_is_taken_from_it() {
        let time = measured(vec![
            // Before the step.
            span("update 1", 0, 9),
            call(Members::Axis(Axis::Data), SUM, 12, 15),
            span("forward 0 segment 0", 20, 50),
            call(Members::Axis(Axis::Tensor), SUM, 22, 27),
            // A layer sums over replicas, says what it does, and makes a group of its own.
            call(Members::Axis(Axis::Data), SUM, 30, 33),
            span("update of a mean", 34, 36),
            call(Members::Other("mine".to_string()), SUM, 37, 38),
            // Its loss behind it, which a layer sums.
            span("loss 0", 51, 54),
            call(Members::Axis(Axis::Data), SUM, 52, 53),
            span("recompute 0 segment 0", 55, 60),
            span("backward 0 segment 0", 60, 80),
            call(Members::Axis(Axis::Tensor), SUM, 70, 72),
            span(NORM, 85, 86),
            call(Members::World, SUM, 86, 88),
            span("update 2", 90, 104),
            span("update unit 0", 91, 103),
            call(Members::Gather(Axis::Data), Operation::AllGather, 99, 103),
        ]);
        let expected = StepTime {
            compute: (30.0 - 9.0) + (5.0 - 1.0) + (20.0 - 2.0) + 5.0,
            recompute: 5.0,
            layers: 9.0 + 1.0 + 2.0,
            parameters: 4.0,
            update: 10.0 + 6.0,
            report: 10.0 + 5.0,
            ..StepTime::default()
        };
        assert_eq!(time, expected);
    }

    #[test]
    fn what_helpers_do_beside_the_rank_is_not_counted() {
        let time = measured(vec![
            mark("start gather of unit 0", 12),
            call(Members::Gather(Axis::Data), Operation::AllGather, 12, 30),
            span("wait for unit 0", 14, 30),
            span("forward 0 segment 0", 31, 40),
            span("backward 0 segment 0", 41, 60),
            span(FLATTENS, 62, 64),
            mark("start bucket 0", 64),
            // Into another segment, and beyond its end.
            call(Members::Pool(Axis::Data, 0), SUM, 65, 100),
            span("backward 0 segment 1", 66, 80),
            mark("start rows of bucket 1", 81),
            call(Members::Pool(Axis::Data, 1), Operation::AllGather, 82, 90),
            span("wait for bucket 0", 85, 100),
            // Of what the replicas have, the rank sends what it holds with another stage.
            call(Members::Tied(vec![0, 1]), SUM, 103, 106),
            call(Members::Pool(Axis::Data, 0), SUM, 106, 109),
        ]);
        let expected = StepTime {
            report: 2.0,
            parameters: 2.0 + 16.0 + 1.0,
            compute: 9.0 + 1.0 + 19.0 + 2.0 + 14.0 + 1.0,
            gradients: 2.0 + 2.0 + 4.0 + 15.0 + 3.0 + 3.0 + 4.0,
            ..StepTime::default()
        };
        assert_eq!(time, expected);
    }

    #[test]
    fn a_rank_of_a_stage_waits_for_the_others() {
        let (here, away) = (Members::Link { from: 0, to: 1 }, Members::Link { from: 1, to: 0 });
        let staged = vec![
            call(Members::Stages, Operation::AllGather, 11, 14),
            call(here, Operation::Receive, 14, 40),
            span("forward 0 segment 1", 42, 50),
            span("backward 0 segment 1", 50, 70),
            call(away, Operation::Send, 71, 95),
            span(SENT, 72, 95),
            span(NORM, 95, 96),
            call(Members::World, SUM, 96, 100),
            span("update 7", 100, 110),
        ];
        let expected = StepTime {
            report: 1.0 + 1.0,
            stages: 3.0 + 26.0 + 2.0 + 23.0 + 4.0,
            compute: 28.0 + 2.0,
            update: 10.0,
            ..StepTime::default()
        };
        assert_eq!(measured(staged.clone()), expected);
        // Where no other stage is, the sum of all ranks is the report's.
        let is_link = |kind: &EventKind| matches!(kind, EventKind::Collective { group, .. } if group.contains(" to "));
        let alone: Vec<Done> = staged.into_iter().filter(|(kind, ..)| !is_link(kind)).collect();
        assert_eq!(measured(alone).report, 1.0 + 1.0 + 4.0);
    }
}
