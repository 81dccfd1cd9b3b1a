//! What operations take on the thread that asks for them: a profile of a step.
//!
//! Every [`custom_vjp`](crate::custom_vjp) is an operation, once forward and once backward; a program names others, such as a whole
//! forward, with [`operation`]. The time of an operation is without that of operations inside it, so times add up.

use core::cell::RefCell;
use std::time::{Duration, Instant};

/// Which part of a step an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
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
    pub phase: Phase,
    /// How often it ran.
    pub calls: u64,
    /// The time that it took.
    pub wall: Duration,
    /// The time that all threads of the process computed meanwhile: over `wall`, so many processors were busy. Zero where the
    /// system does not say.
    pub cpu: Duration,
    /// What it was given and gave, in bytes.
    pub bytes: u64,
    /// The floating-point operations that it told.
    pub flops: f64,
}

/// Of an operation that has not ended.
#[derive(Default)]
struct Open {
    inside: [Duration; 2],
    bytes: u64,
    flops: f64,
}

#[derive(Default)]
struct Profile {
    found: Vec<OperationProfile>,
    open: Vec<Open>,
}

thread_local! {
    static PROFILE: RefCell<Option<Profile>> = const { RefCell::new(None) };
}

/// Runs `f`, and returns what the operations took that this thread asked for in it, in the order of their first calls.
pub fn profile_operations<R>(f: impl FnOnce() -> R) -> (R, Vec<OperationProfile>) {
    PROFILE.replace(Some(Profile::default()));
    let value = f();
    (value, PROFILE.take().unwrap_or_default().found)
}

/// Runs `f` as an operation of this name, where this thread is [profiled](profile_operations).
pub fn operation<R>(name: &'static str, phase: Phase, f: impl FnOnce() -> R) -> R {
    let is_on = PROFILE.with_borrow_mut(|profile| profile.as_mut().map(|profile| profile.open.push(Open::default())));
    if is_on.is_none() {
        return f();
    }
    let (begin, cpu_before) = (Instant::now(), cpu_time());
    let value = f();
    let took = [begin.elapsed(), cpu_time().saturating_sub(cpu_before)];
    PROFILE.with_borrow_mut(|profile| {
        let Some(Profile { found, open }) = profile else { return };
        let Open { inside, bytes, flops } = open.pop().unwrap_or_default();
        if let Some(around) = open.last_mut() {
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
    value
}

/// Tells of the operation that runs what it reads and writes, in bytes, and computes, two operations for a multiplication and its
/// addition. Nothing where nobody listens.
pub fn count_work(bytes: u64, flops: f64) {
    PROFILE.with_borrow_mut(|profile| {
        if let Some(open) = profile.as_mut().and_then(|profile| profile.open.last_mut()) {
            open.bytes += bytes;
            open.flops += flops;
        }
    });
}

/// How long the threads of this process have computed.
fn cpu_time() -> Duration {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes one value, which is there.
        if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } == 0 {
            return Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
        }
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::custom_vjp;

    /// 2 x, whose forward does an operation of its own.
    fn doubled(x: Tensor<1>) -> Tensor<1> {
        let double = |x: Tensor<1>| {
            count_work(0, x.dims()[0] as f64);
            x * 2.0
        };
        custom_vjp(
            (x,),
            move |(x,)| (operation("inside", Phase::Forward, || double(x)), ()),
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
        let ((), found) = profile_operations(|| operation("all", Phase::Update, step));
        let took = begin.elapsed();
        let of = |name: &str, phase: Phase| {
            let one = found.iter().find(|one| one.name.contains(name) && one.phase == phase);
            one.unwrap_or_else(|| panic!("{name} in {found:?}"))
        };
        let [inside, forward, backward, all] = [
            of("inside", Phase::Forward),
            of("doubled", Phase::Forward),
            of("doubled", Phase::Backward),
            of("all", Phase::Update),
        ];
        assert_eq!([inside, forward, backward, all].map(|one| one.calls), [2, 2, 2, 1]);
        // Three elements of f32 in, three out.
        assert_eq!([inside, forward, backward, all].map(|one| one.bytes), [0, 48, 48, 0]);
        assert_eq!([inside, forward, backward, all].map(|one| one.flops), [6.0, 0.0, 6.0, 0.0]);
        assert!(found.iter().map(|one| one.wall).sum::<Duration>() <= took, "{found:?} in {took:?}");
        step();
        assert!(profile_operations(|| ()).1.is_empty(), "nobody listened");
    }
}
