//! Hundreds of random programs, each with one fault at a random call of a random rank: every run ends, and says who.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use burn::tensor::DType;
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use crate::cases::world::World;
use crate::program::{Kind, Later, MOST, Program, Step, programs};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Returns an error.
    Error,
    Panic,
    /// Returns well, but too early.
    Return,
    /// Goes on doing something else, until it hears that the run has failed.
    Stop,
    Shape,
    Dtype,
    Operation,
    /// Makes the call after the next one.
    Order,
    /// Makes the call in another group.
    Group,
}

/// All but those that only time tells.
const FAULTS: [Fault; 8] = [
    Fault::Error,
    Fault::Panic,
    Fault::Return,
    Fault::Shape,
    Fault::Dtype,
    Fault::Operation,
    Fault::Order,
    Fault::Group,
];

/// Which rank goes wrong in which of its calls, and how.
#[derive(Clone, Copy, Debug)]
struct Injection {
    fault: Fault,
    rank: usize,
    call: usize,
    /// Whether the order of calls is compared.
    check_order: bool,
}

fn injected(faults: &[Fault], limits: &[usize]) -> impl Strategy<Value = (Program, Injection)> + use<> {
    let index = any::<prop::sample::Index>;
    let fault = (prop::sample::select(faults.to_vec()), index(), index(), any::<bool>());
    (programs(2..=crate::program::MOST, limits), fault)
        .prop_map(|(program, (fault, rank, call, check_order))| {
            let program = shared(program);
            let (rank, call) = (rank.index(program.ranks), call.index(program.steps.len() - 1));
            (program, Injection { fault, rank, call, check_order })
        })
        .prop_filter("the fault must be one", |(program, injection)| is_fault(program, *injection))
}

/// A program whose every call has several members on every rank that makes it, and ends with all ranks.
fn shared(mut program: Program) -> Program {
    program.splits = program.splits.iter().map(|colors| in_company(colors, program.ranks)).collect();
    for step in &mut program.steps {
        step.len = step.len.max(1);
    }
    let last = Step { split: 0, kind: Kind::Barrier, len: 1, dtype: DType::F32, started: false };
    program.steps.extend([last.clone(), last]);
    program
}

/// Colors of which each is at least two ranks'.
fn in_company(colors: &[usize], ranks: usize) -> Vec<usize> {
    let alone = |color: usize| colors[..ranks].iter().filter(|other| **other == color).count() < 2;
    let any_alone = colors[..ranks].iter().any(|color| alone(*color));
    if any_alone { vec![0; colors.len()] } else { colors.to_vec() }
}

/// The step that the rank at fault makes instead.
fn changed(program: &Program, Injection { fault, call, .. }: Injection) -> Step {
    let step = program.steps[call].clone();
    match fault {
        Fault::Shape => Step { len: step.len + 1, ..step },
        Fault::Dtype => Step { dtype: if step.dtype == DType::F32 { DType::I64 } else { DType::F32 }, ..step },
        Fault::Operation => {
            let kind = if step.kind == Kind::Broadcast { Kind::AllReduce(ReduceOp::Max) } else { Kind::Broadcast };
            Step { kind, ..step }
        }
        Fault::Group => Step { split: (step.split + 1) % 3, ..step },
        _ => step,
    }
}

/// Whether peers can tell: a barrier has neither shape nor type, and a ring is not compared with the group's calls.
fn is_fault(program: &Program, injection: Injection) -> bool {
    let (step, next) = (&program.steps[injection.call], &program.steps[injection.call + 1]);
    let is_plain = |step: &Step| !matches!(step.kind, Kind::Ring);
    match injection.fault {
        Fault::Shape | Fault::Dtype => is_plain(step) && step.kind != Kind::Barrier,
        Fault::Operation | Fault::Group => is_plain(step),
        Fault::Order => is_plain(step) && is_plain(next) && (step.split != next.split || differ(step, next)),
        _ => true,
    }
}

/// Whether two calls of one group cannot be taken for each other.
fn differ(a: &Step, b: &Step) -> bool {
    core::mem::discriminant(&a.kind) != core::mem::discriminant(&b.kind)
}

/// The program on one rank.
fn run(program: &Program, injection: Injection, world: &ProcessGroup, failed: &AtomicBool) -> Result<()> {
    let groups = program.groups(world)?;
    let mine = injection.rank == world.rank();
    let mut steps = program.steps.clone();
    if mine && injection.fault == Fault::Order {
        steps.swap(injection.call, injection.call + 1);
    }
    let mut results: Vec<Later> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let mut step = step.clone();
        if mine && index == injection.call {
            match injection.fault {
                Fault::Error => return Err(Error::invalid("out of luck")),
                Fault::Panic => std::panic::resume_unwind(Box::new("out of luck")),
                Fault::Return => return Ok(()),
                Fault::Stop => {
                    while !failed.load(Ordering::Acquire) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    return Ok(());
                }
                _ => step = changed(program, injection),
            }
        }
        results.push(step.issue(&groups[step.split], index)?.0);
    }
    results.into_iter().try_for_each(|result| result().map(drop))
}

