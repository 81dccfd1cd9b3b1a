//! The list of a step is what the engine does: each run of these tests is held against it, call for call and byte for byte.
//!
//! Two things the list takes from the trace itself, as the batch says them: how many rows of an embedding's gradient travel,
//! and in a model with experts how many rows a layer's own collectives have.

use std::collections::BTreeMap;

use epl::comm::{Event, EventKind, Operation, Rank, Trace};
use epl::config::Config;
use epl::simulate::{Called, CarryShape, Members, Op, SegmentCalls, StepProgram, StepShapes};
use epl::{Plan, launch_dry};

use super::{Case, micro_batches};

/// The mark before the step that is compared, and behind it.
pub const MARKS: [&str; 2] = ["compared from here", "compared to here"];

/// What one rank did: segments and updates in their order, and the calls of each group.
#[derive(Debug, Default, PartialEq)]
struct Done {
    spans: Vec<String>,
    calls: BTreeMap<String, Vec<(Operation, String, usize)>>,
}

impl Done {
    fn call(&mut self, Called { over, operation, dtype, elements }: &Called, is_exact: bool) {
        let elements = if is_exact { *elements } else { 0 };
        self.calls.entry(over.to_string()).or_default().push((*operation, format!("{dtype:?}"), elements));
    }
}

/// The shapes of a rank's step, with what the trace knows of its data.
struct Shapes<S> {
    measured: S,
    rows: BTreeMap<usize, usize>,
    lanes: usize,
}

impl<S: StepShapes> StepShapes for Shapes<S> {
    fn micro_batches(&self) -> usize {
        self.measured.micro_batches()
    }

    fn calls(&self, micro_batch: usize, segment: usize) -> &SegmentCalls {
        self.measured.calls(micro_batch, segment)
    }

    fn carry(&self, micro_batch: usize, segment: usize) -> &CarryShape {
        self.measured.carry(micro_batch, segment)
    }

    fn terms(&self) -> usize {
        self.measured.terms()
    }

    fn metrics(&self) -> usize {
        self.measured.metrics()
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn rows(&self, bucket: usize) -> Option<usize> {
        self.rows.get(&bucket).copied()
    }
}

/// Compares the program of every rank's plan with what the rank did between the marks.
pub fn check(case: &Case, config: &Config, accumulation: usize, plans: &[(Plan, usize)], trace: &Trace) {
    let events = trace.events();
    for (rank, (plan, lanes)) in plans.iter().enumerate().filter(|(_, (plan, _))| !plan.mesh.is_bridged()) {
        let own: Vec<&Event> = events.iter().filter(|event| event.rank == Rank(rank)).collect();
        let mark = |name: &str| {
            let is_mark = |event: &&&Event| event.kind == EventKind::Mark(name.to_string());
            own.iter().find(is_mark).unwrap_or_else(|| panic!("rank {rank} was not marked {name:?}")).begin
        };
        let [from, to] = MARKS.map(mark);
        let mut own: Vec<&Event> = own.into_iter().filter(|event| event.begin >= from && event.begin <= to).collect();
        own.sort_by_key(|event| event.begin);
        let is_exact = |over: &Members| {
            case.model.moe.is_none()
                || !matches!(over, Members::Axis(axis) if axis.name() == "tensor" || axis.name() == "expert")
        };
        let did = done(&own, is_exact);
        let (measured, _) = launch_dry(config, rank, |epl| {
            let lazy = epl.plan(|place| case.init(place))?;
            let batches = micro_batches(&epl, case, 2, accumulation);
            let rows: Vec<usize> = batches.iter().map(|batch| batch.samples.len()).collect();
            lazy.step_shapes(&rows, |number, _| batches[number].batch.clone())
        })
        .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        let shapes = Shapes { measured, rows: rows(plan, &own), lanes: *lanes };
        let program = StepProgram::new(plan, &shapes).unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        let expected = written(&program, is_exact);
        assert_eq!(did.spans, expected.spans, "rank {rank}: segments and updates");
        for group in did.calls.keys().chain(expected.calls.keys()) {
            assert_eq!(did.calls.get(group), expected.calls.get(group), "rank {rank}: calls of group `{group}`");
        }
        check_waits(&program, &own);
    }
}

/// What the program waits for is over before the next segment runs.
fn check_waits(program: &StepProgram, events: &[&Event]) {
    let mut calls: BTreeMap<String, Vec<&Event>> = BTreeMap::new();
    let mut runs = Vec::new();
    for event in events {
        match &event.kind {
            EventKind::Collective { group, .. } => calls.entry(group.clone()).or_default().push(event),
            EventKind::Span(what) if what.contains("segment") => runs.push(event),
            _ => {}
        }
    }
    let (mut made, mut started, mut ran) = (BTreeMap::<String, usize>::new(), BTreeMap::new(), 0);
    for (index, op) in program.ops.iter().enumerate() {
        match op {
            Op::Run { .. } => ran += 1,
            Op::Call(call) | Op::Start(call) => {
                let (group, number) = (call.over.to_string(), made.entry(call.over.to_string()).or_default());
                started.insert(index, calls[&group][*number]);
                *number += 1;
            }
            Op::Await(start) => {
                if let Some(next) = runs.get(ran) {
                    assert!(
                        started[start].end <= next.begin,
                        "{:?} was waited for before {:?}",
                        started[start],
                        next.kind
                    );
                }
            }
            Op::Update(_) => {}
        }
    }
}

fn done(events: &[&Event], is_exact: impl Fn(&Members) -> bool) -> Done {
    let mut done = Done::default();
    for event in events {
        match &event.kind {
            EventKind::Collective { group, operation, dtype, shape, .. } => {
                let over = Members::named(group);
                let is_exact = is_exact(&over);
                done.call(
                    &Called { over, operation: *operation, dtype: *dtype, elements: shape.num_elements() },
                    is_exact,
                );
            }
            EventKind::Span(what) => {
                let what = if what.starts_with("update") { "update" } else { what };
                done.spans.push(what.to_string());
            }
            EventKind::Mark(_) => {}
        }
    }
    done
}

fn written(program: &StepProgram, is_exact: impl Fn(&Members) -> bool) -> Done {
    let mut done = Done::default();
    for op in &program.ops {
        match op {
            Op::Run { kind, micro_batch, segment } => {
                done.spans.push(format!("{} {micro_batch} segment {segment}", kind.name()));
            }
            Op::Call(call) | Op::Start(call) => done.call(call, is_exact(&call.over)),
            Op::Await(_) | Op::Update(_) => {}
        }
    }
    done.spans.push("update".to_string());
    done
}

/// The buckets that travelled as rows, and how many: their numbers are the only whole numbers that a pool gathers.
fn rows(plan: &Plan, events: &[&Event]) -> BTreeMap<usize, usize> {
    let numbers = events.iter().filter_map(|event| match &event.kind {
        EventKind::Collective { group, operation: Operation::AllGather, dtype, shape, .. }
            if matches!(Members::named(group), Members::Other(_)) && dtype.is_int() && group.contains(' ') =>
        {
            Some(shape.num_elements())
        }
        _ => None,
    });
    let sparse = plan.params.buckets.iter().enumerate().filter(|(_, bucket)| bucket.sparse).map(|(index, _)| index);
    sparse.zip(numbers).collect()
}
