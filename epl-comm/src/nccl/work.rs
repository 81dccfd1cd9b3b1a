//! What one member does in a call: the collectives, by NCCL's functions.
//!
//! The rank's own thread prepares a call: what is computed before, the memory it reads and writes, and what is to be
//! computed afterwards. What is left for NCCL are its functions on that memory.
//!
//! | call | NCCL |
//! |---|---|
//! | all_reduce, reduce | the same |
//! | reduce_scatter | the same; of different extents, a reduce for each member |
//! | all_gather | the same; of different extents, a broadcast from each member |
//! | broadcast | the same |
//! | gather, scatter, all_to_all, send, receive | sends and receives in one group |
//!
//! What is only moved is moved as bytes.

use super::abi::Element;
use super::comm_stream::{Held, Part, Queue, Site};
use super::memory::Memory;
use super::shape::{not_numbers, spoiled, wide};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Call, Operation, ReduceOp};
use crate::per_member::PerMember;

/// One member's share of a call, prepared.
pub(super) struct Work<M: Memory> {
    /// What goes to NCCL in one group; nothing where nothing is sent.
    pub(super) steps: Vec<Step<M>>,
    /// Makes the steps' results into that of the member, flat; on the rank's own thread.
    pub(super) finish: Box<Finish>,
}

/// NCCL's functions on one piece of memory.
pub(super) struct Step<M: Memory> {
    /// What is written, and is the result; of nothing where this member only gives.
    pub(super) result: Held<M>,
    /// What is only read, if not the same.
    pub(super) own: Option<Held<M>>,
    pub(super) calls: Box<Calls<M>>,
}

