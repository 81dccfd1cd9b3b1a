//! What is on a device's streams at the same time: who waits for whom, and who must not. The fake does what is asked of it
//! as late, or as early, as it may (`tests/fake_nccl/device.rs`); each test is shown to find what it is there to find, with
//! what keeps it from happening turned off.

use core::time::Duration;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use epl_comm::nccl::{Safeguards, Worker};
use epl_comm::{Error, LaunchError, MemoryStore, Pool, ProcessGroup, Rank, ReduceOp, Result, Store, Trace};

use crate::fake::Fake;
use crate::host_memory::{FakeDevice, HostMemory};
use crate::watchdog::within_seconds;

const ROUNDS: usize = 40;

/// All, but the one that `EPL_TEST_WITHOUT` names (`streams`, `order`, `gate` with all of the warm-up): then the tests fail that
/// are there for it.
fn all() -> Safeguards {
    let without = std::env::var("EPL_TEST_WITHOUT").unwrap_or_default();
    Safeguards { streams: without != "streams", order: without != "order", gate: without != "gate" }
}

fn full(value: f32) -> Tensor<1> {
    Tensor::full([8], value, &Device::flex())
}

/// Runs two ranks, each with a device, on which all goes in the order of streams.
fn run<T: Send>(
    fake: &Fake,
    how: impl Fn(Worker) -> Worker + Sync,
    f: impl Fn(&ProcessGroup, &FakeDevice) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let store = Arc::new(MemoryStore::new());
    run_with(fake, store, how, f)
}

fn run_with<T: Send>(
    fake: &Fake,
    store: Arc<dyn Store>,
    how: impl Fn(Worker) -> Worker + Sync,
    f: impl Fn(&ProcessGroup, &FakeDevice) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let rank = |rank: usize| {
        let device = Arc::new(fake.device(Rank(rank)));
        let worker = Worker::new(store.clone(), rank..rank + 1, 2).library(fake.library.clone());
        let worker = how(worker.time_limit(Duration::from_secs(60)));
        let ended = worker.run_on(|_| Ok(HostMemory::ordered(&device)), |group| f(&group, &device));
        ended.map(|mut values| values.remove(0)).map_err(|(_, error)| error)
    };
    let results = thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..2).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(fake.count("made"), fake.count("aborted") + fake.count("destroyed"));
    assert_eq!(fake.count("misused"), 0);
    results
}

fn without_gate(worker: Worker, safeguards: Safeguards) -> Worker {
    worker.compare_first(0).safeguards(Safeguards { gate: false, ..safeguards })
}

fn has_deadlock<T>(fake: &Fake, ended: &[Result<T>]) -> bool {
    let names_it = |ended: &Result<T>| ended.as_ref().is_err_and(|error| error.to_string().contains("deadlock"));
    let found = fake.count("deadlock") > 0;
    assert_eq!(found, ended.iter().any(names_it));
    assert_eq!(found, ended.iter().any(Result::is_err));
    found
}

/// What rank 1 finds of the numbers that rank 0 counts up, in the memory in which it was given the last sum; and what
/// rank 0 has copied of each before it is overwritten.
fn counted(safeguards: Safeguards, is_started: bool) -> [Vec<f32>; 2] {
    let ended = run(
        &Fake::new(),
        |worker| worker.safeguards(safeguards),
        |group, device| {
            let (mut x, mut found) = (full(0.0), Vec::new());
            for round in 0..ROUNDS {
                if round == ROUNDS / 2 {
                    group.warmed_up();
                }
                let copy = full(-1.0);
                if group.rank() == 0 {
                    device.add(&x, 1.0);
                    device.copy(&x, &copy);
                } else {
                    x = full(0.0);
                }
                x = match is_started {
                    true => group.start_all_reduce(x, ReduceOp::Sum)?.wait()?,
                    false => group.all_reduce(x, ReduceOp::Sum)?,
                };
                found.push(device.read(if group.rank() == 0 { &copy } else { &x })?[7]);
            }
            Ok(found)
        },
    );
    let found: Vec<Vec<f32>> = ended.into_iter().map(Result::unwrap).collect();
    found.try_into().unwrap()
}

