//! A table of segments, and what is found of each.

use burn::module::Param;
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::nn::conv::Conv2dConfig;
use burn::nn::transformer::PositionWiseFeedForwardConfig;
use burn::nn::{
    BatchNormConfig, DropoutConfig, GroupNormConfig, GruConfig, Initializer, LayerNormConfig, LinearLayout, LstmConfig,
    RmsNormConfig, SwiGluConfig,
};
use burn::tensor::activation::{gelu, relu, sigmoid, silu, softmax, tanh};
use burn::tensor::{DType, Device, Distribution, Tensor};
use epl_core::plan::{ExitSplit, SplitFinding};
use epl_core::{Chain, Place, Result};

use super::{D, H, Rows, finding, found, linear, pair, sample};
use ExitSplit::{Same, Slices, Sum, SumBesideBase};

fn weight<const N: usize>(shape: [usize; N], at: &Device) -> Param<Tensor<N>> {
    Initializer::Normal { mean: 0.0, std: 0.5 }.init(shape, at)
}

/// Attention of heads whose number is read from the weights: `[heads, D, width]` thrice and `[heads, width, D]`.
type Heads = Vec<Param<Tensor<3>>>;

fn heads(count: usize, width: usize, at: &Device) -> Heads {
    (0..3).map(|_| weight([count, D, width], at)).chain([weight([count, width, D], at)]).collect()
}

fn attend(heads: &Heads, rows: Rows) -> Rows {
    // `[batch, 1, rows, D]` by `[1, heads, D, width]`.
    let project = |index: usize| rows.clone().unsqueeze_dim::<4>(1).matmul(heads[index].val().unsqueeze::<4>());
    let (query, key, value) = (project(0), project(1), project(2));
    let scores = softmax(query.matmul(key.transpose()) * 0.5, 3);
    scores.matmul(value).matmul(heads[3].val().unsqueeze::<4>()).sum_dim(1).squeeze_dim::<3>(1)
}

/// Rows as pictures of D channels.
fn picture(rows: &Rows) -> Tensor<4> {
    rows.clone().swap_dims(1, 2).reshape([2, D, 5, 1])
}

