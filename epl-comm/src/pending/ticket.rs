//! The result of a call on its way from the helper thread to the caller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::buffer::Buffer;
use crate::error::Result;

/// How often the caller looks before it goes to sleep: a few microseconds.
const LOOKS: usize = 200;

/// A place for one result. The caller holds one clone, the job another.
#[derive(Clone, Default)]
pub(crate) struct Ticket(Arc<Place>);

#[derive(Default)]
struct Place {
    result: Mutex<Option<Result<Buffer>>>,
    filled: Condvar,
    is_done: AtomicBool,
}

impl Ticket {
    pub(crate) fn fill(&self, result: Result<Buffer>) {
        *self.0.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.0.is_done.store(true, Ordering::Release);
        self.0.filled.notify_all();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.is_done.load(Ordering::Acquire)
    }

    pub(crate) fn wait(self) -> Result<Buffer> {
        for _ in 0..LOOKS {
            if self.is_done() {
                break;
            }
            core::hint::spin_loop();
        }
        let mut result = self.0.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self.0.filled.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