#[test]
fn nccl_waits_for_what_the_rank_still_computes_and_reads() {
    within_seconds(60, || {
        let expected: Vec<f32> = (1..=ROUNDS).map(|round| round as f32).collect();
        for is_started in [false, true] {
            assert_eq!(counted(all(), is_started), [expected.clone(), expected.clone()]);
            let [_, found] = counted(Safeguards { streams: false, ..all() }, is_started);
            assert_ne!(found, expected, "this test finds nothing");
        }
    });
}

/// The sums that the ranks read at once when NCCL comes late.
fn late(safeguards: Safeguards) -> Vec<f32> {
    let fake = Fake::with("late", "1");
    let ended = run(
        &fake,
        |worker| without_gate(worker, safeguards),
        |group, device| {
            let mut found = Vec::new();
            for _ in 0..3 {
                let sum = group.start_all_reduce(full(1.0), ReduceOp::Sum)?.wait()?;
                found.push(device.read(&sum)?[7]);
                let held = full(1.0);
                let elsewhere = group.all_reduce(held.clone(), ReduceOp::Sum)?;
                found.push(device.read(&elsewhere)?[7]);
            }
            // Calls that nobody has waited for go on.
            device.load()?;
            Ok(found)
        },
    );
    ended.into_iter().flat_map(Result::unwrap).collect()
}

#[test]
fn what_the_rank_computes_with_a_result_waits_for_nccl() {
    within_seconds(60, || {
        assert_eq!(late(all()), [2.0; 12]);
        assert_ne!(late(Safeguards { streams: false, ..all() }), [2.0; 12], "this test finds nothing");
    });
}

/// A result that nobody takes, while NCCL is late.
#[test]
fn a_dropped_pending_keeps_the_memory_until_nccl_is_done() {
    within_seconds(60, || {
        let fake = Fake::with("late", "1");
        let ended = run(
            &fake,
            |worker| without_gate(worker, all()),
            |group, device| {
                let own = group.rank() as f32;
                drop(group.start_all_gather(full(own), 0)?);
                while fake.count("launched") < 2 {
                    thread::yield_now();
                }
                let held = device.held();
                device.load()?;
                Ok(held)
            },
        );
        assert!(ended.iter().all(|ended| *ended == Ok(2)), "what is read and what is written: {ended:?}");
    });
}

/// Two ranks that send to each other, and have started to receive before: what `meanwhile` does on the device is done
/// while NCCL waits there for the peer.
fn exchange(
    fake: &Fake,
    how: impl Fn(Worker) -> Worker + Sync,
    meanwhile: impl Fn(&FakeDevice, usize) -> Result<()> + Sync,
) -> Vec<Result<()>> {
    run(fake, how, |group, device| {
        let other = 1 - group.rank();
        for round in 0..ROUNDS {
            if round == ROUNDS / 2 {
                group.warmed_up();
            }
            let received = group.start_receive(full(0.0), other)?;
            meanwhile(device, round)?;
            let own = full(0.0);
            device.add(&own, round as f32);
            let sent = group.start_send(own, other)?;
            assert_eq!(device.read(&received.wait()?)?[7], round as f32);
            sent.wait()?;
        }
        Ok(())
    })
}

/// As stages do: what was sent is taken when it is done, before what the peer has sent is received.
#[test]
fn what_was_sent_is_taken_before_the_peer_receives_it() {
    within_seconds(60, || {
        for round in 0..5 {
            let fake = Fake::new();
            let ended = run(
                &fake,
                |worker| without_gate(worker, all()),
                |group, device| {
                    let (own, other) = (group.rank(), 1 - group.rank());
                    // Both ends of a link make its communicator in its first call.
                    let first = group.start_send(full(0.0), other)?;
                    group.receive(full(0.0), other)?;
                    first.wait()?;
                    let sent: Vec<_> = (0..2)
                        .map(|number| {
                            let x = full(0.0);
                            device.add(&x, (10 * round + 2 * own + number) as f32);
                            group.start_send(x, other)
                        })
                        .collect::<Result<_>>()?;
                    for sent in sent {
                        while !sent.is_done() {
                            thread::yield_now();
                        }
                        sent.wait()?;
                    }
                    let read = || Ok::<f32, Error>(device.read(&group.receive(full(0.0), other)?)?[7]);
                    Ok([read()?, read()?])
                },
            );
            assert!(!has_deadlock(&fake, &ended), "{ended:?}");
            let values = |rank: usize| [0, 1].map(|number| (10 * round + 2 * rank + number) as f32);
            assert_eq!(ended, [Ok(values(1)), Ok(values(0))]);
        }
    });
}

