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
//! `Tensor::random`, is not held off: that changes the numbers of both. Where it is not known yet whether something draws, it is
//! taken to, and watched: a thread that draws meanwhile may be taken for it, which costs time and no numbers. No two ranks of a
//! process may wait for each other inside a section other than by a call of a group; so threads do not share a layer that is not
//! drawn yet, one of them in a section and the other not: the first use of a parameter is waited for, too.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use epl_comm::{CallHooks, with_call_hooks};

use crate::stable_hash::stable_hash;

/// Guards the generator of the process, between seeding and drawing.
static GENERATOR: Mutex<()> = Mutex::new(());

thread_local! {
    /// The section that this thread is in.
    static SECTION: RefCell<Option<Section>> = const { RefCell::new(None) };
}

/// The seeds of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    /// Of what it draws.
    pub own: u64,
    /// Of what is drawn behind it.
    pub after: u64,
}

struct Section {
    device: Device,
    seeds: Seeds,
    watch: Option<Watch>,
    /// How many calls of groups it has made.
    calls: u64,
    /// How many parts with seeds of their own it has had.
    parts: u64,
    /// None during such a call.
    held: Option<MutexGuard<'static, ()>>,
}

/// Whether something was drawn, as the next numbers of the generator tell.
#[derive(Default)]
struct Watch {
    /// Those that come first if nothing was.
    first: Option<TensorData>,
    has_drawn: bool,
}

impl Section {
    fn hold(&mut self) {
        self.held = Some(GENERATOR.lock().unwrap_or_else(PoisonError::into_inner));
        let Seeds { own, .. } = self.seeds;
        let seed = if self.calls == 0 { own } else { stable_hash(&(own, self.calls)) };
        if let Some(watch) = self.watch.as_mut().filter(|_| !std::thread::panicking()) {
            if self.calls == 0 {
                // Who draws behind it goes on from a seed of one's own, if there was one.
                self.seeds.after = stable_hash(&("after what was watched", &*bits(&next_numbers(&self.device))));
            }
            self.device.seed(seed);
            watch.first = Some(next_numbers(&self.device));
        }
        self.device.seed(seed);
    }

    fn let_go(&mut self) {
        // What unwinds may be the device's own failure.
        if let Some(watch) = self.watch.as_mut().filter(|_| !std::thread::panicking()) {
            watch.has_drawn |= watch.first.take() != Some(next_numbers(&self.device));
        }
        self.device.seed(self.seeds.after);
        self.held = None;
        self.calls += 1;
    }
}

/// Two numbers, which are equal by chance once in 2⁴⁸ times.
fn next_numbers(device: &Device) -> TensorData {
    Tensor::<1>::random([2], Distribution::Default, (&device.clone().without_autodiff(), DType::F32)).into_data()
}

fn bits(numbers: &TensorData) -> Vec<u64> {
    numbers.iter::<f32>().map(|number| u64::from(number.to_bits())).collect()
}

/// Runs `f`, which draws the same numbers on this device whenever it has these seeds. Inside of another section it is a part
/// of that.
pub(crate) fn seeded<T>(device: &Device, seeds: Seeds, f: impl FnOnce() -> T) -> T {
    section(device, seeds, None, f).0
}

/// Runs `f`, which draws, without seeds of its own, and not while another thread is in a section. `f` reads what it draws: a backend
/// may put a draw off until then.
pub(crate) fn held<T>(f: impl FnOnce() -> T) -> T {
    let has_section = SECTION.with_borrow(Option::is_some);
    let _held = (!has_section).then(|| GENERATOR.lock().unwrap_or_else(PoisonError::into_inner));
    f()
}

/// [`seeded`], and whether `f` has drawn.
pub(crate) fn watched<T>(device: &Device, seeds: Seeds, f: impl FnOnce() -> T) -> (T, bool) {
    let (value, watch) = section(device, seeds, Some(Watch::default()), f);
    // What is a part of another section may have.
    (value, watch.is_none_or(|watch| watch.has_drawn))
}

impl Seeds {
    /// For a part of what this thread runs, which is to draw the same when it is run again without the rest: they repeat where
    /// the section that it is in does, or else, where the generator's next numbers do, which are taken.
    pub(crate) fn of_part(device: &Device) -> Self {
        let of_section = |section: &mut Section| {
            section.parts += 1;
            vec![section.seeds.own, section.calls, section.parts]
        };
        let numbers = SECTION.with_borrow_mut(|section| section.as_mut().map(of_section));
        let numbers = numbers.unwrap_or_else(|| held(|| bits(&next_numbers(device))));
        Self { own: stable_hash(&("part", &*numbers)), after: stable_hash(&("after a part", &*numbers)) }
    }
}

/// The device of the section that this thread is in.
pub(crate) fn device() -> Option<Device> {
    SECTION.with_borrow(|section| section.as_ref().map(|section| section.device.clone()))
}

