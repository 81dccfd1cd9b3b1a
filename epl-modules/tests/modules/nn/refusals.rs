//! What `epl_modules::nn` refuses, with the remedy; what a mask belongs to.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::{Config, Epl, Pass, Place, WithLoss, launch, launch_dry, testing};
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

/// What Burn pads on both sides alike.
#[test]
fn padding_of_one_side() {
    refused(&["1 at the top", "2 at the bottom", "opposite sides the same"], |epl| {
        let padding = burn::nn::PaddingConfig2d::Explicit(1, 1, 2, 1);
        nn::conv::DeformConv2dConfig::new([4, 4], [3, 3]).with_padding(padding).init(epl.place())
    });
    let parts = &["kernel of [3, 3] with stride [2, 2] adds [1, 2] to an image of [4, 5]", "stride 1"];
    refused(parts, |epl| {
        let same = burn::nn::PaddingConfig2d::Same;
        let layer = nn::conv::DeformConv2dConfig::new([1, 1], [3, 3]).with_padding(same).with_stride([2, 2]);
        let [image, offset] = [[1, 1, 4, 5], [1, 18, 2, 3]].map(|dims| Tensor::ones(dims, epl.place().device()));
        layer.init(epl.place()).forward(image, offset, None)
    });
    let strided = |epl: &Epl, image: [usize; 5]| {
        let same = burn::nn::PaddingConfig3d::Same;
        let layer = nn::conv::Conv3dConfig::new([1, 1], [3, 3, 3]).with_padding(same).with_stride([1, 2, 2]);
        layer.init(epl.place()).forward(Tensor::ones(image, epl.place().device()))
    };
    refused(&["adds [2, 1, 2] to an image of [3, 4, 5]"], |epl| strided(epl, [1, 1, 3, 4, 5]));
    // Of an odd image both sides get the same.
    testing::run((1, 1, 1), |epl| {
        assert_eq!(strided(&epl, [1, 1, 3, 5, 7]).dims(), [1, 1, 3, 3, 4]);
        Ok(())
    });
}

#[test]
fn attention_of_nothing() {
    use nn::attention::{CrossAttentionConfig, MultiHeadAttentionConfig};
    use nn::transformer::{TransformerDecoderConfig, TransformerEncoderConfig};
    refused(&["d_model 0 and n_heads 2", "at least 1"], |epl| MultiHeadAttentionConfig::new(0, 2).init(epl.place()));
    refused(&["d_model 4 and n_heads 0", "at least 1"], |epl| MultiHeadAttentionConfig::new(4, 0).init(epl.place()));
    refused(&["n_heads 2 and n_heads_kv 1 and d_head 0"], |epl| {
        CrossAttentionConfig::new(4, 4, 2, 1, 0).init(epl.place())
    });
    refused(&["n_heads 0 and n_heads_kv 1"], |epl| CrossAttentionConfig::new(4, 4, 0, 1, 2).init(epl.place()));
    refused(&["n_heads 2 and n_heads_kv 0"], |epl| CrossAttentionConfig::new(4, 4, 2, 0, 2).init(epl.place()));
    refused(&["d_model 0 and n_heads 2"], |epl| TransformerEncoderConfig::new(0, 4, 2, 1).init(epl.place()));
    refused(&["d_model 4 and n_heads 0"], |epl| TransformerDecoderConfig::new(4, 4, 0, 1).init(epl.place()));
    refused(&["n_heads 2 and head_dim 0"], |epl| {
        epl_modules::MultiHeadAttentionConfig::new(4, 2).with_head_dim(Some(0)).init(epl.place())
    });
}

/// Burn counts numbers where it means dims; its layer panics.
#[test]
fn a_group_norm_of_two_numbers() {
    refused(&["an input of [1, 2]", "at least 3 numbers"], |epl| {
        nn::GroupNormConfig::new(1, 2).init(epl.place()).forward(Tensor::<2>::ones([1, 2], epl.place().device()))
    });
    let burns = epl_comm::catch(|| {
        let device = burn::tensor::Device::flex();
        burn::nn::GroupNormConfig::new(1, 2).init(&device).forward(Tensor::<2>::ones([1, 2], &device)).dims()
    });
    assert!(burns.is_err_and(|error| error.to_string().contains("at least 3")));
}

