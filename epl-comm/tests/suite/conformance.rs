//! Every operation × element type × blocking or started × world and sub-groups × 1 to 8 ranks.

use burn::tensor::kind::{Autodiff, Basic, Numeric};
use burn::tensor::{Bool, BoolStore, DType, Device, Float, GradientCheckpointingStrategy, Int, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{Pending, ProcessGroup, ReduceOp, Result, Trace};

use crate::failing::{EAGER_LIMITS, run_ranks_with};
use crate::model::Array;

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::Mean];

/// One way of running everything on one group.
struct Exercise<'a> {
    group: &'a ProcessGroup,
    dtype: DType,
    started: bool,
    device: Device,
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

    fn all<K: Numeric + Autodiff + 'static>(&self) {
        self.reductions::<K>();
        self.moves::<K>();
    }

    /// What needs no arithmetic.
    fn moves<K: Autodiff + 'static>(&self) {
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

fn exercise(group: &ProcessGroup) {
    for started in [false, true] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8] {
            let exercise = Exercise { group, dtype, started, device: Device::flex() };
            if dtype.is_float() { exercise.all::<Float>() } else { exercise.all::<Int>() }
        }
        let dtype = DType::Bool(BoolStore::Native);
        Exercise { group, dtype, started, device: Device::flex() }.moves::<Bool>();
    }
}

/// As small buffers, and as large ones, which go another way.
fn exercise_ranks(ranks: usize) {
    for limit in EAGER_LIMITS {
        run_ranks_with(ranks, limit, |group| exercise(&group));
    }
}

#[test]
fn world_of_one() {
    exercise_ranks(1);
}

#[test]
fn world_of_two() {
    exercise_ranks(2);
}

#[test]
fn world_of_three() {
    exercise_ranks(3);
}

#[test]
fn world_of_four() {
    exercise_ranks(4);
}

#[test]
fn world_of_eight() {
    exercise_ranks(8);
}

#[test]
fn whole_numbers_have_no_mean() {
    run_ranks(2, |group| {
        let x = Tensor::<1, Int>::zeros([2], (&Device::flex(), DType::I64));
        let error = group.all_reduce(x.clone(), ReduceOp::Mean).unwrap_err().to_string();
        assert!(error.contains("the mean of i64"), "{error}");
        assert!(group.reduce_scatter(x, 0, ReduceOp::Mean).is_err());
    });
}

#[test]
fn groups_of_every_second_rank_in_reversed_order() {
    run_ranks_with(4, 0, |world| {
        let group = world.split("pair", world.rank() % 2, 9 - world.rank()).unwrap();
        assert_eq!((group.name(), group.size(), group.rank()), ("pair", 2, 1 - world.rank() / 2));
        assert_eq!(group.global(0).0, world.rank() % 2 + 2);
        exercise(&group);
        exercise(&world);
    });
}

#[test]
fn groups_of_different_sizes_and_groups_of_groups() {
    run_ranks(4, |world| {
        let group = world.split("three and one", usize::from(world.rank() == 1), world.rank()).unwrap();
        assert_eq!(group.size(), if world.rank() == 1 { 1 } else { 3 });
        let inner = group.split("inner", group.rank() % 2, 0).unwrap();
        exercise(&inner);
        exercise(&group);
    });
}

#[test]
fn a_traced_group_computes_the_same() {
    let trace = Trace::new();
    run_ranks(2, |group| exercise(&group.traced(&trace)));
    assert!(!trace.events().is_empty());
}

#[test]
fn results_lie_on_the_autodiff_device_of_untracked_inputs() {
    for device in [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()] {
        run_ranks(2, |group| {
            let exercise = Exercise { group: &group, dtype: DType::F32, started: false, device: device.clone() };
            exercise.all::<Float>();
            let ints = Exercise { group: &group, dtype: DType::I64, started: true, device: device.clone() };
            ints.all::<Int>();
            let x = Tensor::<1>::ones([4], &device);
            let strategy: Option<GradientCheckpointingStrategy> = device.gradient_checkpointing_strategy();
            assert_eq!(group.all_reduce(x, ReduceOp::Sum).unwrap().gradient_checkpointing_strategy(), strategy);
        });
    }
}

/// Tensors of another backend go through the host, and come back to their device.
#[test]
#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "the only other backend that runs without a device")]
fn another_backend_than_flex() {
    for device in [Device::ndarray(), Device::ndarray().autodiff()] {
        run_ranks(3, |group| {
            for started in [false, true] {
                for dtype in [DType::F32, DType::F64, DType::I64, DType::I32, DType::U8] {
                    let exercise = Exercise { group: &group, dtype, started, device: device.clone() };
                    if dtype.is_float() { exercise.all::<Float>() } else { exercise.all::<Int>() }
                }
                let dtype = DType::Bool(BoolStore::Native);
                Exercise { group: &group, dtype, started, device: device.clone() }.moves::<Bool>();
            }
        });
    }
}

