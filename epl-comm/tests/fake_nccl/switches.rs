//! What the tests set, and what they count.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

static SWITCHES: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(|| {
    let named = |name: &str| Some((name.to_string(), std::env::var(format!("FAKE_NCCL_{}", name.to_uppercase())).ok()?));
    Mutex::new(["fail", "async", "hang", "version"].into_iter().filter_map(named).collect())
});
static COUNTS: LazyLock<Mutex<HashMap<String, u64>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a switch is on for a function that a rank calls.
pub fn is_on(switch: &str, function: &str, rank: usize) -> bool {
    let value = lock(&SWITCHES).get(switch).cloned();
    value.is_some_and(|value| value == function || value == format!("{function}:{rank}"))
}

/// A switch that is a number; 0 where it is not on.
pub fn number(switch: &str) -> usize {
    lock(&SWITCHES).get(switch).and_then(|value| value.parse().ok()).unwrap_or(0)
}

pub fn version() -> i32 {
    lock(&SWITCHES).get("version").and_then(|version| version.parse().ok()).unwrap_or(23_001)
}

pub fn count(what: &str) {
    *lock(&COUNTS).entry(what.to_string()).or_default() += 1;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_nccl_set(switch: *const c_char, value: *const c_char) {
    let text = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy().to_string();
    lock(&SWITCHES).insert(text(switch), text(value));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_nccl_count(what: *const c_char) -> u64 {
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy().to_string();
    lock(&COUNTS).get(&what).copied().unwrap_or(0)
}