#[test]
fn kernels_that_are_loaded_wait_for_no_call_whose_peer_has_not_come() {
    // In the second round, once both have begun to receive on the device, or do not for so long.
    let load = |fake: &Fake, device: &FakeDevice, round: usize, patience: Duration| {
        let begun = Instant::now();
        while round == 1 && fake.count("launched") < 4 + 2 && begun.elapsed() < patience {
            thread::yield_now();
        }
        if round == 1 { device.load() } else { Ok(()) }
    };
    within_seconds(60, move || {
        let fake = Fake::new();
        let ended = exchange(
            &fake,
            |worker| if all().gate { worker.safeguards(all()) } else { without_gate(worker, all()) },
            |device, round| load(&fake, device, round, Duration::from_millis(500)),
        );
        assert!(!has_deadlock(&fake, &ended), "{ended:?}");

        let fake = Fake::new();
        let ended = exchange(
            &fake,
            |worker| without_gate(worker, all()),
            |device, round| load(&fake, device, round, Duration::from_secs(50)),
        );
        assert!(has_deadlock(&fake, &ended), "this test finds nothing");
    });
}

#[test]
fn memory_that_waits_for_the_device_is_found_and_other_memory_waits_for_nothing() {
    within_seconds(60, || {
        let fake = Fake::new();
        assert!(!has_deadlock(&fake, &exchange(&fake, |worker| worker, |_, _| Ok(()))));

        // In ranks that are warmed up, what a rank allocates would wait for the peer, which waits for this one.
        let fake = Fake::new();
        let allocate = |device: &FakeDevice, round: usize| {
            while round == ROUNDS - 1 && fake.count("launched") < 4 * round as u64 + 2 {
                thread::yield_now();
            }
            if round == ROUNDS - 1 { device.load() } else { Ok(()) }
        };
        let ended = exchange(&fake, |worker| without_gate(worker, all()), allocate);
        assert!(has_deadlock(&fake, &ended), "this test finds nothing");
    });
}

/// A program makes many calls before its first step, such as a broadcast for each parameter that is drawn.
#[test]
fn however_many_calls_were_made_a_rank_is_warmed_up_when_its_program_says_so() {
    within_seconds(60, || {
        for is_said in [false, true] {
            let fake = Fake::new();
            let ended = run(
                &fake,
                |worker| worker,
                |group, device| {
                    for _ in 0..ROUNDS {
                        group.broadcast(full(0.0), 0)?;
                    }
                    if is_said {
                        group.warmed_up();
                    }
                    let before = fake.count(&format!("launched on {}", group.rank()));
                    let sum = group.start_all_reduce(full(1.0), ReduceOp::Sum)?;
                    let is_launched = || fake.count(&format!("launched on {}", group.rank())) > before;
                    let begun = Instant::now();
                    while !is_launched() && (is_said || begun.elapsed() < Duration::from_millis(300)) {
                        thread::yield_now();
                    }
                    assert_eq!(is_launched(), is_said);
                    Ok(device.read(&sum.wait()?)?[0])
                },
            );
            assert_eq!(ended, [Ok(2.0), Ok(2.0)]);
        }
    });
}

