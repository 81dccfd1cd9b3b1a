//! Threads that work ahead, a bounded number of items.
//!
//! ```text
//! thread 0  | item 1      | item 3     |  waits: 2 items are ready or being made      | item 5 ...
//! thread 1  | item 2  |  waits            | item 4                 |
//! consumer                step 1          | step 2        | step 3
//! ```
//!
//! What an item is made of is drawn by one thread at a time; items are made side by side, and taken in the order in which
//! they were drawn. An error or a panic comes out where its item would have, and is the last one. Dropping the
//! [`Prefetch`] ends each thread after the item it is at, and waits for that.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};

/// How far data is loaded ahead, and by how many threads of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchConfig {
    threads: usize,
    each: usize,
}

impl Default for PrefetchConfig {
    /// One thread, two items ahead: ranks are threads too, so that one each is as many again.
    fn default() -> Self {
        Self { threads: 1, each: 2 }
    }
}

impl PrefetchConfig {
    /// So many threads that load so many items ahead each, the one included that they are at.
    ///
    /// # Errors
    ///
    /// When a number is zero.
    pub fn new(threads: usize, each: usize) -> Result<Self> {
        if threads == 0 || each == 0 {
            return Err(Error::invalid(format!(
                "data is loaded by {threads} threads, {each} steps ahead each (io.num_workers, io.prefetch); both numbers \
                 must be at least 1"
            )));
        }
        Ok(Self { threads, each })
    }

    /// What `io.num_workers` and `io.prefetch` say.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn from_config(config: &Config) -> Result<Self> {
        Self::new(config.io.num_workers, config.io.prefetch)
    }
}

/// Makes items on threads of its own, ahead of who takes them.
#[derive(Debug)]
pub struct Prefetch<T> {
    shared: Arc<PrefetchState<T>>,
    threads: Vec<JoinHandle<()>>,
    failed: bool,
    waited: Duration,
    ahead: usize,
}

#[derive(Debug)]
struct PrefetchState<T> {
    queue: Mutex<Queue<T>>,
    /// The next item is ready, or will not come.
    ready: Condvar,
    /// An item was taken, or nobody will take any.
    room: Condvar,
}

#[derive(Debug)]
struct Queue<T> {
    /// In the order of drawing; none: it is being made.
    items: VecDeque<Option<Result<T>>>,
    /// How many items were taken: the number of the first one here.
    taken: u64,
    /// Whether nothing more is drawn: at the end, after an error, or when nobody takes it.
    closed: bool,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Starts the threads. They call `draw` until it returns `None` or an error, and `make` of all that was drawn.
    ///
    /// # Errors
    ///
    /// When the operating system gives no thread.
    pub fn start<J: 'static>(
        ahead: PrefetchConfig,
        draw: impl FnMut() -> Option<Result<J>> + Send + 'static,
        make: impl Fn(J) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let queue = Queue { items: VecDeque::new(), taken: 0, closed: false };
        let shared = Arc::new(PrefetchState { queue: Mutex::new(queue), ready: Condvar::new(), room: Condvar::new() });
        let mut prefetch = Self { shared, threads: Vec::new(), failed: false, waited: Duration::ZERO, ahead: 0 };
        let source = Arc::new((Mutex::new(draw), make));
        let depth = ahead.threads.saturating_mul(ahead.each);
        for number in 0..ahead.threads {
            let (shared, source) = (prefetch.shared.clone(), source.clone());
            let run = move || while shared.work(&source.0, &source.1, depth) {};
            let thread = std::thread::Builder::new().name(format!("epl-data-{number}")).spawn(run);
            let thread = thread.map_err(|cause| Error::invalid(format!("no thread to load data on: {cause}")))?;
            prefetch.threads.push(thread);
        }
        Ok(prefetch)
    }

    /// How long the last [`next`](Iterator::next) waited for its item.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How many items, one after the other, were ready when it was called.
    pub fn ahead(&self) -> usize {
        self.ahead
    }
}

impl<T> Queue<T> {
    /// How many items, one after the other, are made.
    fn made(&self) -> usize {
        self.items.iter().take_while(|item| item.is_some()).count()
    }
}

impl<T> PrefetchState<T> {
    /// Draws and makes one item. Whether there may be another.
    fn work<J>(
        &self,
        draw: &Mutex<impl FnMut() -> Option<Result<J>>>,
        make: &impl Fn(J) -> Result<T>,
        depth: usize,
    ) -> bool {
        // Held from the item's number to what it is made of, so that numbers are in the order of drawing.
        let mut drawing = draw.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(number) = self.open(depth) else { return false };
        let job = match caught(&mut *drawing) {
            Ok(Some(job)) => job,
            Ok(None) => {
                self.end();
                return false;
            }
            Err(panic) => Err(panic),
        };
        let drawn = job.is_ok();
        if !drawn {
            self.close();
        }
        drop(drawing);
        let item = job.and_then(|job| caught(|| make(job)).and_then(|made| made));
        self.fill(number, item);
        drawn
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing panics while it is held.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for an item, and numbers it; none if no other item is to be made.
    fn open(&self, depth: usize) -> Option<u64> {
        let is_full = |queue: &mut Queue<T>| !queue.closed && queue.items.len() >= depth;
        let mut queue = self.room.wait_while(self.queue(), is_full).unwrap_or_else(PoisonError::into_inner);
        if queue.closed {
            return None;
        }
        queue.items.push_back(None);
        Some(queue.taken + queue.items.len() as u64 - 1)
    }

    /// Takes the item back that was opened last: there is none.
    fn end(&self) {
        let mut queue = self.queue();
        queue.items.pop_back();
        queue.closed = true;
        self.ready.notify_all();
    }

    fn close(&self) {
        self.queue().closed = true;
        self.room.notify_all();
    }

    fn fill(&self, number: u64, item: Result<T>) {
        let mut queue = self.queue();
        queue.closed |= item.is_err();
        let place = (number - queue.taken) as usize;
        queue.items[place] = Some(item);
        self.ready.notify_all();
    }
}

/// The result of `f`, or its panic as an error.
fn caught<R>(f: impl FnOnce() -> R) -> Result<R> {
    epl_comm::catch(f).map_err(|panic| Error::invalid(format!("the thread that loads data failed: {panic}")))
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.failed {
            return None;
        }
        let start = Instant::now();
        let queue = self.shared.queue();
        self.ahead = queue.made();
        let is_coming = |queue: &mut Queue<T>| queue.items.front().map_or(!queue.closed, Option::is_none);
        let waiting = self.shared.ready.wait_while(queue, is_coming);
        let mut queue = waiting.unwrap_or_else(PoisonError::into_inner);
        let item = queue.items.pop_front().flatten();
        queue.taken += u64::from(item.is_some());
        // Before another thread is woken, which may take this one's core.
        self.waited = start.elapsed();
        drop(queue);
        self.shared.room.notify_all();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            // It caught its own panics and handed them on.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
