//! How many bytes of some kind a rank holds, now and at most.

use std::cell::Cell;
use std::rc::Rc;

use burn::tensor::Tensor;

/// A count of bytes, which are part of a total. A clone counts the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    own: Rc<Counts>,
    total: Rc<Counts>,
}

/// Signed, as what is measured may be less than was there before.
#[derive(Debug, Default)]
struct Counts {
    now: Cell<i64>,
    most: Cell<i64>,
}

/// Bytes that are counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    meter: Meter,
    bytes: i64,
}

impl Counts {
    fn add(&self, bytes: i64) {
        self.now.set(self.now.get() + bytes);
        self.reach(0);
    }

    /// So many more were there for a moment.
    fn reach(&self, more: i64) {
        self.most.set(self.most.get().max(self.now.get() + more));
    }
}

impl Meter {
    /// Counts bytes until the result is dropped.
    pub fn lease(&self, bytes: u64) -> Lease {
        self.lease_change(i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// Counts so many bytes more, or fewer, until the result is dropped.
    pub fn lease_change(&self, bytes: i64) -> Lease {
        self.own.add(bytes);
        self.total.add(bytes);
        Lease { meter: self.clone(), bytes }
    }

    /// The bytes that are counted.
    pub fn now(&self) -> u64 {
        unsigned(self.own.now.get())
    }

    /// The most bytes that were counted at once.
    pub fn most(&self) -> u64 {
        unsigned(self.own.most.get())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.meter.own.add(-self.bytes);
        self.meter.total.add(-self.bytes);
    }
}

fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// The bytes of a flat tensor.
pub(crate) fn bytes(flat: &Tensor<1>) -> u64 {
    (flat.shape().num_elements() * flat.dtype().size()) as u64
}

/// The bytes of a rank that stay from step to step, by tier in the order of [`Tier::ALL`](crate::memory::Tier::ALL).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptBytes {
    pub parameters: [u64; 3],
    /// Room for those that lie away from the device; on it they come and go.
    pub gradients: [u64; 3],
    pub optimizer_state: [u64; 3],
}

/// What stays from step to step, as it was counted once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptCount {
    /// How many steps were made then.
    pub after: u64,
    /// How many parameters had no gradient yet.
    pub untouched: usize,
    /// Behind which step it was no longer more.
    pub since: u64,
    pub kept: KeptBytes,
}

/// What is counted while it comes and goes, on the device.
#[derive(Debug)]
pub(crate) struct Meters {
    total: Rc<Counts>,
    /// Parameters that are gathered, and casts of parameters.
    pub parameters: Meter,
    pub gradients: Meter,
    /// What forwards leave for their backwards, where that is measured.
    pub activations: Meter,
    /// Buckets of gradients that are on their way.
    pub buckets: Meter,
}

impl Meters {
    /// So many bytes more were there for a moment.
    pub fn reach(&self, more: i64) {
        self.total.reach(more);
    }

    /// The most bytes of all kinds at once since this was last asked.
    pub fn take_most(&self) -> u64 {
        unsigned(self.total.most.replace(self.total.now.get()))
    }
}

impl Default for Meters {
    fn default() -> Self {
        let total = Rc::<Counts>::default();
        let part = || Meter { own: Rc::default(), total: total.clone() };
        let [parameters, gradients, activations, buckets] = [part(), part(), part(), part()];
        Self { parameters, gradients, activations, buckets, total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_held_at_once() {
        let meter = Meter::default();
        let (first, second) = (meter.lease(3), meter.clone().lease(4));
        drop(first);
        let third = meter.lease(2);
        assert_eq!((meter.now(), meter.most()), (6, 7));
        drop((second, third));
        assert_eq!((meter.now(), meter.most()), (0, 7));
    }

    #[test]
    fn the_most_of_all_kinds_is_that_of_one_moment() {
        let meters = Meters::default();
        drop(meters.gradients.lease(5));
        let (kept, less) = (meters.activations.lease(4), meters.activations.lease_change(-1));
        let bucket = meters.buckets.lease(3);
        assert_eq!((meters.activations.now(), meters.take_most()), (3, 6));
        drop(bucket);
        assert_eq!((meters.take_most(), meters.take_most()), (6, 3), "since it was last asked");
        meters.reach(7);
        assert_eq!((meters.activations.now(), meters.take_most()), (3, 10));
        drop((kept, less));
        assert_eq!((meters.gradients.most(), meters.activations.now()), (5, 0));
    }
}
