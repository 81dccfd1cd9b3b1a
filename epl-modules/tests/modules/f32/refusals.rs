//! What a user gets wrong is an error with both numbers, not a panic.

use burn::tensor::{Bool, Int, Tensor};
use epl_core::{Epl, launch, testing};
use epl_modules::*;

/// The error of a closure on `ranks` tensor ranks.
#[track_caller]
fn refused<T>(ranks: usize, parts: &[&str], f: impl Fn(&Epl) -> T + Sync) {
    let found = launch(&testing::config(1, ranks, 1), |epl| {
        epl_comm::catch(|| f(&epl))?;
        Ok(())
    });
    let error = found.expect_err("this is wrong").to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    assert!(!error.contains("panicked"), "{error}");
}

#[test]
fn sizes_that_cannot_be_split() {
    refused(2, &["layer: 3 heads", "2 ranks of the tensor axis"], |epl| {
        MultiHeadAttentionConfig::new(6, 3).init(&epl.place().child("layer"))
    });
    refused(2, &["layer: 1 heads of keys and values", "2 ranks of the tensor axis", "divides 1"], |epl| {
        let config = MultiHeadAttentionConfig::new(8, 4).with_n_kv_heads(Some(1));
        config.init(&epl.place().child("layer"))
    });
    refused(1, &["layer: 4 heads", "3 heads of keys", "divides 4"], |epl| {
        let config = MultiHeadAttentionConfig::new(8, 4).with_n_kv_heads(Some(3));
        config.init(&epl.place().child("layer"))
    });
    refused(1, &["layer: rotary positions of a head of 3 features"], |epl| {
        let config = MultiHeadAttentionConfig::new(6, 2).with_rotary(Some(RotaryConfig::new()));
        config.init(&epl.place().child("layer"))
    });
    refused(2, &["3 heads", "2 ranks"], |epl| RelativeBiasConfig::new(3).init(epl.place()));
    refused(1, &["d_model 6", "4 heads"], |epl| MultiHeadAttentionConfig::new(6, 4).init(epl.place()));
    refused(4, &["3 columns", "4 ranks"], |epl| SplitLinearConfig::new(8, 3).init(epl.place()));
    refused(4, &["3 rows", "4 ranks"], |epl| SplitLinearConfig::new(3, 8).with_cut(LinearCut::Row).init(epl.place()));
    refused(4, &["2 rows", "4 ranks"], |epl| SplitEmbeddingConfig::new(2, 8).init(epl.place()));
    refused(4, &["3 output channels", "4 ranks"], |epl| SplitConv2dConfig::new([8, 3], [1, 1]).init(epl.place()));
    refused(4, &["3 input channels", "4 ranks"], |epl| {
        SplitConv2dConfig::new([3, 8], [1, 1]).with_cut(ChannelCut::Input).init(epl.place())
    });
    refused(2, &["this rank has 4 rows", "a bias of 8"], |epl| {
        let (table, device) = (SplitEmbeddingConfig::new(8, 4).init(epl.place()), epl.place().device());
        table.biased_logits(Tensor::<2>::zeros([3, 4], device), Some(Tensor::zeros([8], device)))
    });
    refused(2, &["2 groups", "ReplicatedConv2d"], |epl| {
        SplitConv2dConfig::new([4, 4], [1, 1]).with_groups(2).init(epl.place())
    });
    refused(1, &["3 groups", "4 input", "6 output"], |epl| {
        ReplicatedConv2dConfig::new([4, 6], [1, 1]).with_groups(3).init(epl.place())
    });
    refused(1, &["layer: attention of", "window 0"], |epl| {
        MultiHeadAttentionConfig::new(4, 2).with_window(Some(0)).init(&epl.place().child("layer"))
    });
    refused(1, &["2 buckets", "at least 4"], |epl| RelativeBiasConfig::new(1).with_n_buckets(2).init(epl.place()));
    refused(2, &["3 heads", "2 ranks"], |epl| WindowBiasConfig::new(3, 2).init(epl.place()));
    refused(1, &["a `pretrained_side` of 1", "2 at least"], |epl| {
        WindowBiasConfig::new(2, 4).with_continuous(true).with_pretrained_side(Some(1)).init(epl.place())
    });
    refused(1, &["windows of 3 positions a side, for a bias of 2"], |epl| {
        WindowBiasConfig::new(2, 2).init(epl.place()).forward(&Windows::new([6, 6], 3, 0))
    });
}

