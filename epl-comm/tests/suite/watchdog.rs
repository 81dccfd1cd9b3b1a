//! A test that would hang fails instead.

use std::any::Any;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// What a run unwinds with that cannot be made here, or of which nothing is seen here.
#[allow(dead_code, reason = "not every binary that has this file skips any")]
pub struct Skipped;

/// Runs `f`, and panics when it takes longer than anything here can.
pub fn within_seconds<T: Send + 'static>(seconds: u64, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        let _ = sender.send(f());
    });
    match receiver.recv_timeout(Duration::from_secs(seconds)) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("hangs: not over after {seconds} s"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) if payload.is::<Skipped>() => {
                let nothing: Box<dyn Any> = Box::new(());
                *nothing.downcast().expect("what is skipped gives nothing")
            }
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => unreachable!("a thread that ends well has sent its value"),
        },
    }
}