#[test]
fn half_precision_and_small_integers() {
    run_ranks(3, |group| {
        for dtype in [DType::F16, DType::BF16] {
            Exercise { group: &group, dtype, started: false, device: Device::flex() }.all::<Float>();
        }
        for dtype in [DType::I16, DType::I8] {
            Exercise { group: &group, dtype, started: false, device: Device::flex() }.all::<Int>();
        }
    });
}

#[test]
fn views_are_sent_as_what_they_show() {
    run_ranks(2, |group| {
        let whole = |member: usize| Array::sample(member, &[4, 6]);
        let view = |member: usize| {
            whole(member).tensor::<2, Float>(DType::F32, &Device::flex()).swap_dims(0, 1).slice([1..5, 1..3])
        };
        let (a, b) = (Array::of(view(0)), Array::of(view(1)));
        let sum = group.all_reduce(view(group.rank()), ReduceOp::Sum).unwrap();
        assert_eq!(Array::of(sum), a.zip(&b, |a, b| a + b));
        let rows = |member: usize| whole(member).tensor::<2, Float>(DType::F32, &Device::flex()).slice_dim(0, 2..4);
        let all = group.all_gather(rows(group.rank()), 0).unwrap();
        assert_eq!(Array::of(all), Array::concat(&[whole(0).part(0, 2, 2), whole(1).part(0, 2, 2)], 0));
    });
}

#[test]
fn sums_are_taken_in_the_order_of_the_members_bit_by_bit() {
    for len in [1, 15, 16, 17, 63, 1000, 20_000] {
        let value =
            |member: usize, i: usize| ((i * 7 + member * 131) as f32 * 0.37).sin() * 10f32.powi(member as i32 * 3 - 4);
        let sums = run_ranks(4, |group| {
            let values: Vec<f32> = (0..len).map(|i| value(group.rank(), i)).collect();
            let x = Tensor::<1>::from_data(burn::tensor::TensorData::new(values, [len]), (&Device::flex(), DType::F32));
            let sum = group.all_reduce(x.clone(), ReduceOp::Sum).unwrap();
            let parts = group.reduce_scatter_uneven(x, 0, &[len, 0, 0, 0], ReduceOp::Sum).unwrap();
            if group.rank() == 0 {
                assert_eq!(parts.into_data(), sum.clone().into_data());
            }
            sum.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>()
        });
        let expected: Vec<_> =
            (0..len).map(|i| (1..4).fold(value(0, i), |sum, member| sum + value(member, i)).to_bits()).collect();
        assert!(sums.iter().all(|sum| *sum == expected), "length {len}");
    }
}

#[test]
fn a_large_all_reduce_of_unshared_memory_stays_in_place() {
    run_ranks(2, |group| {
        let x = Tensor::<1>::ones([10_000], &Device::flex());
        let place = |x: Tensor<1>| {
            let tensor = x.try_into_primitive::<burn::backend::Flex>().unwrap();
            (tensor.bytes().as_ptr() as usize, Tensor::<1>::from_primitive::<burn::backend::Flex>(tensor))
        };
        let (before, x) = place(x);
        let (after, _) = place(group.all_reduce(x, ReduceOp::Sum).unwrap());
        assert_eq!(before, after);
    });
}

#[test]
fn numbers_of_the_host() {
    for ranks in 1..=4 {
        run_ranks(ranks, |group| {
            let me = group.rank();
            let sums = group.all_reduce_values(&[me as f64, 0.5], ReduceOp::Sum).unwrap();
            assert_eq!(sums, [(0..ranks).sum::<usize>() as f64, 0.5 * ranks as f64]);
            assert_eq!(group.all_reduce_values(&[me as f64], ReduceOp::Max).unwrap(), [ranks as f64 - 1.0]);
            assert_eq!(group.all_reduce_values(&[], ReduceOp::Max).unwrap(), [0.0; 0]);
            let counts = group.all_gather_counts(&[me as i64, -1]).unwrap();
            assert_eq!(counts, (0..ranks as i64).map(|member| vec![member, -1]).collect::<Vec<_>>());
            let sent: Vec<_> = (0..2 * ranks).map(|i| (100 * me + i) as i64).collect();
            let expected: Vec<_> =
                (0..ranks).flat_map(|from| [0, 1].map(|i| (100 * from + 2 * me + i) as i64)).collect();
            assert_eq!(group.all_to_all_counts(&sent).unwrap(), expected);
        });
    }
}