#[test]
fn windows_and_what_is_of_whole_sequences() {
    let layer = |epl: &Epl| TransformerLayerConfig::new(4, 2, 8).init(epl.place());
    let input = |epl: &Epl, windows: Windows| {
        TransformerInput::new(Tensor::zeros([1, 16, 4], epl.place().device())).in_windows(windows)
    };
    refused(1, &["a layer in windows got a cache or padding"], |epl| {
        let padding = Tensor::<2, Int>::zeros([1, 16], epl.place().device()).equal_elem(1);
        layer(epl).forward(input(epl, Windows::new([4, 4], 2, 0)).with_padding(padding)).hidden
    });
    refused(1, &["16 positions, for windows of a grid of 4 × 6"], |epl| {
        layer(epl).forward(input(epl, Windows::new([4, 6], 2, 0))).hidden
    });
    refused(1, &["got a bias of [3, 2, 4, 4]", "[1, 4 or 4, 2, 4, 4]"], |epl| {
        let bias = Tensor::zeros([3, 2, 4, 4], epl.place().device());
        layer(epl).forward(input(epl, Windows::new([4, 4], 2, 0)).with_bias(bias)).hidden
    });
    refused(1, &["attention of 3 sequences", "2 windows each"], |epl| {
        let attention = MultiHeadAttentionConfig::new(4, 2).init(epl.place());
        attention.forward(AttentionInput::self_attention(Tensor::zeros([3, 4, 4], epl.place().device())).in_windows(2))
    });
}

#[test]
fn values_out_of_range() {
    refused(1, &["1.5", "[0, 1)"], |epl| DropoutConfig::new(1.5).init(epl.place()));
    refused(1, &["epsilon -1"], |epl| RmsNormConfig::new(4).with_epsilon(-1.0).init(epl.place()));
    refused(1, &["epsilon -2"], |epl| NormConfig::new(4).with_epsilon(-2.0).init(epl.place()));
    refused(1, &["layer.feed_forward.dense: dropout probability 1"], |epl| {
        TransformerLayerConfig::new(4, 2, 8).with_activation_dropout(1.0).init(&epl.place().child("layer"))
    });
    refused(1, &["epsilon 0"], |epl| LayerNormConfig::new(4).with_epsilon(0.0).init(epl.place()));
    refused(1, &["epsilon inf"], |epl| LayerNormConfig::new(4).with_epsilon(f64::INFINITY).init(epl.place()));
    refused(1, &["epsilon inf"], |epl| RmsNormConfig::new(4).with_epsilon(f64::INFINITY).init(epl.place()));
    refused(1, &["epsilon NaN"], |epl| SyncBatchNormConfig::new(4).with_epsilon(f64::NAN).init(epl.place()));
    refused(1, &["momentum 1.1", "[0, 1]"], |epl| SyncBatchNormConfig::new(4).with_momentum(1.1).init(epl.place()));
    refused(1, &["0 channels"], |epl| SyncBatchNormConfig::new(0).init(epl.place()));
    refused(1, &["a layer norm of d_model 0", "at least 1"], |epl| LayerNormConfig::new(0).init(epl.place()));
    refused(1, &["an RMS norm of d_model 0", "at least 1"], |epl| RmsNormConfig::new(0).init(epl.place()));
    refused(1, &["layer: a softcap of -2"], |epl| {
        MultiHeadAttentionConfig::new(4, 2).with_softcap(Some(-2.0)).init(&epl.place().child("layer"))
    });
    refused(1, &["layer: attention with a scale of inf"], |epl| {
        MultiHeadAttentionConfig::new(4, 2).with_scale(Some(f64::INFINITY)).init(&epl.place().child("layer"))
    });
    refused(1, &["stride is [1, 0]", "at least 1"], |epl| {
        ReplicatedConv2dConfig::new([2, 2], [3, 3]).with_stride([1, 0]).init(epl.place())
    });
    refused(1, &["2", "[0, 1]"], |epl| SplitCrossEntropyConfig::new().with_label_smoothing(2.0).init(epl.context()));
}

