//! What operations take on the thread that asks for them: a profile of a step.
//!
//! Every [`custom_vjp`](crate::custom_vjp) is an operation, once forward and once backward; a program names others, such as a whole
//! forward, with [`timed`]. The time of an operation is without that of operations inside it, so times add up.

use core::cell::RefCell;
use std::time::{Duration, Instant};

use burn::backend::{DispatchTensor, TensorMetadata};

use crate::awake::looked;
use crate::scoped::scoped;
use crate::system::cpu_time;

/// Which part of a step an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationPhase {
    /// It computed its output.
    Forward,
    /// It computed gradients.
    Backward,
    /// It is of neither: norm, reduction, update.
    Update,
}

/// What all calls of one operation took.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationProfile {
    /// Of a custom operation the path of the function that makes it, with its closure, as [`core::any::type_name`] gives it.
    pub name: &'static str,
    /// Which of its two passes.
    pub phase: OperationPhase,
    /// How often it ran.
    pub calls: u64,
    /// The time that it took.
    pub wall: Duration,
    /// The time that all threads of the process computed meanwhile: over `wall`, so many processors were busy. Zero where the
    /// system does not say.
    pub cpu: Duration,
    /// Its arguments and its results, in bytes; not what backward has kept.
    pub bytes: u64,
    /// The floating-point operations that it told.
    pub flops: f64,
}

/// Of an operation that has not ended.
#[derive(Default)]
struct Running {
    inside: [Duration; 2],
    bytes: u64,
    flops: f64,
}

#[derive(Default)]
struct Profile {
    found: Vec<OperationProfile>,
    running: Vec<Running>,
}

thread_local! {
    static PROFILE: RefCell<Option<Profile>> = const { RefCell::new(None) };
}

/// Runs `f`, and returns what the operations took that this thread asked for in it, in the order of their first calls. What is
/// profiled inside what is profiled is the inner one's alone.
pub fn profile_operations<R>(f: impl FnOnce() -> R) -> (R, Vec<OperationProfile>) {
    scoped(&PROFILE, Profile::default(), || {
        let value = f();
        (value, PROFILE.take().unwrap_or_default().found)
    })
}

/// Runs `f` as an operation of this name, where this thread is [profiled](profile_operations).
pub fn timed<R>(name: &'static str, phase: OperationPhase, f: impl FnOnce() -> R) -> R {
    let start = OperationStart::now();
    let value = f();
    if let Some(start) = start {
        start.end(name, phase);
    }
    value
}

/// When an operation began, and how many then ran, with it.
struct OperationStart {
    wall: Instant,
    cpu: Duration,
    depth: usize,
}

/// The time that all threads have computed, and not looked for work.
fn computed() -> Duration {
    cpu_time().saturating_sub(looked())
}

// Nothing here is generic: a copy of it in every operation would be a fifth of what the crates of layers compile.
impl OperationStart {
    /// None where nobody listens.
    fn now() -> Option<Self> {
        let depth = PROFILE.with_borrow_mut(|profile| {
            let running = &mut profile.as_mut()?.running;
            running.push(Running::default());
            Some(running.len())
        })?;
        Some(Self { wall: Instant::now(), cpu: computed(), depth })
    }

    fn end(self, name: &'static str, phase: OperationPhase) {
        let took = [self.wall.elapsed(), computed().saturating_sub(self.cpu)];
        PROFILE.with_borrow_mut(|profile| {
            let Some(Profile { found, running }) = profile else { return };
            // Operations that unwound inside it have not ended, and are nobody's.
            running.truncate(self.depth);
            let Running { inside, bytes, flops } = running.pop().unwrap_or_default();
            if let Some(around) = running.last_mut() {
                around.inside.iter_mut().zip(took).for_each(|(inside, took)| *inside += took);
            }
            let is_same = |one: &&mut OperationProfile| one.name == name && one.phase == phase;
            let [wall, cpu] = [0, 1].map(|which| took[which].saturating_sub(inside[which]));
            match found.iter_mut().find(is_same) {
                Some(one) => {
                    one.calls += 1;
                    one.wall += wall;
                    one.cpu += cpu;
                    one.bytes += bytes;
                    one.flops += flops;
                }
                None => found.push(OperationProfile { name, phase, calls: 1, wall, cpu, bytes, flops }),
            }
        });
    }
}

