//! The list of a step is what the engine does: each run of these tests is held against it, call for call and byte for byte. The lists
//! of all ranks are simulated together.
//!
//! Two things the list takes from the trace itself, as the batch says them: how many rows of an embedding's gradient travel,
//! and in a model with experts how many rows a layer's own collectives have.

use std::collections::BTreeMap;

use epl::comm::{Event, EventKind, Operation, Rank, Trace};
use epl::config::Config;
use epl::simulate::{Called, Costs, Members, Op, Purpose, RunKind, StepProgram, simulate_step};
use epl::{Engine, Epl, LazyModel, Mesh, MicroBatch, Model, Place, Plan, launch_dry};

/// The marks before the step that is compared, and behind it.
pub const MARKS: [&str; 2] = ["compared from here", "compared to here"];

/// A rank whose step was traced.
#[derive(Clone, Debug)]
pub struct Traced {
    rank: usize,
    plan: Plan,
    /// How many communicators a pool may have.
    lanes: usize,
}

impl Traced {
    pub fn of<M: Model>(engine: &Engine<M>) -> Self {
        let world = engine.context().world();
        Self { rank: world.rank(), plan: engine.plan().clone(), lanes: world.lanes() }
    }

    /// The micro-batches of its step.
    pub fn micro_batches(&self) -> usize {
        self.plan.micro_batches
    }
}

/// What one rank did.
#[derive(Debug, Default, PartialEq)]
struct Done {
    /// One after the other: segments, what it started, waited for and updated, and calls that nobody starts.
    own: Vec<String>,
    /// All calls of each group.
    calls: BTreeMap<String, Vec<String>>,
}

impl Done {
    fn call(&mut self, call: &Called, has_experts: bool) {
        let is_axis = |name: &str| matches!(call.over, Members::Axis(axis) if axis.name() == name);
        let text = match has_experts && (is_axis("tensor") || is_axis("expert")) {
            true => Called { elements: 0, ..call.clone() }.to_string(),
            false => call.to_string(),
        };
        // Of a pool, a gather or a link to another stage, helper threads make calls, too.
        let is_own = match &call.over {
            Members::Link { .. } => call.operation == Operation::Receive,
            Members::Pool(..) | Members::Gather(_) => false,
            _ => true,
        };
        if is_own {
            self.own.push(text.clone());
        }
        self.calls.entry(call.over.to_string()).or_default().push(text);
    }
}

/// What was traced.
pub struct Step<'a> {
    pub config: &'a Config,
    pub trace: &'a Trace,
    /// Rows of the step, of all replicas.
    pub rows: usize,
    /// Of a model with experts, rows of layers' own collectives are not compared.
    pub has_experts: bool,
}

/// Compares the program of every rank's plan with what the rank did between the marks, if all ranks are of this process.
pub fn check<M: Model>(
    traced: &[Traced],
    Step { config, trace, rows: batch, has_experts }: Step<'_>,
    mut model: impl FnMut(&Place) -> M,
    lay: impl Fn(LazyModel<M>, &Config) -> epl::Result<LazyModel<M>>,
    mut batches: impl FnMut(&Epl) -> Vec<MicroBatch<M::Batch>>,
) where
    M::Batch: Clone,
{
    assert!(!traced.is_empty(), "ranks that were traced");
    let (events, mut programs) = (trace.events(), Vec::new());
    for Traced { rank, plan, lanes } in traced.iter().filter(|own| own.plan.mesh.world_size() == traced.len()) {
        let own = between_marks(&events, *rank);
        let did = done(&own, has_experts);
        let (program, _) = launch_dry(config, *rank, |epl| {
            let (lazy, batches) = (lay(epl.plan(&mut model)?, epl.config())?, batches(&epl));
            let rows_of: Vec<usize> = batches.iter().map(|batch| batch.samples.len()).collect();
            let kinds: Vec<usize> = (0..rows_of.len()).collect();
            let shapes = lazy.step_shapes(&rows_of, &kinds, |number, _| batches[number].batch.clone())?;
            let shapes = shapes.with_lanes(*lanes).with_rows(rows(&own)).with_batch(batch);
            let program = StepProgram::new(plan, &shapes)?;
            assert_eq!(program, StepProgram::new(lazy.plan(), &shapes)?, "rank {rank}, by a plan without an engine");
            Ok(program)
        })
        .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        let expected = written(&program, has_experts);
        for (at, (did, expected)) in did.own.iter().zip(&expected.own).enumerate() {
            assert_eq!(did, expected, "rank {rank}, what it did, as number {at}");
        }
        assert_eq!(did.own.len(), expected.own.len(), "rank {rank}: how much it did");
        for group in did.calls.keys().chain(expected.calls.keys()) {
            assert_eq!(did.calls.get(group), expected.calls.get(group), "rank {rank}: calls of group `{group}`");
        }
        programs.push(program);
    }
    if !has_experts {
        assert_meet(&programs, &traced[0].plan.mesh);
    }
}