/// What is to be found: the extent and how what leaves is the whole; or a part of the reason why it stays whole.
type Expected = Result<(usize, &'static [ExitSplit]), &'static str>;

/// A closure, what is found of it, and what is to be.
type Case = (&'static str, SplitFinding, Expected);

/// Those of layers one behind the other.
fn feed_forwards() -> Vec<Case> {
    let own = |rows: &Rows| rows.clone();
    let beside = Ok((H, &[SumBesideBase][..]));
    let norm = |at: &Device| LayerNormConfig::new(D).init(at);
    vec![
        ("mlp", found(pair(true), own, |(up, down), x| down.forward(gelu(up.forward(x)))), beside),
        ("mlp, no bias", found(pair(false), own, |(up, down), x| down.forward(gelu(up.forward(x)))), Ok((H, &[Sum]))),
        (
            "residual",
            found(pair(false), own, |(up, down), x: Rows| x.clone() + down.forward(relu(up.forward(x)))),
            beside,
        ),
        ("sigmoid", found(pair(true), own, |(up, down), x| down.forward(sigmoid(up.forward(x)))), beside),
        (
            "before a norm",
            found(
                move |at| (norm(at), pair(true)(at)),
                own,
                |(norm, (up, down)), x: Rows| x.clone() + down.forward(gelu(up.forward(norm.forward(x)))),
            ),
            beside,
        ),
        (
            "before a root-mean-square norm",
            found(
                |at| (RmsNormConfig::new(D).init(at), pair(false)(at)),
                own,
                |(norm, (up, down)), x: Rows| x.clone() + down.forward(silu(up.forward(norm.forward(x)))),
            ),
            beside,
        ),
        (
            "gated",
            found(
                |at| (pair(false)(at), linear(D, H).with_bias(false).init(at)),
                own,
                |((up, down), gate), x: Rows| down.forward(silu(gate.forward(x.clone())) * up.forward(x)),
            ),
            Ok((H, &[Sum])),
        ),
        (
            "gated by Burn's layer",
            found(
                |at| (SwiGluConfig::new(D, H).init(at), linear(H, D).init(at)),
                own,
                |(up, down), x: Rows| x.clone() + down.forward(up.forward(x)),
            ),
            beside,
        ),
        (
            "Burn's feed-forward",
            found(
                |at| PositionWiseFeedForwardConfig::new(D, H).with_dropout(0.0).init(at),
                own,
                |layer, x| layer.forward(x),
            ),
            beside,
        ),
        (
            "scaled",
            found(
                |at| (pair(true)(at), weight([D], at)),
                own,
                |((up, down), scale), x: Rows| x.clone() + down.forward(gelu(up.forward(x))) * scale.val().unsqueeze(),
            ),
            beside,
        ),
        (
            "an odd extent",
            found(
                |at| (linear(D, 7).init(at), linear(7, D).init(at)),
                own,
                |(up, down), x| down.forward(tanh(up.forward(x))),
            ),
            Ok((7, &[SumBesideBase])),
        ),
        (
            "a bottleneck",
            found(
                |at| (linear(D, 3).init(at), linear(3, D).init(at)),
                own,
                |(up, down), x| down.forward(up.forward(x)),
            ),
            Ok((3, &[SumBesideBase])),
        ),
        (
            "the last two of three",
            found(
                |at| (pair(true)(at).0, linear(H, 20).init(at), linear(20, D).init(at)),
                own,
                |(a, b, c), x| c.forward(gelu(b.forward(gelu(a.forward(x))))),
            ),
            Ok((20, &[SumBesideBase])),
        ),
        (
            "factors of low rank beside a weight",
            found(
                |at| (linear(D, D).init(at), linear(D, 4).init(at), linear(4, D).init(at)),
                own,
                |(whole, a, b), x: Rows| whole.forward(x.clone()) + b.forward(a.forward(x)),
            ),
            Ok((4, &[SumBesideBase])),
        ),
    ]
}

/// Columns, heads, channels, and carries of several tensors.
fn others() -> Vec<Case> {
    let own = |rows: &Rows| rows.clone();
    let column = |bias: bool| move |at: &Device| linear(D, H).with_bias(bias).init(at);
    let convolution = |from, to, kernel| Conv2dConfig::new([from, to], [kernel, 1]);
    vec![
        ("columns", found(column(true), own, |up, x| gelu(up.forward(x))), Ok((H, &[Slices]))),
        ("columns, no bias", found(column(false), own, |up, x| up.forward(x)), Ok((H, &[Slices]))),
        ("heads", found(|at| heads(6, 4, at), own, attend), Ok((6, &[Sum]))),
        (
            "heads behind a norm, beside a residual",
            found(
                |at| (LayerNormConfig::new(D).init(at), heads(3, 4, at)),
                own,
                |(norm, heads), x: Rows| x.clone() + attend(heads, norm.forward(x)),
            ),
            Ok((3, &[SumBesideBase])),
        ),
        (
            "channels",
            found(
                move |at| (convolution(D, H, 1).init(at), convolution(H, D, 1).init(at)),
                picture,
                |(up, down), x| down.forward(relu(up.forward(x))),
            ),
            Ok((H, &[SumBesideBase])),
        ),
        (
            "channels under wider kernels",
            found(
                move |at| {
                    (convolution(D, H, 3).with_bias(false).init(at), convolution(H, D, 3).with_bias(false).init(at))
                },
                picture,
                |(up, down), x| {
                    let hidden = relu(up.forward(x));
                    down.forward(hidden)
                },
            ),
            Ok((H, &[Sum])),
        ),
        (
            "beside a tensor that goes through",
            found(
                pair(true),
                |rows: &Rows| (rows.clone(), rows.clone().slice([0..2, 0..5, 0..1]).greater_scalar(0.0).float()),
                |(up, down), (x, mask): (Rows, Rows)| {
                    (x.clone() + down.forward(gelu(up.forward(x))) * mask.clone(), mask)
                },
            ),
            Ok((H, &[SumBesideBase, Same])),
        ),
        (
            "two that leave",
            found(pair(false), own, |(up, down), x: Rows| {
                let hidden = tanh(up.forward(x));
                (down.forward(hidden.clone()), hidden)
            }),
            Ok((H, &[Sum, Slices])),
        ),
    ]
}

/// Those that stay whole.
fn whole() -> Vec<Case> {
    let own = |rows: &Rows| rows.clone();
    let wide = |at: &Device| LayerNormConfig::new(H).init(at);
    let narrow = |at: &Device| LayerNormConfig::new(D).init(at);
    let batch_norm = |at: &Device| (BatchNormConfig::new(H).init(at), Conv2dConfig::new([D, H], [1, 1]).init(at));
    let group_norm = |at: &Device| (GroupNormConfig::new(1, H).init(at), Conv2dConfig::new([D, H], [1, 1]).init(at));
    let cases = vec![
        (
            "a norm behind",
            "neither the sum",
            found(
                move |at| (narrow(at), pair(true)(at)),
                own,
                |(norm, (up, down)), x: Rows| norm.forward(x.clone() + down.forward(gelu(up.forward(x)))),
            ),
        ),
        (
            "a norm between",
            "neither the sum",
            found(
                move |at| (wide(at), pair(true)(at)),
                own,
                |(norm, (up, down)), x| down.forward(norm.forward(gelu(up.forward(x)))),
            ),
        ),
        (
            "a softmax between",
            "neither the sum",
            found(pair(true), own, |(up, down), x| down.forward(softmax(up.forward(x), 2))),
        ),
        (
            "a relu behind",
            "neither the sum",
            found(pair(true), own, |(up, down), x| relu(down.forward(gelu(up.forward(x))))),
        ),
        (
            "a relu behind one number",
            "what it returns is 0 everywhere",
            found(
                |at| (linear(D, H).init(at), linear(H, 1).init(at)),
                own,
                |(up, down), x: Rows| relu(down.forward(gelu(up.forward(x.slice([0..1, 0..1]))))),
            ),
        ),
        (
            "a sigmoid behind",
            "neither the sum",
            found(pair(false), own, |(up, down), x| sigmoid(down.forward(gelu(up.forward(x))))),
        ),
        (
            "a clamp of large numbers behind",
            "what it returns in 2 slices differs",
            found(pair(false), own, |(up, down), x| down.forward(up.forward(x)).clamp(-500, 500)),
        ),
        ("the largest", "neither the sum", found(pair(true), own, |(up, _), x| up.forward(x).max_dim(2))),
        ("the mean", "neither the sum", found(pair(false), own, |(up, _), x| up.forward(x).mean_dim(2))),
        ("the product", "neither the sum", found(pair(true), own, |(up, _), x| up.forward(x).prod_dim(2))),
        ("in order", "neither the sum", found(pair(true), own, |(up, down), x| down.forward(up.forward(x).sort(2)))),
        (
            "divided by how many there are",
            "neither the sum",
            found(pair(false), own, |(up, down), x| {
                let hidden = up.forward(x);
                let count = hidden.dims()[2] as f64;
                down.forward(hidden / count)
            }),
        ),
        ("slices in the middle", "neither the sum", found(pair(true), own, |(up, _), x| up.forward(x).swap_dims(1, 2))),
        (
            "twice",
            "neither the sum",
            found(pair(true), own, |(up, down), x: Rows| {
                let once = x.clone() + down.forward(gelu(up.forward(x)));
                once.clone() + down.forward(gelu(up.forward(once)))
            }),
        ),
        (
            "a square, by accident",
            "no extent of its matrices",
            found(
                |at| (linear(D, D).init(at), linear(D, D).init(at)),
                own,
                |(up, down), x| down.forward(gelu(up.forward(x))),
            ),
        ),
        (
            "the norm of all that leaves",
            "neither the sum",
            found(pair(false), own, |(up, down), x| {
                let left = down.forward(gelu(up.forward(x)));
                left.clone() / left.powi_scalar(2).sum().sqrt().unsqueeze()
            }),
        ),
        ("widths of heads", "neither the sum", found(|at| heads(1, 6, at), own, attend)),
        (
            "a batch norm",
            "keeps statistics",
            found(batch_norm, picture, |(norm, layer), x| norm.forward(layer.forward(x))),
        ),
        (
            "a group norm",
            "axis 1 expected 12, got 6",
            found(group_norm, picture, |(norm, layer), x| norm.forward(layer.forward(x))),
        ),
        (
            "a dropout",
            "draws random numbers",
            found(
                |at| (pair(true)(at), DropoutConfig::new(0.5).init()),
                own,
                |((up, down), dropout), x| down.forward(dropout.forward(up.forward(x))),
            ),
        ),
        (
            "noise",
            "draws random numbers",
            found(pair(true), own, |(up, down), x| {
                let hidden = up.forward(x);
                let noise = Tensor::<1>::random([1], Distribution::Default, (&hidden.device(), hidden.dtype()));
                down.forward(hidden) + noise.unsqueeze()
            }),
        ),
        (
            "an LSTM",
            "dtype mismatch",
            found(|at| LstmConfig::new(D, H, true).init(at), own, |layer, x| layer.forward(x, None).0),
        ),
        (
            "a GRU",
            "dtype mismatch",
            found(|at| GruConfig::new(D, H, true).init(at), own, |layer, x| layer.forward(x, None)),
        ),
        (
            "attention that keeps the number of its heads",
            "no extent of its matrices",
            found(
                |at| MultiHeadAttentionConfig::new(D, 2).with_dropout(0.0).init(at),
                own,
                |layer, x| layer.forward(MhaInput::self_attn(x)).context,
            ),
        ),
        (
            "a transposed weight",
            "is stored otherwise than it is used",
            found(|at| linear(D, H).with_layout(LinearLayout::Col).init(at), own, |layer, x: Rows| layer.forward(x)),
        ),
        (
            "values",
            "have values already",
            found(
                |at| {
                    (
                        Param::from_tensor(Tensor::<2>::ones([D, H], at)),
                        Param::from_tensor(Tensor::<2>::ones([H, D], at)),
                    )
                },
                own,
                |(up, down), x: Rows| gelu(x.matmul(up.val().unsqueeze())).matmul(down.val().unsqueeze()),
            ),
        ),
    ];
    cases.into_iter().map(|(name, why, found)| (name, found, Err(why))).collect()
}

/// Those of which the sample does not show that they mix slices.
fn samples_that_show_nothing() -> Vec<Case> {
    // Run by the first segment, on the batch itself.
    let of_batch = |segment: fn(&Heads, Rows) -> Rows, sample: fn(&Device) -> Rows| {
        let chain = move |at: &Place| {
            Chain::of(heads(2, 6, at))
                .first(&[""], move |heads: &Heads, rows: &Rows| segment(heads, rows.clone()))
                .mean_loss(|_, rows, _| rows.mean())
        };
        finding(chain, sample, 0)
    };
    let not = Err("the sample does not exercise");
    let one = |rows: &Rows| rows.clone().slice([0..2, 0..1]);
    vec![
        ("heads of the batch", of_batch(attend, sample), Ok((2, &[Sum]))),
        ("one position", found(|at| heads(6, 4, at), one, attend), not),
        ("one position, of which widths were sums", found(|at| heads(1, 6, at), one, attend), not),
        ("positions alike", of_batch(attend, |at| Tensor::full([2, 5, D], 0.5, at)), not),
        ("zeros", of_batch(attend, |at| Tensor::zeros([2, 5, D], at)), Err("what it returns is 0 everywhere")),
        (
            "a branch behind a mask of zeros",
            found(
                |at| (pair(true)(at), weight([D, 5], at)),
                |rows: &Rows| rows.clone(),
                |((up, down), branch), x: Rows| {
                    let left = down.forward(gelu(up.forward(x)));
                    left.clone() + relu(left.matmul(branch.val().unsqueeze())).sum_dim(2) * 0.0
                },
            ),
            not,
        ),
        (
            "a threshold that is never reached",
            found(
                pair(true),
                |rows: &Rows| rows.clone(),
                |(up, down), x: Rows| {
                    let left = down.forward(gelu(up.forward(x)));
                    (left.clone(), left.greater_scalar(1e12).float())
                },
            ),
            Err("tensor 1 that it returns is 0 everywhere"),
        ),
        (
            "rounded to f32",
            found(
                pair(false),
                |rows: &Rows| rows.clone(),
                |(up, down), x: Rows| down.forward(gelu(up.forward(x))).cast(DType::F32).cast(DType::F64),
            ),
            Err("something in it computes in f32"),
        ),
        (
            "a constant in f32",
            found(
                pair(false),
                |rows: &Rows| rows.clone(),
                |(up, down), x: Rows| {
                    let left = down.forward(gelu(up.forward(x)));
                    left.clone() + Tensor::<3>::ones([1, 1, D], (&left.device(), DType::F32))
                },
            ),
            Err("give its constants the type of what enters"),
        ),
    ]
}

#[test]
fn what_can_run_in_slices_is_found_and_nothing_else() {
    let cases = [feed_forwards(), others(), whole(), samples_that_show_nothing()].concat();
    let splittable = cases.iter().filter(|(_, _, expected)| expected.is_ok()).count();
    assert!(splittable >= 20 && cases.len() - splittable >= 20, "{splittable} of {}", cases.len());
    let mut wrong = Vec::new();
    for (name, found, expected) in &cases {
        let is_right = match (found, expected) {
            (SplitFinding::Split(split), Ok((extent, exits))) => split.extent == *extent && split.exits == *exits,
            (SplitFinding::Whole(why), Err(expected)) => why.contains(expected),
            _ => false,
        };
        println!("{name}: {found:?}");
        if !is_right {
            wrong.push(format!("{name}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
