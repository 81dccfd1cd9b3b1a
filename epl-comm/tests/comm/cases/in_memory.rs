//! What holds where ranks compute in the memory of the host, beside what every transport does: the order of sums, and
//! where results lie.

use burn::tensor::{DType, Device, Tensor};
use epl_comm::ReduceOp;

use crate::cases::world::World;

pub fn sums_are_taken_in_the_order_of_the_members_bit_by_bit(world: &World) {
    for len in [1, 15, 16, 17, 63, 1000, 20_000, 700_000] {
        let value =
            |member: usize, i: usize| ((i * 7 + member * 131) as f32 * 0.37).sin() * 10f32.powi(member as i32 * 3 - 4);
        let sums = world.run(4, |group| {
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

pub fn a_large_all_reduce_of_unshared_memory_stays_in_place(world: &World) {
    world.run(2, |group| {
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

/// Parts of more than a megabyte, of different lengths, one of them nothing: transports that send chunks send many.
pub fn sums_of_large_parts(world: &World) {
    for ranks in 2..=4 {
        world.run(ranks, |group| {
            let me = group.rank();
            let sizes: Vec<usize> = (0..ranks).map(|member| [0, 300_001, 7, 500_000][(member + ranks) % 4]).collect();
            let len: usize = sizes.iter().sum();
            // Whole numbers whose sums are exact, in whatever order.
            let value = |member: usize, i: usize| ((i % 1013) * (member + 1)) as f32;
            let x = || {
                let values: Vec<f32> = (0..len).map(|i| value(me, i)).collect();
                Tensor::<1>::from_data(burn::tensor::TensorData::new(values, [len]), (&Device::flex(), DType::F32))
            };
            let is_sum = |y: Tensor<1>, start: usize, count: usize| {
                let y = y.into_data();
                let y = y.as_slice::<f32>().unwrap();
                let sum = |i: usize| (0..ranks).map(|member| value(member, start + i)).sum::<f32>();
                assert_eq!(y.len(), count);
                let wrong = (0..count).find(|i| y[*i] != sum(*i));
                assert_eq!(wrong, None, "of {ranks} ranks at rank {me}");
            };
            is_sum(group.all_reduce(x(), ReduceOp::Sum).unwrap(), 0, len);
            is_sum(group.start_all_reduce(x(), ReduceOp::Sum).unwrap().wait().unwrap(), 0, len);
            if let Some(sum) = group.reduce(x(), ReduceOp::Sum, ranks - 1).unwrap() {
                is_sum(sum, 0, len);
            }
            let part = group.reduce_scatter_uneven(x(), 0, &sizes, ReduceOp::Sum).unwrap();
            is_sum(part, sizes[..me].iter().sum(), sizes[me]);
        });
    }
}
