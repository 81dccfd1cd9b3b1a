//! What `epl_modules::nn` refuses, with the remedy; what a mask belongs to.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::{Epl, Pass, launch, testing};
use epl_modules::nn;

#[track_caller]
fn refused<T>(parts: &[&str], f: impl Fn(&Epl) -> T + Sync) {
    let found = launch(&testing::config(1, 1, 1), |epl| {
        epl.context().begin(Pass { step: 1, training: true, samples: [5, 6].into(), empty: false });
        epl_comm::catch(|| f(&epl))?;
        Ok(())
    });
    let error = found.expect_err("this is wrong").to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    assert!(!error.contains("panicked"), "{error}");
}

#[test]
fn what_does_not_fit() {
    let x = |epl: &Epl| Tensor::<3>::ones([2, 4, 6], epl.place().device());
    refused(&["d_input 5", "last dim is 6"], |epl| nn::LinearConfig::new(5, 3).init(epl.place()).forward(x(epl)));
    refused(&["num_parameters 3", "[2, 4, 6]"], |epl| {
        nn::PReluConfig::new().with_num_parameters(3).init(epl.place()).forward(x(epl))
    });
    refused(&["4 channels", "3 groups"], |epl| nn::GroupNormConfig::new(3, 4).init(epl.place()));
    refused(&["num_channels 6", "[2, 4, 6]"], |epl| nn::GroupNormConfig::new(3, 6).init(epl.place()).forward(x(epl)));
    refused(&["0 channels"], |epl| nn::InstanceNormConfig::new(0).init(epl.place()));
    refused(&["deviation -1"], |epl| epl.place().enter(|_| nn::GaussianNoiseConfig::new(-1.0).init()));
    refused(&["slopes from 1 to 0"], |epl| {
        epl.place().enter(|_| nn::activation::RReluConfig::new().with_lower(1.0).with_upper(0.0).init())
    });
    refused(&["0 groups"], |epl| nn::conv::Conv1dConfig::new(4, 4, 3).with_groups(0).init(epl.place()));
    refused(&["3 groups", "4 input"], |epl| {
        nn::conv::ConvTranspose2dConfig::new([4, 6], [3, 3]).with_groups(3).init(epl.place())
    });
    refused(&["kernel_size is [0]"], |epl| nn::conv::Conv1dConfig::new(4, 4, 0).init(epl.place()));
    refused(&["5 input channels", "which has 4"], |epl| {
        nn::conv::Conv1dConfig::new(5, 3, 2).init(epl.place()).forward(x(epl))
    });
    refused(&["cannot keep the size", "odd"], |epl| {
        let same = burn::nn::PaddingConfig3d::Same;
        nn::conv::Conv3dConfig::new([4, 4], [3, 2, 3]).with_padding(same).init(epl.place())
    });
    refused(&["0 groups of offsets"], |epl| {
        nn::conv::DeformConv2dConfig::new([4, 4], [3, 3]).with_offset_groups(0).init(epl.place())
    });
}

#[test]
fn rows_that_belong_to_no_sample() {
    refused(&["5 rows", "2 samples", "a dim of their own"], |epl| {
        epl.place().enter(|_| nn::DropoutConfig::new(0.5).init()).forward(Tensor::<2>::ones([5, 3], epl.place().device()))
    });
    // Sequences first: the batch is dim 1.
    refused(&["4 rows", "2 samples", "must be the batch"], |epl| {
        epl.place().enter(|_| nn::GaussianNoiseConfig::new(0.5).init()).forward(Tensor::<3>::ones([4, 2, 3], epl.place().device()))
    });
}

/// A frozen layer drops nothing.
#[test]
fn a_mask_of_a_layer_that_learns() {
    testing::run((1, 1, 1), |epl| {
        let layer = epl.place().enter(|_| nn::DropoutConfig::new(0.5).init());
        let ones = Tensor::<3>::ones([2, 3, 4], epl.place().device());
        let begin = || epl.context().begin(Pass { step: 1, training: true, samples: [5, 6].into(), empty: false });
        begin();
        let whole = layer.forward(ones.clone());
        assert_ne!(whole.into_data(), ones.clone().into_data());
        begin();
        assert_eq!(layer.clone().freeze().forward(ones.clone()).into_data(), ones.clone().into_data());
        assert_eq!(layer.valid().forward(ones.clone()).into_data(), ones.into_data());
        Ok(())
    });
}
