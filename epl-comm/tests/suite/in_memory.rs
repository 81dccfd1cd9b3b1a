//! What holds where ranks compute in the memory of the host, beside what every transport does: the order of sums, and
//! where results lie.

use burn::tensor::{DType, Device, Tensor};
use epl_comm::ReduceOp;

use crate::failing::run_ranks;

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
