//! One function a layer: the same under every split of the tensor axis.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use epl_core::{Axis, Place};
use epl_modules::*;

use super::run::{At, outcome};
use super::{Outcome, assert_close};

/// The sizes of the tensor axis that are compared with one rank.
const RANKS: [usize; 3] = [2, 3, 4];

fn check(what: &str, limit: f64, ranks: &[usize], run: impl Fn(usize) -> Outcome) {
    let whole = run(1);
    assert!(whole.len() > 1, "{what}: no gradient was compared");
    for ranks in ranks {
        assert_close(&format!("{what}, tensor {ranks}"), &run(*ranks), &whole, limit);
    }
}

pub(crate) fn column_then_row(limit: f64) {
    for (bias, hidden) in [(true, 12), (false, 12), (true, 13)] {
        check("linear", limit, &RANKS, |ranks| {
            let build = |place: &Place| {
                let columns = SplitLinearConfig::new(6, hidden).with_bias(bias).init(&place.child("columns"));
                let rows = SplitLinearConfig::new(hidden, 5).with_cut(LinearCut::Row).with_bias(bias);
                (columns, rows.init(&place.child("rows")))
            };
            outcome(ranks, &[[4, 3, 6]], build, |at: At<'_, (SplitLinear, SplitLinear)>| {
                at.layer.1.forward(at.layer.0.forward(at.inputs[0].clone()))
            })
        });
    }
}

pub(crate) fn columns_gathered(limit: f64) {
    check("columns, gathered", limit, &RANKS, |ranks| {
        let build = |place: &Place| SplitLinearConfig::new(6, 7).init(place);
        outcome(ranks, &[[4, 3, 6]], build, |at: At<'_, SplitLinear>| {
            at.layer.forward(at.inputs[0].clone()).all_gather()
        })
    });
}

pub(crate) fn norms_and_replicated(limit: f64) {
    check("norms", limit, &RANKS, |ranks| {
        let build = |place: &Place| {
            let linear = ReplicatedLinearConfig::new(6, 33).init(place);
            (linear, RmsNormConfig::new(33).init(place), LayerNormConfig::new(33).init(place))
        };
        outcome(ranks, &[[4, 3, 6]], build, |at: At<'_, (ReplicatedLinear, RmsNorm, LayerNorm)>| {
            let (linear, rms, layer) = at.layer;
            layer.forward(rms.forward(linear.forward(at.inputs[0].clone())))
        })
    });
}

fn ids(shape: [usize; 2], below: i64, at: &Place) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..(shape[0] * shape[1]) as i64).map(|i| (i * i * 5 + 3 * i) % below).collect();
    Tensor::from_data(TensorData::new(ids, shape), at.device())
}

pub(crate) fn embedding_with_tied_head(limit: f64) {
    for vocabulary in [12, 13] {
        check("embedding", limit, &RANKS, |ranks| {
            let build = |place: &Place| SplitEmbeddingConfig::new(vocabulary, 6).init(place);
            outcome(ranks, &[[4, 3, 6]], build, |at: At<'_, SplitEmbedding>| {
                let vectors = at.layer.forward(ids([4, 3], vocabulary as i64, at.epl.place()));
                at.layer.logits(vectors + at.inputs[0].clone()).all_gather()
            })
        });
    }
}

/// A tied head with a bias for each word, as BERT's.
#[derive(Module, Debug)]
pub(crate) struct BiasedHead {
    words: SplitEmbedding,
    bias: Param<Tensor<1>>,
}

pub(crate) fn biased_tied_head(limit: f64) {
    check("biased tied head", limit, &RANKS, |ranks| {
        let build = |place: &Place| {
            let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
            BiasedHead {
                words: SplitEmbeddingConfig::new(13, 6).init(&place.child("words")),
                bias: place.child("bias").split_param([13], &[(Axis::Tensor, 0)], normal),
            }
        };
        outcome(ranks, &[[4, 3, 6]], build, |at: At<'_, BiasedHead>| {
            at.layer.words.biased_logits(at.inputs[0].clone(), Some(at.layer.bias.val())).all_gather()
        })
    });
}

pub(crate) fn cross_entropy(limit: f64) {
    for (smoothing, classes) in [(0.0, 12), (0.1, 13), (0.3, 41)] {
        check("cross-entropy", limit, &RANKS, |ranks| {
            let build = |place: &Place| SplitLinearConfig::new(6, classes).init(place);
            outcome(ranks, &[[4, 3, 6]], build, |at: At<'_, SplitLinear>| {
                let loss = SplitCrossEntropyConfig::new().with_label_smoothing(smoothing).init(at.epl.context());
                let targets = ids([4, 3], classes as i64, at.epl.place()).reshape([12]);
                let ignored = Tensor::<1, Bool>::from_data(
                    [0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0].map(|x| x == 1),
                    at.epl.place().device(),
                );
                let targets = targets.mask_fill(ignored, -100);
                let logits = at.layer.forward(at.inputs[0].clone().reshape([12, 6]) * 4.0);
                loss.forward(logits, targets).reshape([1, 1, 1])
            })
        });
    }
}

