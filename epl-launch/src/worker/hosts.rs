//! Which workers share a machine.
//!
//! Containers of a machine count as one host though they may not share memory: what follows from it, that their ranks are
//! neighbours and divide the machine's cores, holds for them too, and no data goes through shared memory because of it. NCCL
//! finds out by itself what two processes share, and MPI tells its own hosts.

use core::time::Duration;

use crate::error::Result;
use crate::store::Store;

/// The first worker on the machine of each, where every one of them tells the name of its own; who tells none is alone
/// on one.
pub(super) fn of_workers(
    store: &impl Store,
    (worker, workers): (usize, usize),
    name: Option<String>,
    limit: Duration,
) -> Result<Vec<usize>> {
    let key = |worker: usize| format!("machine of worker {worker}");
    store.set(&key(worker), name.unwrap_or_else(|| format!("of worker {worker}")).as_bytes())?;
    let names = (0..workers).map(|other| store.get(&key(other), limit)).collect::<Result<Vec<_>>>()?;
    let first = |name: &Vec<u8>| names.iter().position(|other| other == name).unwrap_or(0);
    Ok(names.iter().map(first).collect())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn workers_of_one_machine_have_the_same_first_one() {
        let store = MemoryStore::new();
        let names = [Some("a"), None, Some("b"), Some("a"), None, Some("b")];
        let told = thread::scope(|scope| {
            let tell = |(worker, name): (usize, &Option<&str>)| {
                let (store, name) = (&store, name.map(String::from));
                scope.spawn(move || of_workers(store, (worker, 6), name, Duration::from_secs(60)))
            };
            let threads: Vec<_> = names.iter().enumerate().map(tell).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert_eq!(told, vec![Ok(vec![0, 1, 2, 0, 4, 2]); 6]);
        // Again, as a program may run several times.
        assert_eq!(of_workers(&store, (0, 1), Some("a".into()), Duration::ZERO), Ok(vec![0]));
        assert!(of_workers(&store, (0, 7), Some("a".into()), Duration::ZERO).is_err());
    }
}