/// What the rank has asked for before may still load kernels.
#[test]
fn before_calls_go_to_the_device_it_has_what_the_rank_has_asked_for() {
    within_seconds(60, || {
        let ended = run(
            &Fake::new(),
            |worker| worker,
            |group, device| {
                let before = device.settled();
                group.all_reduce(full(1.0), ReduceOp::Sum)?;
                let in_the_warm_up = device.settled();
                group.warmed_up();
                let warm = device.settled();
                // Of no effect, as it is said after each step.
                group.warmed_up();
                group.all_reduce(full(1.0), ReduceOp::Sum)?;
                Ok([in_the_warm_up - before, warm - in_the_warm_up, device.settled() - warm])
            },
        );
        assert_eq!(ended, [Ok([1, 1, 0]), Ok([1, 1, 0])]);
    });
}

/// Burn computes there, on the rank's thread.
#[test]
fn a_panic_before_a_call_goes_to_the_device_releases_the_others() {
    within_seconds(30, || {
        let ended = run(
            &Fake::new(),
            |worker| worker,
            |group, _| {
                if group.rank() == 1 {
                    return group.all_reduce(full(1.0), ReduceOp::Sum).map(drop);
                }
                // Memory is not asked for by other threads.
                let sum = || group.all_reduce(full(1.0), ReduceOp::Sum).map(drop);
                assert!(thread::scope(|scope| scope.spawn(sum).join()).is_err());
                Ok(())
            },
        );
        for error in ended.into_iter().map(Result::unwrap_err) {
            assert!(error.to_string().contains("panicked in a collective"), "{error}");
        }
    });
}

/// As soon as a call is aborted its stream goes on, with numbers that nobody has sent.
#[test]
fn what_a_rank_makes_of_a_failed_call_is_not_told_for_its_failure() {
    within_seconds(60, || {
        for _ in 0..3 {
            let (fake, told) = (Fake::with("hang", "ncclAllReduce"), Arc::new(Mutex::new(Vec::new())));
            let tell = |worker: Worker| {
                let told = told.clone();
                worker.on_failure(move |rank, error: &Error| told.lock().unwrap().push((rank, error.to_string())))
            };
            let ended = run(
                &fake,
                |worker| without_gate(tell(worker), all()).time_limit(Duration::from_secs(1)),
                |group, device| {
                    let sum = group.all_reduce(full(1.0), ReduceOp::Sum)?;
                    device.read(&sum)?;
                    Err::<(), _>(Error::invalid("what was read makes no sense"))
                },
            );
            assert!(ended.iter().all(Result::is_err));
            let told = told.lock().unwrap().clone();
            let is_true = |(_, error): &(Rank, String)| error.contains("has been in NCCL for");
            assert!(!told.is_empty() && told.iter().all(is_true), "{told:?}");
        }
    });
}

/// As where an engine has a part of the ranks: the others have not said it, nor that part.
#[test]
fn a_part_that_is_warmed_up_leaves_its_whole_as_it_was() {
    within_seconds(60, || {
        let ended = run(
            &Fake::new(),
            |worker| worker.compare_first(0),
            |group, device| {
                let alone = group.split("alone", group.rank(), 0)?;
                if group.rank() == 0 {
                    alone.warmed_up();
                }
                let sum = group.all_reduce(full(1.0), ReduceOp::Sum)?;
                Ok(device.read(&sum)?[0])
            },
        );
        assert_eq!(ended, [Ok(2.0), Ok(2.0)]);
    });
}

/// The members of a started call that is compared have come before a later one goes out: said at `Worker::compare_first`.
#[test]
fn between_processes_a_started_call_in_the_warm_up_holds_up_later_ones() {
    within_seconds(60, || {
        for is_warm in [true, false] {
            let ended = run(
                &Fake::new(),
                |worker| worker.compare_first(0).time_limit(Duration::from_secs(2)),
                |group, device| {
                    let pool = Pool::new(group, 2)?;
                    // Communicators are made before.
                    for number in 0..2 {
                        pool.communicator(number).all_reduce(full(1.0), ReduceOp::Sum)?;
                    }
                    if is_warm {
                        group.warmed_up();
                    }
                    let sum = |number: usize| pool.communicator(number).start_all_reduce(full(1.0), ReduceOp::Sum);
                    let sums = if group.rank() == 0 {
                        let first = sum(0)?;
                        [sum(1)?.wait()?, first.wait()?]
                    } else {
                        [sum(1)?.wait()?, sum(0)?.wait()?]
                    };
                    sums.iter().map(|sum| Ok(device.read(sum)?[0])).collect::<Result<Vec<f32>>>()
                },
            );
            match is_warm {
                true => assert!(ended.iter().all(|sums| *sums == Ok(vec![2.0; 2])), "{ended:?}"),
                false => {
                    let told = |ended: &Result<_>| {
                        ended.as_ref().is_err_and(|error| error.to_string().contains("another started call"))
                    };
                    // Or whoever waits on the host, if it is quicker.
                    let is_late = |ended: &Result<_>| matches!(ended, Err(Error::Timeout { .. }));
                    assert!(ended.iter().all(Result::is_err), "{ended:?}");
                    assert!(ended.iter().any(|ended| told(ended) || is_late(ended)), "{ended:?}");
                }
            }
        }
    });
}