pub(crate) fn argmax(_limit: f64) {
    for classes in [12, 13] {
        let find = |ranks: usize| {
            let build = |place: &Place| SplitLinearConfig::new(6, classes).init(place);
            let found = std::sync::Mutex::new(Vec::new());
            outcome(ranks, &[[4, 3, 6]], build, |at: At<'_, SplitLinear>| {
                let logits = at.layer.forward(at.inputs[0].clone().reshape([12, 6]));
                // Every row a second time with all classes equal: the lowest id wins.
                let tied = epl_comm::Split::from_local(logits.clone().local() * 0.0, 1, classes, logits.group());
                let all: Vec<i64> = split_argmax(logits).into_data().iter().collect();
                assert_eq!(split_argmax(tied).into_data().iter::<i64>().max(), Some(0));
                found.lock().expect("no rank panicked").push(all);
                at.inputs[0].clone()
            });
            let found = found.into_inner().expect("no rank panicked");
            assert!(found.iter().all(|ids| *ids == found[0]), "ranks differ");
            found[0].clone()
        };
        let whole = find(1);
        assert!(whole.iter().collect::<std::collections::BTreeSet<_>>().len() > 2, "{whole:?}");
        RANKS.iter().for_each(|ranks| assert_eq!(find(*ranks), whole));
    }
}

fn padding(at: &Place) -> Tensor<2, Bool> {
    // The last sample has no key at all.
    let hidden: Vec<bool> = (0..4 * 5).map(|i| i >= 15 || (i / 5 == 1 && i % 5 > 2)).collect();
    Tensor::from_data(TensorData::new(hidden, [4, 5]), at.device())
}

pub(crate) fn self_attention(limit: f64) {
    for (bias, scale, dropout, causal) in
        [(true, None, 0.0, false), (false, Some(1.0), 0.3, true), (true, None, 0.5, false)]
    {
        check("self-attention", limit, &[2, 4], |ranks| {
            let build = |place: &Place| {
                let config = MultiHeadAttentionConfig::new(6, 4).with_head_dim(Some(3)).with_bias(bias);
                config.with_scale(scale).with_dropout(dropout).init(place)
            };
            outcome(ranks, &[[4, 5, 6]], build, |at: At<'_, MultiHeadAttention>| {
                let input = AttentionInput::self_attention(at.inputs[0].clone()).with_padding(padding(at.epl.place()));
                at.layer.forward(if causal { input.causal() } else { input })
            })
        });
    }
}

/// Heads that share keys and values, each normalised and turned by its position.
pub(crate) fn grouped_attention(limit: f64) {
    for (heads, of_keys, ranks) in [(4, 2, &[2][..]), (8, 4, &[2, 4]), (4, 4, &[4])] {
        for (norm, dropout, causal) in [(None, 0.3, true), (Some(1e-6), 0.0, false)] {
            check(&format!("{heads} heads that share {of_keys}"), limit, ranks, |ranks| {
                let build = |place: &Place| {
                    let config = MultiHeadAttentionConfig::new(6, heads).with_n_kv_heads(Some(of_keys));
                    let config = config.with_head_dim(Some(4)).with_rotary(Some(RotaryConfig::new().with_theta(10.0)));
                    config.with_qk_norm(norm).with_dropout(dropout).with_bias(false).init(place)
                };
                let found = outcome(ranks, &[[4, 5, 6]], build, |at: At<'_, MultiHeadAttention>| {
                    let input = AttentionInput::self_attention(at.inputs[0].clone());
                    let input = input.with_padding(padding(at.epl.place()));
                    at.layer.forward(if causal { input.causal() } else { input })
                });
                // The output, the input's gradient, and that of every parameter.
                assert_eq!(found.len(), 2 + 4 + if norm.is_some() { 2 } else { 0 });
                found
            });
        }
    }
}

pub(crate) fn cross_attention_with_bias(limit: f64) {
    for bidirectional in [true, false] {
        check("cross-attention", limit, &[2, 4], |ranks| {
            let build = |place: &Place| {
                let attention = MultiHeadAttentionConfig::new(6, 4).with_head_dim(Some(2)).with_dropout(0.2);
                let bias = RelativeBiasConfig::new(4).with_bidirectional(bidirectional).with_n_buckets(8);
                (attention.init(&place.child("attention")), bias.with_max_distance(6).init(&place.child("bias")))
            };
            outcome(ranks, &[[4, 3, 6], [4, 5, 6]], build, |at: At<'_, (MultiHeadAttention, RelativeBias)>| {
                let (attention, bias) = at.layer;
                let memory = epl_comm::copied(at.inputs[1].clone(), at.epl.context().tensor());
                let input = AttentionInput::cross_attention(at.inputs[0].clone(), memory);
                attention.forward(input.with_padding(padding(at.epl.place())).with_bias(bias.forward(3, 5, 1)))
            })
        });
    }
}

pub(crate) fn parallel_mlp(limit: f64) {
    let kinds = [Activation::Relu, Activation::Gelu, Activation::GeluNew, Activation::Silu];
    for (gated, activation) in kinds.into_iter().flat_map(|kind| [(false, kind), (true, kind)]) {
        for (d_ff, bias) in [(13, true), (13, false), (12, true)] {
            check(&format!("{activation:?}, gated {gated}, d_ff {d_ff}"), limit, &RANKS, |ranks| {
                let config = ParallelMlpConfig::new(6, d_ff).with_gated(gated).with_activation(activation);
                let config = config.with_bias(bias).with_dropout(0.25);
                let found = outcome(
                    ranks,
                    &[[4, 3, 6]],
                    |place: &Place| config.init(place),
                    |at: At<'_, ParallelMlp>| at.layer.forward(at.inputs[0].clone()),
                );
                // The output, the input's gradient, and that of every parameter.
                assert_eq!(found.len(), 2 + (2 + usize::from(gated)) * (1 + usize::from(bias)));
                found
            });
        }
    }
}
