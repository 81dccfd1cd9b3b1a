//! A thread that works ahead, a bounded number of items.
//!
//! ```text
//! thread    | item 3 | item 4 | item 5 |  waits: the queue is full   | item 6 ...
//! queue                 3        4        (depth 2)
//! consumer       step 1     | step 2     | step 3
//! ```
//!
//! An error or a panic of the thread comes out where its item would have. Dropping the [`Prefetch`] closes the
//! queue, which ends the thread after the item it is at, and waits for that.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Produces items on a thread of its own, ahead of who takes them.
#[derive(Debug)]
pub struct Prefetch<T> {
    items: Option<Receiver<Result<T>>>,
    thread: Option<JoinHandle<()>>,
    waited: Duration,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Starts the thread. It calls `produce` until it returns `None` or an error, at most `depth` items ahead.
    ///
    /// # Errors
    ///
    /// When the operating system gives no thread.
    pub fn start(depth: usize, mut produce: impl FnMut() -> Option<Result<T>> + Send + 'static) -> Result<Self> {
        let (sender, items) = sync_channel(depth);
        let run = move || {
            loop {
                let item = match epl_comm::catch(&mut produce) {
                    Ok(None) => return,
                    Ok(Some(item)) => item,
                    Err(panic) => Err(Error::invalid(format!("the thread that loads data failed: {panic}"))),
                };
                let last = item.is_err();
                // Nobody takes it any more: the consumer is gone.
                if sender.send(item).is_err() || last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("epl-data".into()).spawn(run);
        let thread = thread.map_err(|cause| Error::invalid(format!("no thread to load data on: {cause}")))?;
        Ok(Self { items: Some(items), thread: Some(thread), waited: Duration::ZERO })
    }

    /// How long the last [`next`](Iterator::next) waited for its item.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let start = Instant::now();
        let item = self.items.as_ref().and_then(|items| items.recv().ok());
        self.waited = start.elapsed();
        item
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        drop(self.items.take());
        if let Some(thread) = self.thread.take() {
            // It caught its own panic and sent it on.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn items_come_in_order_and_end() {
        let mut numbers = 0..5;
        let items = Prefetch::start(2, move || numbers.next().map(Ok)).unwrap();
        assert_eq!(items.map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_error_ends_the_items_where_it_happened() {
        let mut number = 0;
        let fail = move || {
            number += 1;
            Some(if number < 3 { Ok(number) } else { Err(Error::invalid("no disk")) })
        };
        let items: Vec<_> = Prefetch::start(8, fail).unwrap().collect();
        assert_eq!(items.len(), 3);
        assert_eq!(items[2].as_ref().unwrap_err().to_string(), "no disk");
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let mut items = Prefetch::<u8>::start(1, || panic!("a bad row")).unwrap();
        let message = items.next().unwrap().unwrap_err().to_string();
        assert!(message.contains("a bad row"), "{message}");
        assert!(items.next().is_none());
    }

    #[test]
    fn the_thread_stays_a_bounded_number_ahead_and_ends_when_dropped() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let mut items = Prefetch::start(2, move || Some(Ok(count.fetch_add(1, Ordering::SeqCst)))).unwrap();
        assert_eq!(items.next().unwrap().unwrap(), 0);
        std::thread::sleep(Duration::from_millis(50));
        // One was taken, two are queued, one more is ready to be sent.
        assert!(made.load(Ordering::SeqCst) <= 4);
        drop(items);
        assert_eq!(Arc::strong_count(&made), 1, "the thread is gone");
    }

    #[test]
    fn waiting_is_measured() {
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            Some(Ok(()))
        };
        let mut items = Prefetch::start(1, slow).unwrap();
        items.next();
        assert!(items.waited() >= Duration::from_millis(5), "{:?}", items.waited());
        std::thread::sleep(Duration::from_millis(60));
        items.next();
        assert!(items.waited() < Duration::from_millis(15), "{:?}", items.waited());
    }
}
