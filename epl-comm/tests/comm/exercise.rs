//! What conformance is: every operation on one group, in one element type, blocking or started.

use burn::tensor::kind::{Autodiff, Basic, Numeric};
use burn::tensor::{Bool, BoolStore, DType, Device, Float, Int, Tensor};
use epl_comm::{Pending, ProcessGroup, ReduceOp, Result};

use crate::model::Array;

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::Mean];

/// One way of running everything on one group.
pub struct Exercise<'a> {
    pub group: &'a ProcessGroup,
    pub dtype: DType,
    pub started: bool,
    pub device: Device,
}

impl Exercise<'_> {
    fn input<K: Basic>(&self, what: usize, shape: [usize; 3]) -> Tensor<3, K> {
        self.array(self.group.rank(), what, shape).tensor(self.dtype, &self.device)
    }

    fn inputs(&self, what: usize, shape: impl Fn(usize) -> [usize; 3]) -> Vec<Array> {
        (0..self.group.size()).map(|member| self.array(member, what, shape(member))).collect()
    }

    fn array(&self, member: usize, what: usize, shape: [usize; 3]) -> Array {
        Array::sample(1000 * what + self.group.global(member).0, &shape).rounded(self.dtype)
    }

    /// Extents that differ, one of them nothing.
    fn sizes(&self) -> Vec<usize> {
        (0..self.group.size()).map(|member| (member * 2 + 3) % 5).collect()
    }

    /// What only member `root` gets.
    fn check_at<K: Autodiff + 'static>(
        &self,
        root: usize,
        blocking: impl FnOnce() -> Result<Option<Tensor<3, K>>>,
        started: impl FnOnce() -> Result<Pending<Option<Tensor<3, K>>>>,
        expected: &Array,
    ) {
        let result = match self.started {
            true => started().and_then(Pending::wait),
            false => blocking(),
        };
        match (result.unwrap(), self.group.rank() == root) {
            (Some(result), true) => self.check(|| Ok(result.clone()), || Ok(result.clone().into()), expected),
            (None, false) => {}
            (result, _) => panic!("{result:?} on member {} of a call with root {root}", self.group.rank()),
        }
    }

    fn check<K: Autodiff>(
        &self,
        blocking: impl FnOnce() -> Result<Tensor<3, K>>,
        started: impl FnOnce() -> Result<Pending<Tensor<3, K>>>,
        expected: &Array,
    ) {
        let result = match self.started {
            true => started().and_then(Pending::wait),
            false => blocking(),
        };
        let result = result.unwrap();
        assert_eq!(result.dtype(), self.dtype);
        assert_eq!(result.device(), self.device);
        assert_eq!(Array::of(result), expected.rounded(self.dtype));
    }

    pub fn all<K: Numeric + Autodiff + 'static>(&self) {
        self.reductions::<K>();
        self.moves::<K>();
    }

    /// What needs no arithmetic.
    pub fn moves<K: Autodiff + 'static>(&self) {
        self.gathers::<K>();
        self.scatters::<K>();
        self.exchanges::<K>();
        self.broadcasts::<K>();
        self.links::<K>();
        match self.started {
            true => self.group.start_barrier().and_then(Pending::wait).unwrap(),
            false => self.group.barrier().unwrap(),
        }
    }

    fn reductions<K: Numeric + Autodiff + 'static>(&self) {
        let (group, p, me) = (self.group, self.group.size(), self.group.rank());
        let ops = OPS.into_iter().filter(|op| match op {
            // Whole numbers have none.
            ReduceOp::Mean => self.dtype.is_float(),
            // More factors are not exact in f32.
            ReduceOp::Product => p <= 4,
            _ => true,
        });
        for op in ops {
            for shape in [[2, 3, 4], [1, 1, 1], [0, 3, 1], [7, 5, 11]] {
                let expected = Array::reduce(&self.inputs(1, |_| shape), op);
                let x = self.input::<K>(1, shape);
                self.check(|| group.all_reduce(x.clone(), op), || group.start_all_reduce(x.clone(), op), &expected);
                for root in [0, p - 1] {
                    self.check_at(
                        root,
                        || group.reduce(x.clone(), op, root),
                        || group.start_reduce(x.clone(), op, root),
                        &expected,
                    );
                }
                assert_eq!(Array::of(x), self.array(me, 1, shape), "a shared input is left alone");
            }
            for dim in 0..3 {
                let mut shape = [2, 3, 4];
                shape[dim] = 2 * p;
                let expected = Array::reduce(&self.inputs(2, |_| shape), op).part(dim, 2 * me, 2);
                let x = || self.input::<K>(2, shape);
                self.check(
                    || group.reduce_scatter(x(), dim, op),
                    || group.start_reduce_scatter(x(), dim, op),
                    &expected,
                );

                let sizes = self.sizes();
                shape[dim] = sizes.iter().sum();
                let (before, whole) = (sizes[..me].iter().sum(), Array::reduce(&self.inputs(3, |_| shape), op));
                let expected = whole.part(dim, before, sizes[me]);
                let x = || self.input::<K>(3, shape);
                self.check(
                    || group.reduce_scatter_uneven(x(), dim, &sizes, op),
                    || group.start_reduce_scatter_uneven(x(), dim, &sizes, op),
                    &expected,
                );
            }
        }
    }

    fn gathers<K: Autodiff + 'static>(&self) {
        let (group, p, me) = (self.group, self.group.size(), self.group.rank());
        for dim in 0..3 {
            let expected = Array::concat(&self.inputs(4, |_| [2, 3, 4]), dim);
            let x = || self.input::<K>(4, [2, 3, 4]);
            self.check(|| group.all_gather(x(), dim), || group.start_all_gather(x(), dim), &expected);
            let root = dim % p;
            self.check_at(root, || group.gather(x(), dim, root), || group.start_gather(x(), dim, root), &expected);

            let sizes = self.sizes();
            let shape = |member: usize| {
                let mut shape = [2, 3, 4];
                shape[dim] = sizes[member];
                shape
            };
            let expected = Array::concat(&self.inputs(5, shape), dim);
            let x = || self.input::<K>(5, shape(me));
            self.check(
                || group.all_gather_uneven(x(), dim, &sizes),
                || group.start_all_gather_uneven(x(), dim, &sizes),
                &expected,
            );
            let root = p - 1;
            self.check_at(
                root,
                || group.gather_uneven(x(), dim, &sizes, root),
                || group.start_gather_uneven(x(), dim, &sizes, root),
                &expected,
            );
        }
    }

    fn scatters<K: Autodiff + 'static>(&self) {
        let (group, p, me) = (self.group, self.group.size(), self.group.rank());
        for dim in 0..3 {
            let (root, mut shape) = (dim % p, [2, 3, 4]);
            shape[dim] = 2 * p;
            let expected = self.array(root, 9, shape).part(dim, 2 * me, 2);
            let x = || self.input::<K>(9, shape);
            self.check(|| group.scatter(x(), dim, root), || group.start_scatter(x(), dim, root), &expected);

            let (root, sizes) = (p - 1, self.sizes());
            shape[dim] = sizes.iter().sum();
            let expected = self.array(root, 10, shape).part(dim, sizes[..me].iter().sum(), sizes[me]);
            let x = || self.input::<K>(10, shape);
            self.check(
                || group.scatter_uneven(x(), dim, &sizes, root),
                || group.start_scatter_uneven(x(), dim, &sizes, root),
                &expected,
            );
        }
    }

    /// From every member to every other.
    fn links<K: Autodiff + 'static>(&self) {
        let (group, p, me) = (self.group, self.group.size(), self.group.rank());
        let x = || self.input::<K>(11, [2, 3, 4]);
        for distance in 1..p {
            let (to, from) = ((me + distance) % p, (me + p - distance) % p);
            let sent = group.start_send(x(), to).unwrap();
            let expected = self.array(from, 11, [2, 3, 4]);
            self.check(|| group.receive(x(), from), || group.start_receive(x(), from), &expected);
            sent.wait().unwrap();
        }
        // A chain, blocking on both ends; what is sent may be a view.
        let part = |x: Tensor<3, K>| x.slice_dim(1, 1..3);
        if me > 0 {
            let expected = self.array(me - 1, 11, [2, 3, 4]).part(1, 1, 2);
            let received = group.receive(part(x()), me - 1).unwrap();
            assert_eq!(Array::of(received), expected.rounded(self.dtype));
        }
        if me + 1 < p {
            group.send(part(x()), me + 1).unwrap();
        }
    }

    fn exchanges<K: Autodiff + 'static>(&self) {
        let (group, p, me) = (self.group, self.group.size(), self.group.rank());
        for split in 0..3 {
            for concat in 0..3 {
                let mut shape = [2, 3, 2];
                shape[split] *= p;
                let sizes = vec![shape[split] / p; p];
                let expected = Array::exchange(&self.inputs(6, |_| shape), me, split, &sizes, concat);
                let x = || self.input::<K>(6, shape);
                self.check(
                    || group.all_to_all(x(), split, concat),
                    || group.start_all_to_all(x(), split, concat),
                    &expected,
                );
            }
        }
        // Member a sends (a + 2b) % 4 rows to member b.
        let rows = |from: usize, to: usize| (from + 2 * to) % 4;
        let send = |from: usize| (0..p).map(|to| rows(from, to)).collect::<Vec<_>>();
        let receive: Vec<_> = (0..p).map(|from| rows(from, me)).collect();
        let shape = |member: usize| [send(member).iter().sum(), 2, 3];
        let pieces: Vec<_> = self
            .inputs(7, shape)
            .iter()
            .enumerate()
            .map(|(from, input)| input.part(0, send(from)[..me].iter().sum(), rows(from, me)))
            .collect();
        let expected = Array::concat(&pieces, 0);
        let x = || self.input::<K>(7, shape(me));
        self.check(
            || group.all_to_all_uneven(x(), &send(me), &receive),
            || group.start_all_to_all_uneven(x(), &send(me), &receive),
            &expected,
        );
    }

    fn broadcasts<K: Autodiff + 'static>(&self) {
        let group = self.group;
        for root in 0..group.size() {
            let expected = self.array(root, 8, [2, 3, 4]);
            let x = || self.input::<K>(8, [2, 3, 4]);
            self.check(|| group.broadcast(x(), root), || group.start_broadcast(x(), root), &expected);
            let kept = x();
            self.check(|| group.broadcast(kept.clone(), root), || group.start_broadcast(kept.clone(), root), &expected);
            assert_eq!(Array::of(kept), self.array(group.rank(), 8, [2, 3, 4]), "a shared input is left alone");
        }
    }
}

/// Everything, in every element type, blocking and started.
pub fn exercise(group: &ProcessGroup) {
    for started in [false, true] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8] {
            let exercise = Exercise { group, dtype, started, device: Device::flex() };
            if dtype.is_float() { exercise.all::<Float>() } else { exercise.all::<Int>() }
        }
        let dtype = DType::Bool(BoolStore::Native);
        Exercise { group, dtype, started, device: Device::flex() }.moves::<Bool>();
    }
}