/// [`seeded`], also inside of another section, which goes on behind it with numbers of its own.
pub(crate) fn part<T>(device: &Device, seeds: Seeds, f: impl FnOnce() -> T) -> T {
    let Some(mut outer) = SECTION.take() else { return seeded(device, seeds, f) };
    let held = outer.held.take();
    device.seed(seeds.own);
    SECTION.set(Some(Section { device: device.clone(), seeds, watch: None, calls: 0, parts: 0, held }));
    let _end = PartEnd(Some(outer));
    f()
}

/// Ends a part of a section, also when what was run unwinds.
struct PartEnd(Option<Section>);

impl Drop for PartEnd {
    fn drop(&mut self) {
        let held = SECTION.take().and_then(|part| {
            part.device.seed(part.seeds.after);
            part.held
        });
        SECTION.set(self.0.take().map(|outer| Section { held, ..outer }));
    }
}

fn section<T>(device: &Device, seeds: Seeds, watch: Option<Watch>, f: impl FnOnce() -> T) -> (T, Option<Watch>) {
    if SECTION.with_borrow(Option::is_some) {
        return (f(), None);
    }
    let mut section = Section { device: device.clone(), seeds, watch, calls: 0, parts: 0, held: None };
    section.hold();
    SECTION.set(Some(section));
    let end = SectionEnd;
    let value =
        with_call_hooks(CallHooks { before: || of_thread(Section::let_go), after: || of_thread(Section::hold) }, f);
    let watch = end.section();
    (value, watch)
}

fn of_thread(change: fn(&mut Section)) {
    SECTION.with_borrow_mut(|section| section.as_mut().map(change));
}

/// Ends the section of this thread, also when what was run unwinds.
struct SectionEnd;

impl SectionEnd {
    /// What was watched in the section, which ends.
    fn section(self) -> Option<Watch> {
        of_thread(Section::let_go);
        SECTION.take().and_then(|section| section.watch)
    }
}

impl Drop for SectionEnd {
    fn drop(&mut self) {
        // None, where it has ended well.
        of_thread(Section::let_go);
        SECTION.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device::flex()
    }

    const SEEDS: Seeds = Seeds { own: 5, after: 6 };

    fn draw() -> Vec<f32> {
        Tensor::<1>::random([3], Distribution::Default, &device()).into_data().iter().collect()
    }

    #[test]
    fn what_draws_is_found_and_draws_what_it_does_unwatched() {
        epl_testing::alone(|| {
            let expected = seeded(&device(), SEEDS, draw);
            assert_eq!(watched(&device(), SEEDS, draw), (expected.clone(), true));
            assert_eq!(watched(&device(), SEEDS, || 7), (7, false));
            // Behind it, a seed of one's own decides.
            let behind = |seed: u64| {
                device().seed(seed);
                let _ = watched(&device(), SEEDS, draw);
                draw()
            };
            assert_eq!(behind(1), behind(1));
            assert_ne!(behind(1), behind(2));
            // Also when it unwinds, the next section is one.
            let failed = epl_comm::catch(|| watched(&device(), SEEDS, || -> Vec<f32> { panic!("a layer") }));
            assert!(failed.is_err());
            assert_eq!(seeded(&device(), SEEDS, draw), expected);
        });
    }

    #[test]
    fn who_draws_without_a_section_waits_for_the_end_of_anothers() {
        epl_testing::alone(|| {
            let expected = seeded(&device(), SEEDS, || [draw(), draw()]);
            let beside = std::thread::scope(|scope| {
                seeded(&device(), SEEDS, || {
                    let first = draw();
                    let other = scope.spawn(|| held(draw));
                    // Time enough to draw, if nothing held it.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    assert!(!other.is_finished());
                    [first, draw()]
                })
            });
            assert_eq!(beside, expected);
        });
    }

    /// The parts of a section, with their seeds.
    type Parts = Vec<(Seeds, Vec<f32>)>;

    /// What parts of a section, and the rest of it behind them, draw.
    fn of_section(f: impl Fn(&mut Parts) -> Vec<f32>) -> (Parts, Vec<f32>) {
        let mut parts = Vec::new();
        let rest = seeded(&device(), SEEDS, || f(&mut parts));
        (parts, rest)
    }

    #[test]
    fn a_part_draws_the_same_without_the_rest() {
        epl_testing::alone(|| {
            let two_parts = |parts: &mut Parts| {
                for _ in 0..2 {
                    let seeds = Seeds::of_part(&device());
                    parts.push((seeds, part(&device(), seeds, draw)));
                }
                draw()
            };
            let (parts, rest) = of_section(two_parts);
            assert_ne!(parts[0].1, parts[1].1);
            for (seeds, numbers) in &parts {
                assert_eq!(part(&device(), *seeds, draw), *numbers, "outside");
            }
            assert_eq!(of_section(two_parts), (parts, rest));
            // A part that unwinds leaves the section as it is.
            let failing = |_: &mut Parts| {
                let seeds = Seeds::of_part(&device());
                assert!(epl_comm::catch(|| part(&device(), seeds, || panic!("a layer"))).is_err());
                draw()
            };
            assert_eq!(of_section(failing), of_section(failing));
        });
    }
}