/// The ranks that an error names as those who may have caused it.
fn named(error: &Error) -> Vec<Rank> {
    match error {
        // Whoever finds a circle first is the one that failed; what it says names all of it.
        Error::Peer { cause, .. } if cause.contains("wait for each other in a circle") => {
            (0..MOST).map(Rank).filter(|rank| cause.contains(&format!("{rank} waits for"))).collect()
        }
        Error::Mismatch { second_is_odd: true, second, .. } => vec![*second],
        Error::Mismatch { first, second, .. } | Error::Order { first, second, .. } => vec![*first, *second],
        Error::Deadlock { circle } => circle.iter().map(|(rank, _)| *rank).collect(),
        Error::Timeout { missing, .. } => missing.iter().map(|(rank, _)| *rank).collect(),
        Error::Peer { rank, .. } => vec![*rank],
        _ => Vec::new(),
    }
}

fn check(world: &World, program: &Program, injection: Injection) -> Result<(), TestCaseError> {
    let failed = Arc::new(AtomicBool::new(false));
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (heard, reports) = (failed.clone(), reported.clone());
    let ranks = world.ranks(program.ranks).eager_limit(program.eager_limit);
    let ranks = if injection.check_order { ranks.check_order() } else { ranks };
    let ranks = ranks.on_failure(move |rank, error| {
        reports.lock().unwrap().push((rank, error.to_string()));
        heard.store(true, Ordering::Release);
    });
    // Ranks that wait for each other, where that is found only when time is up.
    let may_circle = matches!(injection.fault, Fault::Order | Fault::Group) && !world.kind.finds_circles();
    let ranks = match injection.fault == Fault::Stop || may_circle {
        true => ranks.time_limit(world.kind.patience()),
        false => ranks.no_time_limit(),
    };
    let processes = ranks.launch(|world| run(program, injection, &world, &failed));
    let reports = reported.lock().unwrap();
    let culprit = Rank(injection.rank);
    if injection.fault == Fault::Order && processes.iter().all(|process| process.ended.is_ok()) {
        // Started calls of different groups come to a good end in any order.
        prop_assert!(
            !(injection.check_order && world.kind.checks_order()) || processes.is_empty(),
            "the run succeeded"
        );
        return Ok(());
    }
    let told = world.failures(processes);
    prop_assert_eq!(reports.len(), told.len(), "each process once: {:?}", reports);
    for (_, rank, error) in told {
        prop_assert!(reports.iter().all(|report| report.0 == rank), "{:?}", reports);
        let is_told = |part: &str| reports.iter().all(|report| report.1.contains(part));
        match injection.fault {
            Fault::Error | Fault::Panic => {
                prop_assert_eq!(rank, culprit, "{}", error);
                prop_assert!(error.to_string().contains("out of luck"), "{}", error);
                prop_assert!(is_told("out of luck"), "{:?}", reports);
            }
            Fault::Return => {
                prop_assert_eq!(rank, culprit, "{}", error);
                prop_assert!(is_told("returned without taking part"), "{:?}", reports);
            }
            Fault::Stop => {
                prop_assert_eq!(rank, culprit, "{}", error);
                prop_assert_eq!(named(&error), vec![culprit], "{}", error);
                prop_assert!(matches!(error, Error::Timeout { .. }), "{}", error);
            }
            // Of those who wait for each other, whoever has waited too long, as it says itself or others were told. Of a call
            // that an earlier one of its own rank holds up, nobody knows more.
            _ if may_circle && error.to_string().contains(" has waited ") => {}
            _ if may_circle && error.to_string().contains("which was made before it, waits for a rank") => {}
            _ => {
                prop_assert!(named(&error).contains(&culprit), "{}", error);
                prop_assert!(is_told(&culprit.to_string()), "{:?}", reports);
            }
        }
    }
    Ok(())
}

/// Runs one worker's share; the faults that it made.
fn work(world: &World, which: &[Fault], worker: u32, faults: u32) -> Vec<Fault> {
    let made = Mutex::new(Vec::new());
    let config = ProptestConfig { cases: faults, failure_persistence: None, ..ProptestConfig::default() };
    let seed = [worker as u8 + 1; 32];
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&injected(which, world.kind.eager_limits()), |(program, injection)| {
        made.lock().unwrap().push(injection.fault);
        check(world, &program, injection)
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    made.into_inner().unwrap()
}

/// Draws faults, some side by side, as some are found only when time is up.
fn inject(world: &World, which: &[Fault], (workers, faults): (u32, u32)) {
    // Threads are counted.
    world.alone(|| {
        // A world may start threads at its first run.
        world.run(2, |group| group.barrier().unwrap());
        let before = super::threads::settled();
        let made: Vec<Fault> = thread::scope(|scope| {
            let work = |worker| scope.spawn(move || work(world, which, worker, faults));
            let workers: Vec<_> = (0..workers).map(work).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        assert!(made.len() >= (workers * faults) as usize);
        for fault in which {
            let count = made.iter().filter(|other| *other == fault).count();
            println!("{fault:?}: {count}");
            assert!(count * 30 >= (workers * faults) as usize, "{fault:?} was injected {count} times only");
        }
        super::threads::assert_none_is_left(before);
    });
}

pub fn every_run_ends_and_names_who_was_at_fault(world: &World) {
    inject(world, &FAULTS, world.kind.faults());
}

pub fn who_stops_is_named(world: &World) {
    let (workers, faults) = world.kind.faults();
    inject(world, &[Fault::Stop], (workers, faults.div_ceil(16)));
}
