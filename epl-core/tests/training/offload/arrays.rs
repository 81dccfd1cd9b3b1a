//! What arrays in both tiers do with ranges.

use burn::tensor::{DType, Device, Tensor};
use epl_core::memory::Tier;
use epl_core::offload::{Holding, Ledger, Storage};

use crate::offload::burn::{bits, tensor};
use crate::offload::{LEAST, tiers, values};

const LEN: usize = 150_001;

#[test]
fn ranges_are_written_and_read() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for storage in tiers() {
            let mut array = storage.zeros(LEN, dtype).unwrap();
            assert_eq!(array.bytes(), (LEN * dtype.size()) as u64);
            let written = tensor(&values(1, 140_000), dtype);
            array.write(7, &written).unwrap();
            let read = array.read(7..140_007, &Device::flex()).unwrap();
            assert_eq!((read.dtype(), read.into_data()), (dtype, written.into_data()));
            for around in [0..7, 140_007..LEN] {
                let around = array.data(around).unwrap();
                assert!(around.iter::<f64>().all(|value| value == 0.0), "{dtype:?} in {:?}", storage.tier());
            }
        }
    }
}

#[test]
fn views_and_tensors_of_a_graph_are_written_too() {
    let whole = tensor(&values(2, 100), DType::F32);
    let expected = whole.clone().slice([10..30]).into_data();
    let reversed: Vec<f32> = expected.iter::<f32>().collect::<Vec<_>>().into_iter().rev().collect();
    for storage in tiers() {
        let mut array = storage.zeros(20, DType::F32).unwrap();
        array.write(0, &whole.clone().slice([10..30])).unwrap();
        assert_eq!(array.data(0..20).unwrap(), expected);
        array.write(0, &whole.clone().slice([10..30]).flip([0])).unwrap();
        assert_eq!(array.data(0..20).unwrap().as_slice::<f32>().unwrap(), reversed);
        let tracked = Tensor::<1>::from_data(expected.clone(), &Device::flex().autodiff()).require_grad();
        array.write(0, &tracked).unwrap();
        assert_eq!(array.data(0..20).unwrap(), expected);
    }
}

#[test]
fn sums_scaling_and_adding_agree_to_the_bit() {
    for dtype in [DType::F32, DType::F64] {
        let (first, second) = (tensor(&values(3, LEN), dtype), tensor(&values(4, 120_000), dtype));
        let range = 13..120_013;
        let added = first.clone().slice([range.clone()]).mul_scalar(0.3) + second.clone();
        let done = tiers().map(|storage| {
            let mut array = storage.zeros(LEN, dtype).unwrap();
            array.write(0, &first).unwrap();
            array.scale(range.clone(), 0.3).unwrap();
            array.add(range.start, &second).unwrap();
            assert_eq!(bits(&array.data(range.clone()).unwrap()), bits(&added.to_data()), "{dtype:?}");
            let rest = bits(&array.data(range.end..LEN).unwrap());
            assert_eq!(rest, bits(&first.to_data())[range.end..], "{dtype:?}");
            array.sum_of_squares(5..LEN - 1).unwrap().to_bits()
        });
        assert_eq!(done[0], done[1], "{dtype:?}");
    }
}

#[test]
fn sums_of_squares_do_not_depend_on_threads_or_windows() {
    let values = values(5, LEN);
    let expected: f64 = values[5..].iter().map(|value| value * value).sum();
    let mut found = Vec::new();
    for bound in [LEAST, 64 << 20] {
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let storage = Storage::files(std::env::temp_dir(), bound, &Ledger::new()).unwrap();
            let mut array = storage.zeros(LEN, DType::F64).unwrap();
            array.write(0, &tensor(&values, DType::F64)).unwrap();
            found.push(pool.install(|| array.sum_of_squares(5..LEN).unwrap()));
        }
    }
    assert!((found[0] - expected).abs() < 1e-9 * expected, "{found:?}, {expected}");
    assert!(found.iter().all(|sum| sum.to_bits() == found[0].to_bits()), "{found:?}");
}

#[test]
fn windows_are_slices() {
    for storage in tiers() {
        let mut array = storage.zeros(LEN, DType::F32).unwrap();
        let mut window = array.window_mut::<f32>(100_001..100_004).unwrap();
        window.copy_from_slice(&[1.0, 2.0, 3.0]);
        window[1] = -2.0;
        window.finish().unwrap();
        assert_eq!(array.window::<f32>(100_000..100_005).unwrap()[..], [0.0, 1.0, -2.0, 3.0, 0.0]);
        assert!(array.window::<f32>(3..3).unwrap().is_empty());
    }
}

#[test]
fn the_ledger_knows_what_is_held() {
    let ledger = Ledger::new();
    let (host, files) = (Storage::host(&ledger), Storage::files(std::env::temp_dir(), LEAST, &ledger).unwrap());
    let kept = host.zeros(1000, DType::F64).unwrap();
    assert_eq!((kept.tier(), kept.bytes()), (Tier::Host, 8000));
    let gone = host.clone().zeros(499, DType::F32).unwrap();
    drop(gone);
    let mut filed = files.zeros(LEN, DType::F64).unwrap();
    assert_eq!(filed.tier(), Tier::Disk);
    assert_eq!(ledger.host(), Holding { now: 8000, most: 10_000 });
    assert_eq!(ledger.files(), Holding { now: LEN as u64 * 8, most: LEN as u64 * 8 });
    assert_eq!(ledger.mapped(), Holding::default());
    filed.scale(0..LEN, 2.0).unwrap();
    let mapped = ledger.mapped();
    assert!(mapped.now == 0 && mapped.most > 0 && mapped.most <= LEAST, "{mapped:?}");
    drop((kept, filed));
    assert_eq!((ledger.host().now, ledger.files().now), (0, 0));
}
