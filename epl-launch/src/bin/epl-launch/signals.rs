//! Signals that this process gets, to be looked at between other things.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::flag;

use crate::system::END;

/// The signals that ask a process to end.
pub(crate) struct Signals(Vec<(i32, Arc<AtomicBool>)>);

impl Signals {
    pub fn new() -> io::Result<Self> {
        let one = |signal| {
            let is_there = Arc::new(AtomicBool::new(false));
            flag::register(signal, is_there.clone())?;
            Ok((signal, is_there))
        };
        END.into_iter().map(one).collect::<io::Result<_>>().map(Self)
    }

    /// Whether one has come that nobody has taken.
    pub fn are_there(&self) -> bool {
        self.0.iter().any(|(_, is_there)| is_there.load(Ordering::SeqCst))
    }

    /// One that has come since it was last looked.
    pub fn take(&self) -> Option<i32> {
        self.0.iter().find_map(|(signal, is_there)| is_there.swap(false, Ordering::SeqCst).then_some(*signal))
    }
}