/// Over a device whose work is in the order of its rank's stream.
#[test]
fn a_result_that_is_taken_on_another_thread_is_refused() {
    within_seconds(60, || {
        let ended = run(
            &Fake::new(),
            |worker| worker,
            |group, _| {
                let sum = group.start_all_reduce(full(1.0), ReduceOp::Sum)?;
                thread::scope(|scope| scope.spawn(|| sum.wait().map(drop)).join().unwrap())
            },
        );
        let errors: Vec<String> = ended.into_iter().map(|ended| ended.unwrap_err().to_string()).collect();
        assert!(errors.iter().any(|error| error.contains("on the thread that started it")), "{errors:?}");
    });
}

/// Calls of two communicators, where each device has room for one at a time, and the threads of rank 1 come in the other
/// order.
fn in_two_orders(fake: &Fake, safeguards: Safeguards) -> Vec<Result<Vec<f32>>> {
    fake.set("slots", "1");
    let how = |worker: Worker| without_gate(worker.lanes(2), safeguards);
    run(fake, how, |group, device| crossed(fake, group, device))
}

/// The same where ranks are threads that meet on the host.
fn in_two_orders_of_threads(fake: &Fake, safeguards: Safeguards) -> Vec<Result<Vec<f32>>> {
    fake.set("slots", "1");
    let devices: Vec<Arc<FakeDevice>> = (0..2).map(|rank| Arc::new(fake.device(Rank(rank)))).collect();
    let launcher = fake.launcher(2).lanes(2).safeguards(Safeguards { gate: false, ..safeguards });
    let memory = |rank: Rank| Ok(HostMemory::ordered(&devices[rank.0]));
    match launcher.run_on(memory, |group| crossed(fake, &group, &devices[group.rank()])) {
        Ok(values) => values.into_iter().map(Ok).collect(),
        Err((_, error)) => vec![Err(error)],
    }
}

fn crossed(fake: &Fake, group: &ProcessGroup, device: &FakeDevice) -> Result<Vec<f32>> {
    let pool = Pool::new(group, 2)?;
    // The second of rank 0 comes after its first, and the first of rank 1 after its second, if that comes soon.
    let (rank, begun) = (group.rank(), Instant::now());
    let is_first = move || fake.count(&format!("launched on {rank}")) == 0;
    let held = if rank == 0 { "world 1 of rank 0" } else { "world 0 of rank 1" };
    device.hold(held, move || is_first() && begun.elapsed() < Duration::from_millis(1500));
    let started: Vec<_> = (0..2)
        .map(|number| pool.communicator(number).start_all_reduce(full(number as f32), ReduceOp::Sum))
        .collect::<Result<_>>()?;
    started.into_iter().map(|sum| Ok(device.read(&sum.wait()?)?[0])).collect()
}

#[test]
fn calls_of_all_groups_come_to_all_devices_in_their_order() {
    within_seconds(60, || {
        for in_two_orders in [in_two_orders, in_two_orders_of_threads] {
            let fake = Fake::new();
            let ended = in_two_orders(&fake, all());
            assert!(!has_deadlock(&fake, &ended), "{ended:?}");
            assert!(ended.iter().all(|ended| *ended == Ok(vec![0.0, 2.0])), "{ended:?}");

            let fake = Fake::new();
            let ended = in_two_orders(&fake, Safeguards { order: false, ..all() });
            assert!(has_deadlock(&fake, &ended), "this test finds nothing");
        }
    });
}