#[test]
fn inputs_that_do_not_fit() {
    refused(1, &["cut by rows", "Split"], |epl| {
        let layer = SplitLinearConfig::new(4, 4).with_cut(LinearCut::Row).init(epl.place());
        layer.forward(Tensor::<2>::ones([1, 4], epl.place().device()))
    });
    refused(1, &["cut by columns"], |epl| {
        let layer = SplitLinearConfig::new(4, 4).init(epl.place());
        let x = layer.forward(Tensor::<2>::ones([1, 4], epl.place().device()));
        layer.forward(x)
    });
    refused(1, &["row 1 is 7", "5 classes", "-100"], |epl| {
        let logits =
            epl_comm::Split::from_local(Tensor::ones([2, 5], epl.place().device()), 1, 5, epl.context().tensor());
        SplitCrossEntropyConfig::new()
            .init(epl.context())
            .forward(logits, Tensor::<1, Int>::from_data([0, 7], epl.place().device()))
    });
    refused(4, &["3 classes", "4 ranks", "hold none"], |epl| {
        let group = epl.context().tensor();
        let mine = epl_comm::shard_range(3, 4, group.rank()).len();
        let logits = epl_comm::Split::from_local(Tensor::ones([2, mine], epl.place().device()), 1, 3, group);
        SplitCrossEntropyConfig::new()
            .init(epl.context())
            .forward(logits, Tensor::<1, Int>::from_data([0, 2], epl.place().device()))
    });
    refused(1, &["2 x 3 keys", "[2, 4]"], |epl| {
        let layer = MultiHeadAttentionConfig::new(4, 2).init(epl.place());
        let (x, padding) = (
            Tensor::ones([2, 3, 4], epl.place().device()),
            Tensor::<2, Bool>::full([2, 4], true, epl.place().device()),
        );
        layer.forward(AttentionInput::self_attention(x).with_padding(padding))
    });
    let window = |epl: &Epl| MultiHeadAttentionConfig::new(4, 2).with_window(Some(2)).init(epl.place());
    let ones = |epl: &Epl, positions| Tensor::<3>::ones([2, positions, 4], epl.place().device());
    refused(1, &["a window of 2", "an input that is not causal"], |epl| {
        window(epl).forward(AttentionInput::self_attention(ones(epl, 3)))
    });
    refused(1, &["a window of 2", "a memory"], |epl| {
        window(epl).forward(AttentionInput::cross_attention(ones(epl, 3), ones(epl, 3)).causal())
    });
    // Padding is that of all keys, those too that a cache has forgotten.
    refused(1, &["2 x 4 keys", "[2, 2]"], |epl| {
        let (layer, mut cache) = (window(epl), AttentionCache::new());
        layer.forward_cache(AttentionInput::self_attention(ones(epl, 3)).causal(), &mut cache);
        let padding = Tensor::<2, Bool>::full([2, 2], false, epl.place().device());
        layer.forward_cache(AttentionInput::self_attention(ones(epl, 1)).causal().with_padding(padding), &mut cache)
    });
    refused(1, &["[1, 1, 3, 3]", "[1 or 2, 2, 3, 3]"], |epl| {
        let layer = MultiHeadAttentionConfig::new(4, 2).init(epl.place());
        let (x, bias) =
            (Tensor::ones([2, 3, 4], epl.place().device()), Tensor::ones([1, 1, 3, 3], epl.place().device()));
        layer.forward(AttentionInput::self_attention(x).with_bias(bias))
    });
}

#[test]
fn a_last_dim_that_is_not_the_layers() {
    fn x(epl: &Epl) -> Tensor<3> {
        Tensor::ones([1, 2, 6], epl.place().device())
    }
    let parts = ["4", "[1, 2, 6]", "last dim is 6"];
    refused(1, &parts, |epl| RmsNormConfig::new(4).init(epl.place()).forward(x(epl)));
    refused(1, &parts, |epl| LayerNormConfig::new(4).init(epl.place()).forward(x(epl)));
    refused(1, &parts, |epl| ReplicatedLinearConfig::new(4, 3).init(epl.place()).forward(x(epl)));
    refused(2, &parts, |epl| SplitLinearConfig::new(4, 3).init(epl.place()).forward(x(epl)));
    refused(2, &parts, |epl| SplitEmbeddingConfig::new(9, 4).init(epl.place()).logits(x(epl)));
    refused(2, &parts, |epl| ParallelMlpConfig::new(4, 8).init(epl.place()).forward(x(epl)));
    refused(1, &parts, |epl| MoeConfig::new(4, 8, 2).init(epl.place()).forward(x(epl), None));
    refused(2, &parts, |epl| {
        MultiHeadAttentionConfig::new(4, 2).init(epl.place()).forward(AttentionInput::self_attention(x(epl)))
    });
}

