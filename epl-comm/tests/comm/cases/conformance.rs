//! Where everything in `exercise` is run: on the world and sub-groups, of 1 to 8 ranks, traced, on other backends.

use burn::tensor::{DType, Device, Float, GradientCheckpointingStrategy, Int, Tensor};
use epl_comm::{ReduceOp, Trace};

use crate::cases::world::World;
use crate::exercise::{Exercise, exercise};
use crate::model::Array;

/// As small buffers, and as large ones, which go another way.
fn exercise_ranks(world: &World, ranks: usize) {
    for limit in world.kind.eager_limits() {
        world.ranks(ranks).eager_limit(*limit).run(|group| exercise(&group));
    }
}

pub fn world_of_one(world: &World) {
    exercise_ranks(world, 1);
}

pub fn world_of_two(world: &World) {
    exercise_ranks(world, 2);
}

pub fn world_of_three(world: &World) {
    exercise_ranks(world, 3);
}

pub fn world_of_four(world: &World) {
    exercise_ranks(world, 4);
}

pub fn world_of_eight(world: &World) {
    exercise_ranks(world, 8);
}

pub fn whole_numbers_have_no_mean(world: &World) {
    world.run(2, |group| {
        let x = Tensor::<1, Int>::zeros([2], (&Device::flex(), DType::I64));
        let error = group.all_reduce(x.clone(), ReduceOp::Mean).unwrap_err().to_string();
        assert!(error.contains("the mean of i64"), "{error}");
        assert!(group.reduce_scatter(x, 0, ReduceOp::Mean).is_err());
    });
}

pub fn groups_of_every_second_rank_in_reversed_order(world: &World) {
    world.ranks(4).eager_limit(0).run(|world| {
        let group = world.split("pair", world.rank() % 2, 9 - world.rank()).unwrap();
        assert_eq!((group.name(), group.size(), group.rank()), ("pair", 2, 1 - world.rank() / 2));
        assert_eq!(group.global(0).0, world.rank() % 2 + 2);
        exercise(&group);
        exercise(&world);
    });
}

pub fn groups_of_different_sizes_and_groups_of_groups(world: &World) {
    world.run(4, |world| {
        // As large as a color may be.
        let color = if world.rank() == 1 { usize::MAX >> 1 } else { 0 };
        let group = world.split("three and one", color, world.rank()).unwrap();
        assert_eq!(group.size(), if world.rank() == 1 { 1 } else { 3 });
        let inner = group.split("inner", group.rank() % 2, 0).unwrap();
        exercise(&inner);
        exercise(&group);
    });
}

/// Longer than what messages have room for.
pub fn groups_with_a_name_of_5000_bytes(world: &World) {
    for ranks in [2, 4] {
        world.run(ranks, |world| {
            let name = "zähl".repeat(1000);
            let group = world.split(&name, world.rank() % 2, 0).unwrap();
            assert_eq!((name.len(), group.name(), group.size()), (5000, &*name, ranks / 2));
            assert_eq!(group.all_reduce_values(&[1.0], ReduceOp::Sum).unwrap(), [ranks as f64 / 2.0]);
            let inner = group.split(&format!("{name}, all of them"), 0, 0).unwrap();
            assert_eq!(inner.all_gather_counts(&[7]).unwrap(), vec![[7]; ranks / 2]);
        });
    }
}

pub fn a_traced_group_computes_the_same(world: &World) {
    let trace = Trace::new();
    world.run(2, |group| {
        exercise(&group.traced(&trace));
        assert!(!trace.events().is_empty());
    });
}

pub fn results_lie_on_the_autodiff_device_of_untracked_inputs(world: &World) {
    for device in [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()] {
        world.run(2, |group| {
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
#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "the only other backend that runs without a device")]
pub fn another_backend_than_flex(world: &World) {
    use burn::tensor::{Bool, BoolStore};

    for device in [Device::ndarray(), Device::ndarray().autodiff()] {
        world.run(3, |group| {
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

pub fn half_precision_and_small_integers(world: &World) {
    for ranks in [2, 3] {
        world.run(ranks, |group| {
            for (dtype, started) in [(DType::F16, false), (DType::BF16, true)] {
                Exercise { group: &group, dtype, started, device: Device::flex() }.all::<Float>();
            }
            for (dtype, started) in [(DType::I16, false), (DType::I8, true)] {
                Exercise { group: &group, dtype, started, device: Device::flex() }.all::<Int>();
            }
        });
    }
}

pub fn views_are_sent_as_what_they_show(world: &World) {
    world.run(2, |group| {
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

pub fn numbers_of_the_host(world: &World) {
    for ranks in 1..=4 {
        world.run(ranks, |group| {
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