/// A store that counts.
#[derive(Default)]
struct Counting {
    store: MemoryStore,
    set: AtomicUsize,
    kept: Mutex<Vec<String>>,
}

impl Store for Counting {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), LaunchError> {
        self.set.fetch_add(1, Ordering::SeqCst);
        self.kept.lock().unwrap().push(key.to_string());
        self.store.set(key, value)
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>, LaunchError> {
        self.store.get(key, wait)
    }

    fn forget(&self, key: &str) -> Result<(), LaunchError> {
        self.kept.lock().unwrap().retain(|kept| kept != key);
        self.store.forget(key)
    }
}

/// How many values were set for so many sums, and how many are left.
fn values_for(calls: usize, how: impl Fn(Worker) -> Worker + Sync) -> (usize, usize) {
    values_warmed_up(true, calls, how)
}

fn values_warmed_up(is_warm: bool, calls: usize, how: impl Fn(Worker) -> Worker + Sync) -> (usize, usize) {
    let (fake, store) = (Fake::new(), Arc::new(Counting::default()));
    let ended = run_with(&fake, store.clone(), how, |group, _| {
        if is_warm {
            group.warmed_up();
        }
        (0..calls).try_for_each(|_| group.all_reduce(full(1.0), ReduceOp::Sum).map(drop))?;
        Ok::<_, Error>(())
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!((fake.count("ncclAllReduce"), fake.count("ncclAllGather")), (2 * calls as u64, 0));
    let kept = store.kept.lock().unwrap().len();
    (store.set.load(Ordering::SeqCst), kept)
}

#[test]
fn the_first_calls_of_a_group_are_compared_and_none_by_nccl() {
    within_seconds(60, || {
        let (first, kept) = values_for(32, |worker| worker);
        let (none, _) = values_for(32, |worker| worker.compare_first(0));
        assert_eq!(first - none, 2 * 32, "one of each member, or what the first one says");
        assert_eq!(values_for(100, |worker| worker), (first, kept));
        // Before ranks are warmed up, all are.
        assert_eq!(values_warmed_up(false, 100, |worker| worker), (none + 2 * 100, kept));
        // However many are compared, their values are forgotten.
        assert_eq!(values_for(100, |worker| worker.compare_first(u64::MAX)), (none + 2 * 100, kept));
    });
}

#[test]
fn a_call_that_fails_behind_its_rank_ends_what_waits_for_it_and_is_told_by_the_next() {
    within_seconds(60, || {
        for (switch, function) in [("hang", "ncclAllReduce"), ("async", "ncclAllReduce:1")] {
            let fake = Fake::with(switch, function);
            let how = |worker: Worker| without_gate(worker, all()).time_limit(Duration::from_secs(2));
            let ended = run(&fake, how, |group, device| {
                let sum = group.all_reduce(full(1.0), ReduceOp::Sum);
                if let Ok(sum) = sum {
                    // The stream goes on when the call was aborted.
                    device.read(&sum)?;
                }
                group.all_reduce(full(1.0), ReduceOp::Sum).map(drop)
            });
            for error in ended.into_iter().map(Result::unwrap_err) {
                let expected = if switch == "hang" { "has been in NCCL for" } else { "ncclRemoteError" };
                assert!(error.to_string().contains(expected), "{error}");
            }
        }
    });
}

#[test]
fn calls_that_go_on_behind_are_traced_until_they_are_over() {
    within_seconds(60, || {
        let (fake, trace) = (Fake::new(), Trace::new());
        let ended = run(
            &fake,
            |worker| without_gate(worker, all()),
            |group, device| {
                let traced = group.traced(&trace);
                for _ in 0..5 {
                    let sum = traced.start_all_reduce(full(1.0), ReduceOp::Sum)?.wait()?;
                    assert_eq!(device.read(&sum)?[0], 2.0);
                }
                Ok(())
            },
        );
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        assert_eq!(trace.events().len(), 10);
    });
}