/// No rank of a simulated step waits for ever, or for another call than others make.
fn assert_meet(programs: &[StepProgram], mesh: &Mesh) {
    struct Equal;
    impl Costs for Equal {
        fn run(&self, _rank: usize, _kind: RunKind, _micro_batch: usize, _segment: usize) -> f64 {
            1.0
        }

        fn call(&self, _rank: usize, _call: &Called, _is_started: bool) -> f64 {
            1.0
        }

        fn update(&self, _rank: usize, _unit: Option<usize>) -> f64 {
            1.0
        }
    }
    let members = |rank: usize, over: &Members| match over {
        Members::Other(_) => vec![rank],
        over => over.of(mesh, rank),
    };
    simulate_step(programs, &members, &Equal).unwrap_or_else(|error| panic!("the ranks' lists together: {error}"));
}

/// A rank's events between the marks, in the order in which they began.
fn between_marks(events: &[Event], rank: usize) -> Vec<&Event> {
    let own: Vec<&Event> = events.iter().filter(|event| event.rank == Rank(rank)).collect();
    let mark = |name: &str| {
        let is_mark = |event: &&&Event| event.kind == EventKind::Mark(name.to_string());
        own.iter().find(is_mark).unwrap_or_else(|| panic!("rank {rank} was not marked {name:?}")).begin
    };
    let [from, to] = MARKS.map(mark);
    let mut own: Vec<&Event> = own.into_iter().filter(|event| event.begin >= from && event.begin <= to).collect();
    own.sort_by_key(|event| event.begin);
    own
}

fn done(events: &[&Event], has_experts: bool) -> Done {
    let mut done = Done::default();
    for event in events {
        match &event.kind {
            EventKind::Collective { group, operation, dtype, shape, .. } => {
                let over = Members::named(group);
                let call = Called { over, operation: *operation, dtype: *dtype, elements: shape.num_elements() };
                done.call(&call, has_experts);
            }
            EventKind::Counter { .. } => {}
            EventKind::Span(what) if is_beside(what) => {}
            EventKind::Mark(what) if MARKS.contains(&&what[..]) => {}
            EventKind::Span(what) | EventKind::Mark(what) => done.own.push(what.clone()),
        }
    }
    done
}

/// Whether a span is of something that the list does not have by itself: the whole update, which is around those of its units, a
/// loss, which is of the last segment, and what a rank does where it starts a bucket, waits for what it sent, or takes the norm.
fn is_beside(what: &str) -> bool {
    let is_numbered = |words: &str| what.strip_prefix(words).is_some_and(|number| number.parse::<u64>().is_ok());
    is_numbered("update ")
        || is_numbered("loss ")
        || ["flatten gradients", "wait for what was sent", "norm"].contains(&what)
}

fn written(program: &StepProgram, has_experts: bool) -> Done {
    let mut done = Done::default();
    // Rows are two collectives, which are started and waited for as one.
    let says_once = |done: &mut Done, text: String| {
        if done.own.last() != Some(&text) {
            done.own.push(text);
        }
    };
    for op in &program.ops {
        match op {
            Op::Run { kind, micro_batch, segment } => {
                done.own.push(format!("{} {micro_batch} segment {segment}", kind.name()));
            }
            Op::Norm => {}
            Op::Call(call) => done.call(call, has_experts),
            Op::Start(purpose, call) => {
                match purpose {
                    Purpose::Bucket(index) => done.own.push(format!("start bucket {index}")),
                    Purpose::Rows(index) => says_once(&mut done, format!("start rows of bucket {index}")),
                    Purpose::Unit(number) => done.own.push(format!("start gather of unit {number}")),
                    Purpose::Parcel => {}
                }
                done.call(call, has_experts);
            }
            Op::Await(start) => match &program.ops[*start as usize] {
                Op::Start(Purpose::Bucket(index), _) => done.own.push(format!("wait for bucket {index}")),
                Op::Start(Purpose::Rows(index), _) => says_once(&mut done, format!("wait for bucket {index}")),
                Op::Start(Purpose::Unit(number), _) => done.own.push(format!("wait for unit {number}")),
                Op::Start(Purpose::Parcel, _) => {}
                other => panic!("{other:?} was waited for"),
            },
            Op::Update(None) => done.own.push("update in the model".to_string()),
            Op::Update(Some(unit)) => done.own.push(format!("update unit {unit}")),
        }
    }
    done
}

/// The buckets that travelled as rows, and how many: their numbers are the only whole numbers that a pool gathers.
fn rows(events: &[&Event]) -> BTreeMap<usize, usize> {
    let numbers = events.iter().filter_map(|event| match &event.kind {
        EventKind::Collective { group, operation: Operation::AllGather, dtype, shape, .. }
            if dtype.is_int() && matches!(Members::named(group), Members::Pool(..)) =>
        {
            Some(shape.num_elements())
        }
        _ => None,
    });
    let is_rows = |event: &&Event| matches!(&event.kind, EventKind::Mark(what) if what.starts_with("start rows"));
    // Of one pool one helper thread makes the calls in the order in which they are started.
    let buckets = events.iter().copied().filter(is_rows).filter_map(|event| match &event.kind {
        EventKind::Mark(what) => what.rsplit(' ').next()?.parse().ok(),
        _ => None,
    });
    buckets.zip(numbers).collect()
}
