//! Dropout masks belong to samples: no cut of the batch, padding or split changes them.

use burn::tensor::Tensor;
use epl_core::{Epl, Pass, testing};
use epl_modules::{DropPathConfig, Dropout, DropoutConfig};

fn on_one_rank(f: impl Fn(&Epl) + Sync) {
    testing::run((1, 1, 1), |epl| {
        f(&epl);
        Ok(())
    });
}

/// The mask of a pass over these samples, as multipliers.
fn mask<const D: usize>(epl: &Epl, dropout: &Dropout, step: u64, samples: &[u64], shape: [usize; D]) -> Tensor<D> {
    epl.context().begin(Pass { step, training: true, samples: samples.into(), empty: false });
    dropout.forward(Tensor::ones(shape, &epl.place().device().clone().inner()))
}

fn same<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> bool {
    a.into_data() == b.into_data()
}

#[test]
fn neither_the_cut_of_the_batch_nor_its_order_changes_a_mask() {
    on_one_rank(|epl| {
        let dropout = DropoutConfig::new(0.3).init(epl.place());
        let whole = mask(epl, &dropout, 1, &[10, 11, 12, 13], [4, 5, 7]);
        assert!(same(mask(epl, &dropout, 1, &[11, 12], [2, 5, 7]), whole.clone().narrow(0, 1, 2)));
        assert!(same(mask(epl, &dropout, 1, &[13], [1, 5, 7]), whole.clone().narrow(0, 3, 1)));
        assert!(!same(mask(epl, &dropout, 2, &[10, 11, 12, 13], [4, 5, 7]), whole.clone()), "another step");
        let other = DropoutConfig::new(0.3).init(epl.place());
        assert!(!same(mask(epl, &other, 1, &[10, 11, 12, 13], [4, 5, 7]), whole), "another layer");
    });
}

#[test]
fn a_path_is_dropped_sample_by_sample_whatever_the_cut() {
    on_one_rank(|epl| {
        let layer = DropPathConfig::new(0.25).init(epl.place());
        let samples: Vec<u64> = (0..4000).collect();
        let pass = |samples: &[u64]| {
            epl.context().begin(Pass { step: 1, training: true, samples: samples.into(), empty: false });
            layer.forward(Tensor::<3>::ones([samples.len(), 2, 3], &epl.place().device().clone().inner()))
        };
        let whole = pass(&samples);
        assert!(same(pass(&samples[7..19]), whole.clone().narrow(0, 7, 12)));
        let factors: Vec<f64> = whole.into_data().iter().collect();
        let (zero, kept) = (0.0, 1.0 / 0.75);
        let alike = |sample: &[f64]| sample.iter().all(|factor| (factor - sample[0]).abs() == 0.0);
        assert!(factors.chunks(6).all(alike));
        assert!(factors.iter().all(|factor| *factor == zero || (factor - kept).abs() < 1e-6));
        let share = factors.iter().filter(|factor| **factor != zero).count() as f64 / factors.len() as f64;
        assert!((share - 0.75).abs() < 4.5 * (0.25_f64 * 0.75 / 4000.0).sqrt(), "{share}");
        epl.context().begin(Pass { step: 1, training: false, samples: [0].into(), empty: false });
        let x = Tensor::<3>::ones([1, 2, 3], &epl.place().device().clone().inner());
        assert!(same(layer.forward(x.clone()), x));
    });
}

#[test]
fn padding_does_not_change_a_mask() {
    on_one_rank(|epl| {
        let dropout = DropoutConfig::new(0.3).init(epl.place());
        let short = mask(epl, &dropout, 1, &[5, 6], [2, 5, 7]);
        assert!(same(mask(epl, &dropout, 1, &[5, 6], [2, 9, 7]).slice([0..2, 0..5]), short));
        let short = mask(epl, &dropout, 1, &[5, 6], [2, 3, 4, 5]);
        let long = mask(epl, &dropout, 1, &[5, 6], [2, 3, 8, 9]);
        assert!(same(long.slice([0..2, 0..3, 0..4, 0..5]), short), "attention pads queries and keys");
    });
}

#[test]
fn a_slice_of_a_tensor_gets_its_slice_of_the_mask() {
    on_one_rank(|epl| {
        let dropout = DropoutConfig::new(0.3).init(epl.place());
        let whole = mask(epl, &dropout, 1, &[5, 6], [2, 4, 6, 20]);
        for (dim, ranges) in
            [(1, [0..2, 1..3, 0..6, 0..20]), (2, [0..2, 0..4, 2..6, 0..20]), (3, [0..2, 0..4, 0..6, 3..20])]
        {
            let expected = whole.clone().slice(ranges.clone());
            epl.context().begin(Pass { step: 1, training: true, samples: [5, 6].into(), empty: false });
            let slice = Tensor::<4>::ones(expected.dims(), &expected.device());
            assert!(same(dropout.forward_split(slice, dim, ranges[dim].start), expected), "dim {dim}");
        }
    });
}

#[test]
fn calls_in_one_forward_differ_and_a_second_forward_repeats_them() {
    on_one_rank(|epl| {
        let dropout = DropoutConfig::new(0.3).init(epl.place());
        let device = epl.place().device().clone().inner();
        let first = mask(epl, &dropout, 1, &[5, 6], [2, 50]);
        let second = dropout.forward(Tensor::ones([2, 50], &device));
        assert!(!same(first.clone(), second.clone()));
        assert!(same(mask(epl, &dropout, 1, &[5, 6], [2, 50]), first));
        assert!(same(dropout.forward(Tensor::ones([2, 50], &device)), second));
    });
}

#[test]
fn it_keeps_the_asked_share_and_the_gradient_has_the_same_mask() {
    on_one_rank(|epl| {
        let dropout = DropoutConfig::new(0.25).init(epl.place());
        epl.context().begin(Pass { step: 1, training: true, samples: [1, 2, 3, 4].into(), empty: false });
        let x = Tensor::<3>::ones([4, 100, 100], epl.place().device()).require_grad();
        let y = dropout.forward(x.clone());
        let gradient = x.grad(&y.clone().sum().backward()).expect("x is tracked");
        assert!(same(gradient, y.clone().inner()));
        let values: Vec<f64> = y.into_data().iter().collect();
        let kept = values.iter().filter(|value| **value != 0.0).count() as f64 / 40_000.0;
        assert!((kept - 0.75).abs() < 4.5 * (0.25_f64 * 0.75 / 40_000.0).sqrt(), "{kept}");
        assert!(values.iter().all(|value| *value == 0.0 || (*value - 4.0 / 3.0).abs() < 1e-6));
    });
}

#[test]
fn evaluation_changes_nothing_and_a_wrong_batch_is_an_error() {
    on_one_rank(|epl| {
        let dropout = DropoutConfig::new(0.25).init(epl.place());
        epl.context().begin(Pass { step: 1, training: false, samples: [1].into(), empty: false });
        let x = Tensor::<2>::ones([3, 4], epl.place().device());
        assert!(same(dropout.forward(x.clone()), x.clone()));
        epl.context().begin(Pass { step: 1, training: true, samples: [1].into(), empty: false });
        let error = epl_comm::catch(|| dropout.forward(x)).expect_err("three rows, one sample");
        assert!(error.to_string().contains("3 rows") && error.to_string().contains("1 samples"), "{error}");
        let error = epl_comm::catch(|| DropoutConfig::new(1.0).init(epl.place())).expect_err("nothing would be kept");
        assert!(error.to_string().contains("not in [0, 1)"), "{error}");
    });
}