/// A scope that cuts nothing tells of a layer of this module by its sizes.
#[test]
fn a_scope_around_what_is_too_small() {
    use super::case::Layer;
    use super::strategy::scoped;
    let linear = Layer::<nn::Linear> {
        build: |place| nn::LinearConfig::new(5, 1).init(place),
        forward: |layer, x| layer.forward(x),
    };
    let error = scoped(linear).expect_err("one column for two devices").to_string();
    assert!(error.contains("each of the 2 devices") && error.contains("`weight` of [5, 1]"), "{error}");
    assert!(error.contains("Linear (`layer`): is of epl::nn") && !error.contains("use Linear"), "{error}");
    let network = Layer::<nn::transformer::PositionWiseFeedForward> {
        build: |place| nn::transformer::PositionWiseFeedForwardConfig::new(5, 1).init(place),
        forward: |layer, x| layer.forward(x),
    };
    let error = scoped(network).expect_err("one feature for two devices").to_string();
    assert!(error.contains("`linear_inner.weight` of [5, 1]"), "{error}");
}

#[test]
fn sequences_and_states_that_do_not_fit() {
    let x = |epl: &Epl| Tensor::<3>::ones([2, 4, 6], epl.place().device());
    let states = |epl: &Epl| Tensor::<3>::ones([3, 2, 5], epl.place().device());
    let state = |epl: &Epl| states(epl).narrow(0, 0, 1).squeeze_dim::<2>(0);
    refused(&["LSTM of d_input 5", "last dim is 6"], |epl| {
        nn::LstmConfig::new(5, 3, true).init(epl.place()).forward(x(epl), None)
    });
    refused(&["LSTM of d_hidden 3", "2 sequences", "[2, 5]", "[2, 3]"], |epl| {
        let state = nn::LstmState::new(state(epl), state(epl));
        nn::LstmConfig::new(6, 3, true).init(epl.place()).forward(x(epl), Some(state))
    });
    refused(&["LSTM got 3 steps of a sequence of 4"], |epl| {
        let (steps, device) = (x(epl).iter_dim(1).enumerate().skip(1), epl.place().device());
        nn::LstmConfig::new(6, 3, true).init(epl.place()).forward_iter(steps, None, 2, 4, device)
    });
    refused(&["LSTM got step 3 of a sequence of 3"], |epl| {
        let (steps, device) = (x(epl).iter_dim(1).enumerate(), epl.place().device());
        nn::LstmConfig::new(6, 3, true).init(epl.place()).forward_iter(steps, None, 2, 3, device)
    });
    refused(&["GRU of d_input 5", "last dim is 6"], |epl| {
        nn::BiGruConfig::new(5, 3, true).init(epl.place()).forward(x(epl), None)
    });
    refused(&["BiGRU", "[3, 2, 5], of 3 directions", "[2, batch_size"], |epl| {
        nn::BiGruConfig::new(6, 5, true).init(epl.place()).forward(x(epl), Some(states(epl)))
    });
    refused(&["RNN of d_hidden 3", "4 sequences", "[2, 5]"], |epl| {
        let layer = nn::RnnConfig::new(6, 3, true).with_batch_first(false).init(epl.place());
        layer.forward(x(epl), Some(nn::RnnState::new(state(epl))))
    });
}

/// What cannot be cut is told apart from what is: beside a layer that is cut it is no error.
#[test]
fn a_split_of_recurrent_layers_alone() {
    #[derive(Module, Debug)]
    struct Two {
        layer: nn::Lstm,
        head: Option<nn::Linear>,
    }
    let planned = |with_head: bool| {
        let config = Config::new().with("cluster.ranks", 2).expect("an option");
        let two = |at: &Place| Two {
            layer: nn::LstmConfig::new(4, 4, true).init(&at.child("layer")),
            head: with_head.then(|| nn::LinearConfig::new(4, 4).init(&at.child("head"))),
        };
        let model = |at: &Place| WithLoss::new(at.split(2, two), |_: &Two, _: &()| unreachable!("nothing is run"));
        launch_dry(&config, 0, |epl| epl.plan(model).map(drop)).map(drop)
    };
    let error = planned(false).expect_err("nothing is cut").to_string();
    assert!(error.contains("\n- Lstm (`layer`): cannot be cut: use replicate"), "{error}");
    planned(true).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn rows_that_belong_to_no_sample() {
    refused(&["5 rows", "2 samples", "a dim of their own"], |epl| {
        epl.place()
            .enter(|_| nn::DropoutConfig::new(0.5).init())
            .forward(Tensor::<2>::ones([5, 3], epl.place().device()))
    });
    // Sequences first: the batch is dim 1.
    refused(&["4 rows", "2 samples", "must be the batch"], |epl| {
        epl.place()
            .enter(|_| nn::GaussianNoiseConfig::new(0.5).init())
            .forward(Tensor::<3>::ones([4, 2, 3], epl.place().device()))
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
