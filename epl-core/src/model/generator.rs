//! Burn's generator, held and seeded while something draws from it.
//!
//! ```text
//! rank 0, a thread    [ seed, draws ][ all_reduce ··············· ][ seed + 1, draws ]
//! rank 1, a thread                   [ seed, draws ][ all_reduce  ]                   [ seed + 1, draws ]
//! ```
//!
//! A backend has one generator for all devices and threads of a process, so that threads wait for each other here, and
//! processes do not. Nobody waits for another rank while it holds it: around a call of a group it lets go, and seeds anew
//! behind it, by how many calls it has made.
//!
//! Behind every section it is seeded once more, so that whoever draws next does not continue its numbers, and a backend that
//! puts draws off makes them now. Who draws at the same time without a section, such as a thread of one's own that calls
//! `Tensor::random`, is not held off: that changes the numbers of both.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
use epl_comm::{CallHooks, with_call_hooks};

use crate::stable_hash::stable_hash;

/// Guards the generator of the process, between seeding and drawing.
static GENERATOR: Mutex<()> = Mutex::new(());

thread_local! {
    /// The section that this thread is in.
    static SECTION: RefCell<Option<Section>> = const { RefCell::new(None) };
}

/// The seeds of a section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeds {
    /// Of what it draws.
    pub own: u64,
    /// Of what is drawn behind it.
    pub after: u64,
}

struct Section {
    device: Device,
    seeds: Seeds,
    /// How many calls of groups it has made.
    calls: u64,
    /// None during such a call.
    held: Option<MutexGuard<'static, ()>>,
}

impl Section {
    fn hold(&mut self) {
        self.held = Some(GENERATOR.lock().unwrap_or_else(PoisonError::into_inner));
        let Seeds { own, .. } = self.seeds;
        self.device.seed(if self.calls == 0 { own } else { stable_hash(&(own, self.calls)) });
    }

    fn let_go(&mut self) {
        self.device.seed(self.seeds.after);
        self.held = None;
        self.calls += 1;
    }
}

/// Runs `f`, which draws the same numbers on this device whenever it has these seeds. Inside of another section it is a part
/// of that.
pub(crate) fn seeded<T>(device: &Device, seeds: Seeds, f: impl FnOnce() -> T) -> T {
    if SECTION.with_borrow(Option::is_some) {
        return f();
    }
    let mut section = Section { device: device.clone(), seeds, calls: 0, held: None };
    section.hold();
    SECTION.set(Some(section));
    let _end = SectionEnd;
    with_call_hooks(CallHooks { before: || of_thread(Section::let_go), after: || of_thread(Section::hold) }, f)
}

fn of_thread(change: fn(&mut Section)) {
    SECTION.with_borrow_mut(|section| section.as_mut().map(change));
}

/// Ends the section of this thread, also when what was run unwinds.
struct SectionEnd;

impl Drop for SectionEnd {
    fn drop(&mut self) {
        of_thread(Section::let_go);
        SECTION.set(None);
    }
}