/// Of a result and of what is read for it.
pub(super) type Calls<M> = dyn FnOnce(&Queue<'_>, &Held<M>, &Held<M>) -> Result<()> + Send;
pub(super) type Finish = dyn FnOnce(Vec<Buffer>) -> Buffer + Send;

impl<M: Memory> Work<M> {
    /// The buffer is the result.
    pub(super) fn none(buffer: Buffer) -> Self {
        Self { steps: Vec::new(), finish: Box::new(|_| buffer) }
    }

    fn one(
        result: Held<M>,
        own: Option<Held<M>>,
        calls: impl FnOnce(&Queue<'_>, &Held<M>, &Held<M>) -> Result<()> + Send + 'static,
    ) -> Self {
        Self { steps: vec![Step { result, own, calls: Box::new(calls) }], finish: Box::new(only_one) }
    }

    /// The result changed at last.
    fn then(self, change: impl FnOnce(Buffer) -> Buffer + Send + 'static) -> Self {
        let finish = self.finish;
        Self { steps: self.steps, finish: Box::new(move |results| change(finish(results))) }
    }

    /// Another result: of a member that gets nothing.
    fn giving(self, buffer: Buffer) -> Self {
        Self { steps: self.steps, ..Self::none(buffer) }
    }

    /// Both in one group.
    fn with(mut self, other: Self, join: impl FnOnce(Buffer, Buffer) -> Buffer + Send + 'static) -> Self {
        let (first, finish, last) = (self.steps.len(), self.finish, other.finish);
        self.steps.extend(other.steps);
        let finish = move |mut results: Vec<Buffer>| {
            let others = results.split_off(first);
            join(finish(results), last(others))
        };
        Self { steps: self.steps, finish: Box::new(finish) }
    }
}

/// # Panics
///
/// When there is none: a fault of this crate.
fn only_one(results: Vec<Buffer>) -> Buffer {
    results.into_iter().next().expect("a work of one result gives it")
}

/// Prepares this member's share, on the rank's own thread.
pub(super) fn work<M: Memory>(site: &Site<'_, M>, call: &Call, buffer: Buffer) -> Result<Work<M>> {
    // Not of the call: on another device the numbers may have another type.
    let (me, size) = (site.member, buffer.dtype().size());
    Ok(match call.operation {
        Operation::AllReduce(op) => reduced(site, buffer, op, &Shares::All)?,
        Operation::Reduce { op, root } if root == me => reduced(site, buffer, op, &Shares::One(root))?,
        Operation::Reduce { op, root } => reduced(site, buffer.clone(), op, &Shares::One(root))?.giving(buffer),
        Operation::ReduceScatter(op) => reduced(site, buffer, op, &Shares::Each(call.sent()))?,
        Operation::AllGather => all_gather(site, buffer, call.received().times(size))?,
        Operation::Gather { root } => {
            let send = only(root, buffer.num_elements() * size, site.size);
            match root == me {
                true => exchange(site, buffer, send, call.received().times(size))?,
                false => exchange(site, buffer.clone(), send, PerMember::same(0, site.size))?.giving(buffer),
            }
        }
        Operation::Scatter { root } => {
            let sizes = call.sent().times(size);
            let receive = only(root, sizes[me], site.size);
            let send = if root == me { sizes } else { PerMember::same(0, site.size) };
            exchange(site, buffer, send, receive)?
        }
        Operation::AllToAll => exchange(site, buffer, call.sent().times(size), call.received().times(size))?,
        Operation::Broadcast { root } => broadcast(site, buffer, root)?,
        Operation::Send => {
            let send = only(1, buffer.num_elements() * size, 2);
            exchange(site, buffer.clone(), send, PerMember::same(0, 2))?.giving(buffer)
        }
        Operation::Receive => {
            let receive = only(0, buffer.num_elements() * size, 2);
            exchange(site, buffer, PerMember::same(0, 2), receive)?
        }
        Operation::Barrier | Operation::Split => Work::none(buffer),
    })
}

/// Who gets what of a reduction.
enum Shares {
    All,
    /// Everything.
    One(usize),
    /// So many elements.
    Each(PerMember),
}

/// So much of one member, nothing of the others.
fn only(member: usize, number: usize, size: usize) -> PerMember {
    (0..size).map(|other| if other == member { number } else { 0 }).collect()
}

/// A reduction with what NCCL does otherwise: 16-bit floats in f32, a mean as a sum that is divided, and not-a-numbers
/// that win over numbers, for which a second reduction goes with the first.
fn reduced<M: Memory>(site: &Site<'_, M>, buffer: Buffer, op: ReduceOp, shares: &Shares) -> Result<Work<M>> {
    let (dtype, members) = (buffer.dtype(), site.size);
    let buffer = buffer.cast(wide(dtype, op, members));
    let is_order_of_floats = dtype.is_float() && matches!(op, ReduceOp::Min | ReduceOp::Max);
    let flags = is_order_of_floats.then(|| not_numbers(buffer.clone()));
    let mut work = reduced_once(site, buffer, op, shares)?;
    if let Some(flags) = flags {
        work = work.with(reduced_once(site, flags, ReduceOp::Max, shares)?, spoiled);
    }
    Ok(work.then(move |result| match op {
        ReduceOp::Mean => result.divided(members).cast(dtype),
        _ => result.cast(dtype),
    }))
}

fn reduced_once<M: Memory>(site: &Site<'_, M>, buffer: Buffer, op: ReduceOp, shares: &Shares) -> Result<Work<M>> {
    let (element, dtype, me) = (Element::of(buffer.dtype())?, buffer.dtype(), site.member);
    if buffer.num_elements() == 0 {
        return Ok(Work::none(buffer));
    }
    let own = site.take(buffer)?;
    match *shares {
        Shares::One(root) if root != me => {
            let calls = move |queue: &Queue<'_>, _: &Held<M>, own: &Held<M>| {
                queue.reduce(own.all(), own.all(), element, op, root)
            };
            Ok(Work::one(Held::nothing(dtype), Some(own), calls))
        }
        Shares::All | Shares::One(_) => {
            let (result, own) = match own.is_own(site.memory) {
                true => (own, None),
                false => (site.allocate(dtype, own.bytes)?, Some(own)),
            };
            let root = if let Shares::One(root) = *shares { Some(root) } else { None };
            Ok(Work::one(result, own, move |queue, result, own| match root {
                Some(root) => queue.reduce(own.all(), result.all(), element, op, root),
                None => queue.all_reduce(own.all(), result.all(), element, op),
            }))
        }
        Shares::Each(ref widths) => {
            let widths = widths.times(dtype.size());
            let result = site.allocate(dtype, widths[me])?;
            Ok(Work::one(result, Some(own), move |queue, result, own| match widths.is_even() {
                true => queue.reduce_scatter(own.all(), result.all(), element, op),
                false => parts(own, &widths).try_for_each(|(member, part)| {
                    let to = if member == me { result.all() } else { part };
                    queue.reduce(part, to, element, op, member)
                }),
            }))
        }
    }
}

fn all_gather<M: Memory>(site: &Site<'_, M>, buffer: Buffer, widths: PerMember) -> Result<Work<M>> {
    if widths.total() == 0 {
        return Ok(Work::none(Buffer::empty_on(&site.memory.device(), buffer.dtype())));
    }
    let (all, me) = (site.allocate(buffer.dtype(), widths.total())?, site.member);
    let own = site.take(buffer)?;
    Ok(Work::one(all, Some(own), move |queue, all, own| match widths.is_even() {
        true => queue.all_gather(own.all(), all.all()),
        false => parts(all, &widths).try_for_each(|(member, part)| {
            let from = if member == me { own.all() } else { part };
            queue.broadcast(from, part, member)
        }),
    }))
}

fn broadcast<M: Memory>(site: &Site<'_, M>, buffer: Buffer, root: usize) -> Result<Work<M>> {
    if buffer.num_elements() == 0 {
        return Ok(Work::none(buffer));
    }
    let dtype = buffer.dtype();
    if root == site.member {
        let own = site.take(buffer.clone())?;
        let calls = move |queue: &Queue<'_>, _: &Held<M>, own: &Held<M>| queue.broadcast(own.all(), own.all(), root);
        return Ok(Work::one(Held::nothing(dtype), Some(own), calls).giving(buffer));
    }
    let copy = site.allocate(dtype, buffer.num_elements() * dtype.size())?;
    Ok(Work::one(copy, None, move |queue, copy, _| queue.broadcast(copy.all(), copy.all(), root)))
}

/// Sends so many bytes to each member, and receives so many from each.
fn exchange<M: Memory>(site: &Site<'_, M>, buffer: Buffer, send: PerMember, receive: PerMember) -> Result<Work<M>> {
    let dtype = buffer.dtype();
    if send.total() + receive.total() == 0 {
        return Ok(Work::none(Buffer::empty_on(&site.memory.device(), dtype)));
    }
    let all = site.allocate(dtype, receive.total())?;
    let own = if send.total() == 0 { Held::nothing(dtype) } else { site.take(buffer)? };
    Ok(Work::one(all, Some(own), move |queue, all, own| {
        parts(own, &send).try_for_each(|(to, part)| queue.send(part, to))?;
        parts(all, &receive).try_for_each(|(from, part)| queue.receive(part, from))
    }))
}

/// Every member's part of memory that is divided in this way, where it is not empty.
fn parts<'a, M: Memory>(held: &'a Held<M>, widths: &'a PerMember) -> impl Iterator<Item = (usize, Part)> + 'a {
    let used = (0..widths.len()).filter(|member| widths[*member] > 0);
    used.map(|member| {
        let start = widths.before(member);
        (member, held.part(start..start + widths[member]))
    })
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;
    use core::ptr::null_mut;

    use burn::tensor::{DType, Device, Shape};

    use super::*;
    use crate::nccl::memory::{Event, Stream};

    /// Of its blocks only the sizes count: nothing is run.
    #[derive(Debug)]
    struct Sizes;

    #[derive(Debug)]
    struct Never;

    // SAFETY: there is none.
    unsafe impl Event for Never {
        fn is_over(&self) -> Result<bool> {
            Ok(true)
        }
    }

    // SAFETY: nothing is put on it.
    unsafe impl Stream for Never {
        type Event = Self;

        fn raw(&self) -> *mut c_void {
            null_mut()
        }

        fn wait(&self, _: &Self) -> Result<()> {
            Ok(())
        }

        fn mark(&self) -> Result<Self> {
            Ok(Self)
        }
    }

    // SAFETY: no library is given its blocks.
    unsafe impl Memory for Sizes {
        type Block = usize;
        type Event = Never;
        type Stream = Never;

        fn device(&self) -> Device {
            Device::flex()
        }

        fn bind(&self) -> Result<()> {
            Ok(())
        }

        fn settle(&self) {}

        fn stream(&self) -> Result<Never> {
            Ok(Never)
        }

        fn take(&self, buffer: Buffer) -> Result<usize> {
            Ok(buffer.num_elements() * buffer.dtype().size())
        }

        fn allocate(&self, dtype: DType, elements: usize) -> Result<usize> {
            Ok(elements * dtype.size())
        }

        fn give(&self, _: usize) -> Buffer {
            Buffer::empty()
        }

        fn pointer(&self, _: &usize) -> *mut c_void {
            null_mut()
        }

        fn bytes(&self, block: &usize) -> usize {
            *block
        }

        fn is_own(&self, _: &usize) -> bool {
            true
        }

        fn mark(&self) -> Result<Never> {
            Ok(Never)
        }

        fn follow(&self, _: &Never) -> Result<()> {
            Ok(())
        }

        fn is_ordered(&self, _: &Device) -> bool {
            true
        }
    }

    #[test]
    fn memory_is_that_of_the_numbers_on_the_device() {
        let site = Site { memory: &Sizes, size: 2, member: 0 };
        // As truth values, which are of one byte on one device and of four on another.
        let call = Call {
            dim: Some(0),
            receive: [3, 3].into_iter().collect(),
            ..Call::new(Operation::AllGather, DType::U8, Shape::new([3]))
        };
        let work = work(&site, &call, Buffer::from_values(vec![1.0_f32; 3])).unwrap();
        assert_eq!(work.steps[0].result.bytes, 6 * size_of::<f32>());
    }
}
