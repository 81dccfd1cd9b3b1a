//! Devices with streams and time, as a driver has them.
//!
//! A stream is a queue of kernels, waits for events, and groups of NCCL's calls. Nothing on it is done before somebody wants
//! it: a host that waits for the stream, or another stream that waits for an event behind it. Only what is put on an *eager*
//! stream, NCCL's own, is wanted at once, so that NCCL comes as early as what it was told to wait for lets it, and the
//! kernels of a rank as late; with the switch `late` it is NCCL that comes as late as possible. So who forgets to wait is
//! found at once, and always.
//!
//! A host that waits for a whole device holds its driver: nothing is put on the device meanwhile. `slots` says how many
//! groups of calls have room on a device at once. Devices, or streams, that wait for each other in a circle are found when the
//! circle is closed: then everything fails, and `deadlock` was counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::clique::{Clique, Op};
use crate::switches::{count, number};

static WORLD: LazyLock<(Mutex<World>, Condvar)> = LazyLock::new(Default::default);

thread_local! {
    static CURRENT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

type Kernel = extern "C" fn(*mut c_void);

#[derive(Default)]
struct World {
    streams: Vec<Stream>,
    /// A stream, and how much of it was put there before.
    events: Vec<(usize, u64)>,
    /// Devices for which a host waits, and until when.
    awaited: BTreeMap<usize, Vec<(usize, u64)>>,
    has_deadlock: bool,
}

struct Stream {
    device: usize,
    is_eager: bool,
    queue: VecDeque<Item>,
    put: u64,
    done: u64,
    wanted: u64,
}

enum Item {
    Kernel(Kernel, usize),
    Wait(usize, u64),
    Group(Group),
}

/// Calls that run together, as one kernel.
pub struct Group {
    /// The communicators, the members, and whether the call never ends.
    pub ops: Vec<(Arc<Clique>, usize, Op, bool)>,
    pub left: Arc<AtomicUsize>,
    pub is_resident: bool,
}

impl Group {
    fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

fn lock() -> MutexGuard<'static, World> {
    WORLD.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sleep(world: MutexGuard<'static, World>) -> MutexGuard<'static, World> {
    WORLD.1.wait(world).unwrap_or_else(PoisonError::into_inner)
}

pub fn current() -> usize {
    CURRENT.get()
}

pub fn has_deadlock() -> bool {
    lock().has_deadlock
}

/// Goes on where something has changed elsewhere.
pub fn stir() {
    lock().progress();
    WORLD.1.notify_all();
}

pub fn put_group(stream: usize, group: Group) {
    put(stream, Item::Group(group));
    count("launched");
    count(&format!("launched on {}", lock().streams[stream].device));
}

fn put(stream: usize, item: Item) {
    let mut world = lock();
    let device = world.streams[stream].device;
    while world.awaited.contains_key(&device) && !world.has_deadlock {
        world = sleep(world);
    }
    let late = number("late") > 0;
    let stream = &mut world.streams[stream];
    stream.queue.push_back(item);
    stream.put += 1;
    if stream.is_eager && !late {
        stream.wanted = stream.put;
    }
    world.progress();
    world.look_for_a_circle();
    WORLD.1.notify_all();
}

impl World {
    /// Does what is wanted and can be done.
    fn progress(&mut self) {
        while (0..self.streams.len()).any(|stream| self.step(stream)) {}
    }

    /// Whether something has changed.
    fn step(&mut self, index: usize) -> bool {
        let stream = &self.streams[index];
        if stream.done >= stream.wanted {
            return false;
        }
        let device = stream.device;
        let is_done = match stream.queue.front() {
            Some(Item::Kernel(kernel, argument)) => {
                kernel(*argument as *mut c_void);
                true
            }
            Some(Item::Wait(other, until)) => {
                let (other, until) = (*other, *until);
                let other = &mut self.streams[other];
                if other.done < until && other.wanted < until {
                    other.wanted = until;
                    return true;
                }
                other.done >= until
            }
            Some(Item::Group(group)) if group.is_resident => group.is_over(),
            Some(Item::Group(_)) => {
                let slots = number("slots");
                if slots > 0 && self.resident(device).count() >= slots {
                    return false;
                }
                let Some(Item::Group(group)) = self.streams[index].queue.front_mut() else { return false };
                group.is_resident = true;
                for (clique, rank, op, hangs) in &group.ops {
                    clique.post(*rank, op.clone(), *hangs);
                }
                return true;
            }
            None => false,
        };
        if is_done {
            let stream = &mut self.streams[index];
            stream.queue.pop_front();
            stream.done += 1;
        }
        is_done
    }

    /// The groups that are on a device and not over.
    fn resident(&self, device: usize) -> impl Iterator<Item = &Group> {
        let of_device = self.streams.iter().filter(move |stream| stream.device == device);
        of_device.filter_map(|stream| match stream.queue.front() {
            Some(Item::Group(group)) if group.is_resident && !group.is_over() => Some(group),
            _ => None,
        })
    }

    /// Whether something is left to do on a device until the one that waits for it goes on, or that has no room on it.
    fn is_stuck(&self, device: usize) -> bool {
        let slots = number("slots");
        let is_full = slots > 0 && self.resident(device).count() >= slots;
        self.awaited.contains_key(&device) || is_full
    }

    /// Devices that wait for each other's, in a circle: their kernels for calls that cannot be put on, or have no room.
    fn look_for_a_circle(&mut self) {
        let devices: BTreeSet<usize> = self.streams.iter().map(|stream| stream.device).collect();
        let mut stuck: BTreeSet<usize> = devices.into_iter().filter(|device| self.is_stuck(*device)).collect();
        loop {
            let waits = |device: &usize| {
                let ops = self.resident(*device).flat_map(|group| &group.ops);
                ops.flat_map(|(clique, rank, op, _)| clique.missing(*rank, op)).any(|other| stuck.contains(&other))
            };
            let next: BTreeSet<usize> = stuck.iter().copied().filter(|device| waits(device)).collect();
            if next.len() == stuck.len() {
                break;
            }
            stuck = next;
        }
        if (!stuck.is_empty() || self.has_circle_of_streams()) && !self.has_deadlock {
            count("deadlock");
            self.has_deadlock = true;
        }
    }

    /// Streams of which each waits for another one of them: for an event behind it, or for a call of a peer in it.
    fn has_circle_of_streams(&self) -> bool {
        let mut stuck: BTreeSet<usize> = (0..self.streams.len()).collect();
        loop {
            let next: BTreeSet<usize> = stuck.iter().copied().filter(|stream| self.waits_for(*stream, &stuck)).collect();
            if next.len() == stuck.len() {
                return !stuck.is_empty();
            }
            stuck = next;
        }
    }

    /// Whether what is first on a stream cannot be over before one of `others` goes on.
    fn waits_for(&self, stream: usize, others: &BTreeSet<usize>) -> bool {
        match self.streams[stream].queue.front() {
            Some(Item::Wait(other, until)) => self.streams[*other].done < *until && others.contains(other),
            Some(Item::Group(group)) if group.is_resident && !group.is_over() => {
                let missing = group.ops.iter().flat_map(|(clique, rank, op, _)| {
                    clique.missing_members(*rank, op).into_iter().map(move |member| (clique, member))
                });
                // What was not put anywhere may still come.
                missing.into_iter().any(|(clique, member)| {
                    self.queued(clique, member).is_some_and(|queued| others.contains(&queued))
                })
            }
            _ => false,
        }
    }

    /// The stream on which the next call of a member waits for its turn.
    fn queued(&self, clique: &Arc<Clique>, member: usize) -> Option<usize> {
        let is_of = |item: &Item| match item {
            Item::Group(group) if !group.is_resident => {
                group.ops.iter().any(|(other, rank, ..)| Arc::ptr_eq(other, clique) && *rank == member)
            }
            _ => false,
        };
        self.streams.iter().position(|stream| stream.queue.iter().any(is_of))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_bind(device: usize) {
    CURRENT.set(device);
}

/// A stream, told by its number from 1 on.
#[unsafe(no_mangle)]
pub extern "C" fn fake_stream(device: usize, is_eager: bool) -> usize {
    let mut world = lock();
    world.streams.push(Stream { device, is_eager, queue: VecDeque::new(), put: 0, done: 0, wanted: 0 });
    world.streams.len()
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_launch(stream: usize, kernel: Kernel, argument: usize) {
    put(stream - 1, Item::Kernel(kernel, argument));
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_record(stream: usize) -> usize {
    let mut world = lock();
    let event = (stream - 1, world.streams[stream - 1].put);
    world.events.push(event);
    world.events.len() - 1
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_wait(stream: usize, event: usize) {
    let (other, until) = lock().events[event];
    put(stream - 1, Item::Wait(other, until));
}

/// Whether an event is over. Who asks does not want it to be.
#[unsafe(no_mangle)]
pub extern "C" fn fake_is_over(event: usize) -> bool {
    let mut world = lock();
    world.progress();
    let (stream, until) = world.events[event];
    world.streams[stream].done >= until
}

/// Waits for a stream; false when that is in vain.
#[unsafe(no_mangle)]
pub extern "C" fn fake_synchronize(stream: usize) -> bool {
    let mut world = lock();
    let until = world.streams[stream - 1].put;
    world.streams[stream - 1].wanted = until;
    loop {
        world.progress();
        WORLD.1.notify_all();
        if world.streams[stream - 1].done >= until || world.has_deadlock {
            return !world.has_deadlock;
        }
        world = sleep(world);
    }
}

/// Waits for all that is on a device; false when that is in vain.
#[unsafe(no_mangle)]
pub extern "C" fn fake_synchronize_device(device: usize) -> bool {
    let mut world = lock();
    let of_device = world.streams.iter().enumerate().filter(|(_, stream)| stream.device == device);
    let until: Vec<(usize, u64)> = of_device.map(|(index, stream)| (index, stream.put)).collect();
    until.iter().for_each(|(stream, until)| world.streams[*stream].wanted = *until);
    world.awaited.insert(device, until.clone());
    loop {
        world.progress();
        if until.iter().all(|(stream, until)| world.streams[*stream].done >= *until) {
            break;
        }
        world.look_for_a_circle();
        if world.has_deadlock {
            break;
        }
        WORLD.1.notify_all();
        world = sleep(world);
    }
    world.awaited.remove(&device);
    WORLD.1.notify_all();
    !world.has_deadlock
}
