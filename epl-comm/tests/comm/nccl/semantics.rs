//! What NCCL does otherwise than a group does.

use burn::tensor::{DType, Device, Tensor, TensorData};
use epl_comm::{ProcessGroup, ReduceOp};

use crate::fake::Fake;

fn tensor(values: &[f32], dtype: DType) -> Tensor<1> {
    Tensor::from_data(TensorData::from(values), (&Device::flex(), dtype))
}

fn values(x: Tensor<1>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// 2048 + 1 is 2048 in f16: adding one after the other would stay there.
#[test]
fn sixteen_bits_are_summed_in_more() {
    for (dtype, large) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
        Fake::new().run(3, true, |group| {
            let own = if group.rank() == 0 { large } else { 1.0 };
            let x = || tensor(&[own, 1.0, 2.0], dtype);
            assert_eq!(values(group.all_reduce(x(), ReduceOp::Sum).unwrap()), [large + 2.0, 3.0, 6.0]);
            let part = group.reduce_scatter(x(), 0, ReduceOp::Sum).unwrap();
            assert_eq!((part.dtype(), values(part)), (dtype, vec![[large + 2.0, 3.0, 6.0][group.rank()]]));
            let root = group.reduce(x(), ReduceOp::Sum, 1).unwrap();
            assert_eq!(root.map(values), (group.rank() == 1).then(|| vec![large + 2.0, 3.0, 6.0]));
        });
    }
}

#[test]
fn a_mean_is_divided_before_it_is_rounded() {
    Fake::new().run(2, true, |group| {
        let most = 65504.0;
        let mean = group.all_reduce(tensor(&[most], DType::F16), ReduceOp::Mean).unwrap();
        assert_eq!(values(mean), [most]);
    });
    Fake::new().run(3, true, |group| {
        let mean = group.all_reduce(tensor(&[7.0, 5.0], DType::F32), ReduceOp::Mean).unwrap();
        assert_eq!(values(mean), [7.0, 5.0]);
    });
}

#[test]
fn a_nan_wins_over_numbers() {
    for ranks in [2, 3] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            Fake::new().run(ranks, false, |group: ProcessGroup| {
                let me = group.rank();
                let own = if me == 1 { f32::NAN } else { 1.0 };
                for op in [ReduceOp::Min, ReduceOp::Max] {
                    let found = values(group.all_reduce(tensor(&[own, me as f32], dtype), op).unwrap());
                    let last = if op == ReduceOp::Min { 0.0 } else { ranks as f32 - 1.0 };
                    assert!(found[0].is_nan() && found[1] == last, "{found:?}");
                    let all = vec![own; ranks];
                    let part = values(group.reduce_scatter(tensor(&all, dtype), 0, op).unwrap());
                    assert!(part[0].is_nan(), "{part:?}");
                }
            });
        }
    }
}

#[test]
fn nccl_does_itself_what_it_has_a_function_for() {
    let fake = Fake::new();
    fake.run(3, true, |group| {
        let x = || tensor(&[1.0, 2.0, 3.0], DType::F32);
        group.all_reduce(x(), ReduceOp::Sum).unwrap();
        group.all_gather(x(), 0).unwrap();
        group.reduce_scatter(x(), 0, ReduceOp::Sum).unwrap();
        group.broadcast(x(), 2).unwrap();
        group.all_to_all(x(), 0, 0).unwrap();
        group.barrier().unwrap();
    });
    let counts = ["ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclSend", "ncclRecv"]
        .map(|function| fake.count(function));
    assert_eq!(counts, [3, 3, 3, 3, 9, 9]);
}