#[test]
fn channels_that_are_not_the_layers() {
    fn x(epl: &Epl) -> Tensor<4> {
        Tensor::ones([2, 6, 3, 3], epl.place().device())
    }
    refused(1, &["num_features 4", "[2, 6, 3, 3]"], |epl| {
        SyncBatchNormConfig::new(4).init(epl.place()).forward(x(epl))
    });
    refused(1, &["num_features 4", "[4]"], |epl| {
        SyncBatchNormConfig::new(4).init(epl.place()).forward(Tensor::<1>::ones([4], epl.place().device()))
    });
    let parts = ["4 input channels", "[2, 6, 3, 3]", "which has 6"];
    refused(1, &parts, |epl| ReplicatedConv2dConfig::new([4, 4], [1, 1]).init(epl.place()).forward(x(epl)));
    refused(2, &parts, |epl| SplitConv2dConfig::new([4, 4], [1, 1]).init(epl.place()).forward(x(epl)));
    refused(2, &["dim 1 of 4", "dim 1 of 6"], |epl| {
        let layer = SplitConv2dConfig::new([4, 4], [1, 1]).with_cut(ChannelCut::Input).init(epl.place());
        layer.forward(epl_comm::sliced(x(epl), 1, epl.context().tensor()))
    });
    refused(2, &["cut by input channels", "Split"], |epl| {
        SplitConv2dConfig::new([6, 4], [1, 1]).with_cut(ChannelCut::Input).init(epl.place()).forward(x(epl))
    });
    refused(2, &["cut by output channels", "gather"], |epl| {
        let layer = SplitConv2dConfig::new([6, 6], [1, 1]).init(epl.place());
        let split = layer.forward(x(epl));
        layer.forward(split)
    });
}

#[test]
fn ids_that_no_rank_holds() {
    for ranks in [1, 2] {
        for id in [9, -1, 100] {
            refused(ranks, &["n_embedding 9", &format!("id {id}"), "below 9"], |epl| {
                let ids = Tensor::<2, Int>::from_data([[0, 8], [id, 3]], epl.place().device());
                SplitEmbeddingConfig::new(9, 4).init(epl.place()).forward(ids)
            });
        }
    }
}

#[test]
fn tensors_of_another_group() {
    let parts = ["layer over the tensor axis of 1 ranks", "over the data axis of 2 ranks"];
    let refused = |what: &str, f: &(dyn Fn(&Epl, &SplitLinear, Tensor<2>) + Sync)| {
        let found = launch(&testing::config(2, 1, 1), |epl| {
            let cut = if what == "split" { LinearCut::Row } else { LinearCut::Column };
            let layer = SplitLinearConfig::new(4, 4).with_cut(cut).init(epl.place());
            epl_comm::catch(|| f(&epl, &layer, Tensor::ones([2, 4], epl.place().device())))?;
            Ok(())
        });
        let error = found.expect_err("the groups differ").to_string();
        assert!(parts.iter().all(|part| error.contains(part)) && error.contains(what), "{error}");
    };
    refused("split", &|epl, layer, x| drop(layer.forward(epl_comm::sliced(x, 1, epl.context().data()))));
    refused("copied", &|epl, layer, x| drop(layer.forward(epl_comm::copied(x, epl.context().data()))));
}

#[test]
fn a_memory_of_another_batch() {
    refused(1, &["2 sequences", "keys of 3"], |epl| {
        let layer = MultiHeadAttentionConfig::new(4, 2).init(epl.place());
        let [x, memory] = [2, 3].map(|batch| Tensor::<3>::ones([batch, 5, 4], epl.place().device()));
        layer.forward(AttentionInput::cross_attention(x, memory))
    });
    refused(1, &["1 sequences", "keys of 2", "select"], |epl| {
        let layer = MultiHeadAttentionConfig::new(4, 2).init(epl.place());
        let mut cache = AttentionCache::new();
        for batch in [2, 1] {
            let [x, memory] = [(); 2].map(|()| Tensor::<3>::ones([batch, 5, 4], epl.place().device()));
            layer.forward_cache(AttentionInput::cross_attention(x, memory), &mut cache);
        }
    });
    refused(1, &["1 sequences", "keys of 2", "select"], |epl| {
        let layer = MultiHeadAttentionConfig::new(4, 2).init(epl.place());
        let mut cache = AttentionCache::new();
        for batch in [2, 1] {
            let x = Tensor::<3>::ones([batch, 5, 4], epl.place().device());
            layer.forward_cache(AttentionInput::self_attention(x), &mut cache);
        }
    });
}

#[test]
fn a_memory_has_no_rotary_positions() {
    refused(1, &["rotary positions got a memory", "without `rotary`"], |epl| {
        let x = Tensor::<3>::ones([2, 3, 4], epl.place().device());
        let layer = MultiHeadAttentionConfig::new(4, 2).with_rotary(Some(RotaryConfig::new())).init(epl.place());
        layer.forward(AttentionInput::cross_attention(x.clone(), x))
    });
}

