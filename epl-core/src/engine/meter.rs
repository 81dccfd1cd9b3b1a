//! How many bytes of some kind a rank holds, now and at most.

use std::cell::Cell;
use std::rc::Rc;

use burn::tensor::Tensor;

/// A count of bytes. A clone counts the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Rc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: Cell<u64>,
    most: Cell<u64>,
}

/// Bytes that are counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    meter: Meter,
    bytes: u64,
}

impl Meter {
    /// Counts bytes until the result is dropped.
    pub fn lease(&self, bytes: u64) -> Lease {
        let now = self.0.now.get() + bytes;
        self.0.now.set(now);
        self.0.most.set(self.0.most.get().max(now));
        Lease { meter: self.clone(), bytes }
    }

    /// The most bytes that were counted at once.
    pub fn most(&self) -> u64 {
        self.0.most.get()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let now = &self.meter.0.now;
        now.set(now.get() - self.bytes);
    }
}

/// The bytes of a flat tensor.
pub(crate) fn bytes(flat: &Tensor<1>) -> u64 {
    (flat.shape().num_elements() * flat.dtype().size()) as u64
}

/// What is counted while it comes and goes.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    /// Parameters that are gathered.
    pub parameters: Meter,
    pub gradients: Meter,
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
        assert_eq!((meter.0.now.get(), meter.most()), (6, 7));
        drop((second, third));
        assert_eq!((meter.0.now.get(), meter.most()), (0, 7));
    }
}
