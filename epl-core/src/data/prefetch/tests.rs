//! Order, bounds, failures and ends, whatever threads do when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// The numbers from 0 on.
fn count(to: u64) -> impl FnMut() -> Option<Result<u64>> {
    let mut numbers = 0..to;
    move || numbers.next().map(Ok)
}

fn ahead(threads: usize, each: usize) -> PrefetchConfig {
    PrefetchConfig::new(threads, each).unwrap()
}

/// Makes an item when it is told to, and tells when it begins with one.
struct Gate {
    begun: Receiver<u64>,
    open: Vec<Sender<()>>,
}

/// A gate before each of so many items, and what makes them behind it.
fn gate(items: usize) -> (Gate, impl Fn(u64) -> Result<u64> + Send + Sync) {
    let (begin, begun) = channel();
    let (open, gates): (Vec<_>, Vec<_>) = (0..items).map(|_| channel()).unzip();
    let gates: Vec<Mutex<Receiver<()>>> = gates.into_iter().map(Mutex::new).collect();
    let begin = Mutex::new(begin);
    let make = move |number: u64| {
        let _ = begin.lock().unwrap().send(number);
        // An error: the gate is gone, and nobody waits for the item.
        let _ = gates[number as usize].lock().unwrap().recv();
        Ok(number)
    };
    (Gate { begun, open }, make)
}

#[test]
fn items_come_in_order_and_end() {
    for (threads, each) in [(1, 1), (1, 2), (2, 1), (3, 4)] {
        let mut prefetch = Prefetch::start(ahead(threads, each), count(50), Ok).unwrap();
        let all: Vec<u64> = prefetch.by_ref().map(Result::unwrap).collect();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        assert!(prefetch.next().is_none(), "it stays at its end");
    }
}

#[test]
fn items_are_made_side_by_side_and_taken_in_order() {
    let (gate, make) = gate(3);
    let mut items = Prefetch::start(ahead(3, 1), count(3), make).unwrap();
    let mut begun: Vec<u64> = gate.begun.iter().take(3).collect();
    begun.sort_unstable();
    assert_eq!(begun, [0, 1, 2], "none waits for another");
    // The last one first.
    gate.open.iter().rev().for_each(|open| open.send(()).unwrap());
    assert_eq!(items.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn only_items_one_after_the_other_are_ahead() {
    let (gate, make) = gate(4);
    let mut items = Prefetch::start(ahead(3, 1), count(4), make).unwrap();
    assert_eq!(gate.begun.iter().take(3).count(), 3);
    let made_of = |item: usize| {
        gate.open[item].send(()).unwrap();
        let shared = &items.shared;
        let queue = shared.ready.wait_while(shared.queue(), |queue| queue.items[item].is_none()).unwrap();
        queue.made()
    };
    assert_eq!([made_of(1), made_of(0), made_of(2)], [0, 2, 3]);
    assert_eq!((items.next().unwrap().unwrap(), items.ahead()), (0, 3));
    assert_eq!(gate.begun.recv().unwrap(), 3, "there is room for one more");
    gate.open[3].send(()).unwrap();
    assert_eq!(items.map(Result::unwrap).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn no_more_items_are_begun_than_there_is_room_for() {
    for (threads, each) in [(1, 2), (2, 1), (2, 2)] {
        let room = threads * each;
        let begun = Arc::new(AtomicUsize::new(0));
        let count_begun = begun.clone();
        let mut endless = 0..;
        let draw = move || {
            count_begun.fetch_add(1, Ordering::SeqCst);
            endless.next().map(Ok)
        };
        let mut items = Prefetch::<u64>::start(ahead(threads, each), draw, Ok).unwrap();
        for taken in 1..20 {
            assert_eq!(items.next().unwrap().unwrap(), taken - 1);
            assert!(begun.load(Ordering::SeqCst) <= taken as usize + room);
        }
        drop(items);
        assert_eq!(Arc::strong_count(&begun), 1, "all threads are gone");
    }
}

#[test]
fn a_full_queue_is_counted() {
    let mut items = Prefetch::start(ahead(1, 3), count(9), Ok).unwrap();
    let is_full = |queue: &Queue<u64>| queue.items.len() == 3 && queue.items.iter().all(Option::is_some);
    for expected in 0..3 {
        let queue = items.shared.ready.wait_while(items.shared.queue(), |queue| !is_full(queue)).unwrap();
        drop(queue);
        assert_eq!(items.next().unwrap().unwrap(), expected);
        assert_eq!(items.ahead(), 3);
    }
}

/// The items that come, and the error that ends them.
fn until_error(mut items: Prefetch<u64>) -> (Vec<u64>, String) {
    let mut made = Vec::new();
    loop {
        match items.next().expect("an error before the end") {
            Ok(item) => made.push(item),
            Err(error) => {
                assert!(items.next().is_none(), "nothing follows an error");
                return (made, error.to_string());
            }
        }
    }
}

#[test]
fn an_error_ends_the_items_where_it_happened() {
    for threads in [1, 3] {
        let make = |number| if number == 5 { Err(Error::invalid("no disk")) } else { Ok(number) };
        let (made, error) = until_error(Prefetch::start(ahead(threads, 4), count(50), make).unwrap());
        assert_eq!((made, error.as_str()), ((0..5).collect(), "no disk"));
        let mut next = count(5);
        let draw = move || next().or_else(|| Some(Err(Error::invalid("no sample"))));
        let (made, error) = until_error(Prefetch::start(ahead(threads, 4), draw, Ok).unwrap());
        assert_eq!((made, error.as_str()), ((0..5).collect(), "no sample"));
    }
}

#[test]
fn a_panic_becomes_an_error_where_it_happened() {
    for threads in [1, 3] {
        let make = |number| {
            assert!(number != 5, "a bad row");
            Ok(number)
        };
        let (made, error) = until_error(Prefetch::start(ahead(threads, 4), count(50), make).unwrap());
        assert!(made == (0..5).collect::<Vec<_>>() && error.contains("a bad row"), "{made:?} {error}");
        let mut next = count(5);
        let draw = move || Some(next().expect("a bad sampler"));
        let (made, error) = until_error(Prefetch::start(ahead(threads, 4), draw, Ok).unwrap());
        assert!(made == (0..5).collect::<Vec<_>>() && error.contains("a bad sampler"), "{made:?} {error}");
    }
}

#[test]
fn dropped_in_the_middle_all_threads_end() {
    let (gate, make) = gate(3);
    let held = Arc::new(());
    let hold = held.clone();
    let items = Prefetch::start(ahead(3, 1), count(3), move |number| {
        let _hold = &hold;
        make(number)
    })
    .unwrap();
    assert_eq!(gate.begun.iter().take(3).count(), 3);
    drop(gate);
    drop(items);
    assert_eq!(Arc::strong_count(&held), 1, "all threads are gone");
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    assert!(PrefetchConfig::new(0, 2).unwrap_err().to_string().contains("0 threads"));
    assert!(PrefetchConfig::new(4, 0).unwrap_err().to_string().contains("by 4 threads, 0 steps"));
}