#[test]
fn a_transformer_layer_that_does_not_fit_its_input() {
    let config = || TransformerLayerConfig::new(4, 2, 8);
    let x = |epl: &Epl| Tensor::<3>::ones([2, 3, 4], epl.place().device());
    refused(2, &["layer.self_attention.heads: 3 heads", "2 ranks"], |epl| {
        TransformerLayerConfig::new(6, 3, 8).init(&epl.place().child("layer"))
    });
    refused(1, &["layer.feed_forward.moe: 1 experts", "Top2"], |epl| {
        let experts = LayerExpertsConfig::new(1).with_gate(Gate::Top2);
        config().with_experts(Some(experts)).init(&epl.place().child("layer"))
    });
    refused(1, &["with cross-attention got no memory", "with_memory"], |epl| {
        let layer = config().with_cross_attention(true).init(epl.place());
        layer.forward(TransformerInput::new(x(epl))).hidden
    });
    refused(1, &["without cross-attention got a memory", "`cross_attention` true"], |epl| {
        config().init(epl.place()).forward(TransformerInput::new(x(epl)).with_memory(x(epl), None)).hidden
    });
    refused(1, &["2 x 3 keys", "[2, 4]"], |epl| {
        let padding = Tensor::<2, Bool>::full([2, 4], false, epl.place().device());
        config().init(epl.place()).forward(TransformerInput::new(x(epl)).with_padding(padding)).hidden
    });
    // The padding of cached positions says nothing of how many are new.
    refused(1, &["1 positions of 2 sequences", "[2, 4]", "with_tokens"], |epl| {
        let layer = config().with_experts(Some(LayerExpertsConfig::new(2))).init(epl.place());
        let mut cache = TransformerCache::new();
        let _ = layer.forward_cache(TransformerInput::new(x(epl)).causal(), &mut cache);
        let padding = Tensor::<2, Bool>::full([2, 4], false, epl.place().device());
        let next = TransformerInput::new(x(epl).narrow(1, 0, 1)).causal().with_padding(padding);
        layer.forward_cache(next, &mut cache).hidden
    });
}

#[test]
fn a_display_says_where_a_layer_is() {
    testing::run((1, 2, 1), |epl| {
        let rank = epl.context().tensor().rank();
        let layer = SplitLinearConfig::new(4, 10).init(epl.place());
        let shown = layer.to_string();
        let columns = if rank == 0 { "columns 0..5 of 10" } else { "columns 5..10 of 10" };
        assert!(shown.contains(columns) && shown.contains("tensor"), "{shown}");
        let attention = MultiHeadAttentionConfig::new(4, 2).init(epl.place()).to_string();
        assert!(attention.contains("head") && attention.contains("of 2"), "{attention}");
        let conv = SplitConv2dConfig::new([3, 5], [1, 1]).init(epl.place()).to_string();
        let channels = if rank == 0 { "output channels 0..3 of 5" } else { "output channels 3..5 of 5" };
        assert!(conv.contains(channels), "{conv}");
        let conv = ReplicatedConv2dConfig::new([3, 5], [1, 1]).init(epl.place()).to_string();
        assert!(conv.contains("placement: replicated") && conv.contains("[3, 5]"), "{conv}");
        let norm = SyncBatchNormConfig::new(4).init(epl.place()).to_string();
        assert!(norm.contains("placement: replicated") && norm.contains("of all replicas"), "{norm}");
        let moe = MoeConfig::new(4, 6, 2).init(epl.place());
        assert!(moe.router.to_string().contains("placement: replicated"), "{}", moe.router);
        let features = if rank == 0 { "hidden features 0..3 of 6" } else { "hidden features 3..6 of 6" };
        let shown = moe.experts.to_string();
        assert!(shown.contains("experts 0..2 of 2") && shown.contains(features), "{shown}");
        assert!(DropoutConfig::new(0.1).init(epl.place()).to_string().contains("placement: no parameters"));
        assert!(RmsNormConfig::new(4).init(epl.place()).to_string().contains("replicated"));
        assert!(NormConfig::new(4).init(epl.place()).to_string().starts_with("LayerNorm {"));
        let layer = TransformerLayerConfig::new(4, 2, 6).with_norm_order(NormOrder::Post).init(epl.place());
        let shown = layer.to_string();
        let (heads, features) = match rank {
            0 => ("heads 0..1 of 2", "features 0..3 of 6"),
            _ => ("heads 1..2 of 2", "features 3..6 of 6"),
        };
        for part in ["norm_order: Post", "cross_attention: None", "LayerNorm {d_model: 4", heads, features] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        Ok(())
    });
}
