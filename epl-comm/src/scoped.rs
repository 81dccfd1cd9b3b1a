//! What a thread has for as long as some code runs.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Runs `f` while the thread has this value, and then puts back what it had, also when `f` unwinds.
pub(crate) fn scoped<T, R>(key: &'static LocalKey<RefCell<Option<T>>>, value: T, f: impl FnOnce() -> R) -> R {
    struct Back<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);

    impl<T> Drop for Back<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }

    let _back = Back(key, key.replace(Some(value)));
    f()
}