/// Tells the floating-point operations of the operation that runs, two for a multiplication and its addition: those that this rank
/// makes now, forward or backward, where a layer tells its segment's forward of all ranks by `Context::count_flops`. Asked where
/// somebody listens.
pub fn count_work(flops: impl FnOnce() -> f64) {
    let mut flops = Some(flops);
    with_running(&mut |running| running.flops += flops.take().map_or(0.0, |flops| flops()));
}

/// Tells what the operation that runs is given, or gives.
pub(super) fn count_bytes<'a>(tensors: impl Iterator<Item = &'a DispatchTensor>) {
    let mut tensors = tensors;
    let bytes = |tensor: &DispatchTensor| (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
    with_running(&mut |running| running.bytes += tensors.by_ref().map(bytes).sum::<u64>());
}

fn with_running(f: &mut dyn FnMut(&mut Running)) {
    PROFILE.with_borrow_mut(|profile| profile.as_mut().and_then(|profile| profile.running.last_mut()).map(f));
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::custom_vjp;

    /// 2 x, whose forward does an operation of its own.
    fn doubled(x: Tensor<1>) -> Tensor<1> {
        let double = |x: Tensor<1>| {
            count_work(|| x.dims()[0] as f64);
            x * 2.0
        };
        custom_vjp(
            (x,),
            move |(x,)| (timed("inside", OperationPhase::Forward, || double(x)), ()),
            move |(), gradient| (Some(double(gradient)),),
        )
    }

    #[test]
    fn operations_are_found_with_their_calls_and_work_and_times_add_up() {
        let step = || {
            let x = Tensor::<1>::ones([3], &Device::flex().autodiff()).require_grad();
            let gradient = x.grad(&doubled(doubled(x.clone())).sum().backward()).unwrap();
            assert_eq!(gradient.into_data().iter::<f32>().collect::<Vec<_>>(), [4.0; 3]);
        };
        let begin = Instant::now();
        let ((), found) = profile_operations(|| timed("all", OperationPhase::Update, step));
        let took = begin.elapsed();
        let of = |name: &str, phase: OperationPhase| {
            let one = found.iter().find(|one| one.name.contains(name) && one.phase == phase);
            one.unwrap_or_else(|| panic!("{name} in {found:?}"))
        };
        let [inside, forward, backward, all] = [
            of("inside", OperationPhase::Forward),
            of("doubled", OperationPhase::Forward),
            of("doubled", OperationPhase::Backward),
            of("all", OperationPhase::Update),
        ];
        assert_eq!([inside, forward, backward, all].map(|one| one.calls), [2, 2, 2, 1]);
        // Three elements of f32 in, three out.
        assert_eq!([inside, forward, backward, all].map(|one| one.bytes), [0, 48, 48, 0]);
        assert_eq!([inside, forward, backward, all].map(|one| one.flops), [6.0, 0.0, 6.0, 0.0]);
        assert!(found.iter().map(|one| one.wall).sum::<Duration>() <= took, "{found:?} in {took:?}");
        step();
        assert!(profile_operations(|| ()).1.is_empty(), "nobody listened");
    }

    #[test]
    fn what_unwinds_is_nobodys() {
        let fails = || timed("inner", OperationPhase::Forward, || panic!("it fails"));
        let caught = || std::panic::catch_unwind(fails).is_err();
        let (failed, found) = profile_operations(|| timed("outer", OperationPhase::Update, caught));
        assert!(failed);
        assert_eq!(found.iter().map(|one| (one.name, one.calls)).collect::<Vec<_>>(), [("outer", 1)]);
        let whole = || profile_operations(|| timed("lost", OperationPhase::Update, || panic!("it fails")));
        let ((), found) = profile_operations(|| assert!(std::panic::catch_unwind(whole).is_err()));
        assert!(found.is_empty(), "{found:?}");
        assert!(PROFILE.with_borrow(Option::is_none), "nobody is left who listens");
    }
}
