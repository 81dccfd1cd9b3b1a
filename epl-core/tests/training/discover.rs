//! Segments of plain layers of Burn that can run in slices are found, and no others.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::nn::conv::Conv2dConfig;
use burn::nn::transformer::PositionWiseFeedForwardConfig;
use burn::nn::{
    BatchNormConfig, DropoutConfig, EmbeddingConfig, GroupNormConfig, GruConfig, Initializer, LayerNormConfig, Linear,
    LinearConfig, LinearLayout, LstmConfig, RmsNormConfig, SwiGluConfig,
};
use burn::optim::SgdConfig;
use burn::tensor::activation::{gelu, relu, sigmoid, silu, softmax, tanh};
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use epl_comm::{EventKind, Operation, Trace};
use epl_core::plan::{ExitSplit, SplitFinding};
use epl_core::topology::cluster::Axis;
use epl_core::{
    AverageDecay, Carry, Chain, Config, Engine, EngineSettings, LazyModel, MicroBatch, Model, Place, Result, launch,
    launch_dry, launch_traced,
};

use ExitSplit::{Same, Slices, Sum, SumBesideBase};

/// Features of what enters, and of what is between two layers.
const D: usize = 8;
const H: usize = 12;

type Rows = Tensor<3>;

/// Two samples of five rows, by rule.
fn sample(device: &Device) -> Rows {
    let number = |at: usize| ((at * 7919 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
    let values: Vec<f64> = (0..2 * 5 * D).map(number).collect();
    Tensor::from_data(TensorData::new(values, [2, 5, D]), device)
}

/// What is found of a segment that is entered by what `enter` makes of the batch.
fn found<M: Module, C: Carry + 'static, E: Carry + 'static>(
    layers: impl Fn(&Device) -> M,
    enter: impl Fn(&Rows) -> C + Copy + Send + Sync + 'static,
    segment: impl Fn(&M, C) -> E + Copy + Send + Sync + 'static,
) -> SplitFinding {
    let chain = |at: &Place| {
        Chain::of(layers(at))
            .first(&[], move |_: &M, rows: &Rows| enter(rows))
            .then(&[""], move |layers, carry, _| segment(layers, carry))
            .mean_loss(|_, _, rows: &Rows| rows.clone().mean())
    };
    finding(chain, sample, 1)
}

/// What is found of a segment, for two ranks.
fn finding<M: Model>(
    model: impl Fn(&Place) -> M,
    sample: impl Fn(&Device) -> M::Batch,
    segment: usize,
) -> SplitFinding {
    discovered(model, sample, |lazy| lazy.plan().findings()[segment].clone())
}

fn discovered<M: Model, T>(
    model: impl Fn(&Place) -> M,
    sample: impl Fn(&Device) -> M::Batch,
    read: impl Fn(&LazyModel<M>) -> T,
) -> T {
    let read = |epl: epl_core::Epl| -> Result<T> {
        let batch = sample(epl.place().device());
        Ok(read(&epl.plan(&model)?.discover(&batch)?))
    };
    launch_dry(&two_ranks(), 0, read).unwrap_or_else(|error| panic!("{error}")).0
}

fn linear(from: usize, to: usize) -> LinearConfig {
    LinearConfig::new(from, to)
}

/// Up to H features and down again.
fn pair(bias: bool) -> impl Fn(&Device) -> (Linear, Linear) {
    move |at| (linear(D, H).with_bias(bias).init(at), linear(H, D).with_bias(bias).init(at))
}

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

/// What is said of one that stays whole.
fn why(finding: SplitFinding) -> String {
    match finding {
        SplitFinding::Whole(why) => why,
        SplitFinding::Split(split) => panic!("it stays whole: {split:?}"),
    }
}

/// What a loss adds that it reads of its last layer.
type Penalty = fn(&Linear) -> Tensor<1>;

/// A table that is looked up, columns of a head, and a loss that may read it.
fn reads_tokens(at: &Place, penalty: Option<Penalty>) -> Chain<(burn::nn::Embedding, Linear), Tensor<2, Int>, Rows> {
    let layers = (EmbeddingConfig::new(11, D).init(at), LinearConfig::new(D, H).init(at));
    Chain::of(layers)
        .first(&["0"], |(table, _): &(burn::nn::Embedding, Linear), tokens: &Tensor<2, Int>| {
            table.forward(tokens.clone())
        })
        .then(&["1"], |(_, head), rows: Rows, _| head.forward(rows))
        .mean_loss(move |(_, head), rows, _| {
            let loss = rows.powi_scalar(2).mean();
            penalty.map_or(loss.clone(), |penalty| loss + penalty(head))
        })
}

fn tokens(device: &Device) -> Tensor<2, Int> {
    Tensor::from_data([[1, 5, 10], [0, 3, 7]], device)
}

#[test]
fn a_loss_that_reads_the_last_segment_keeps_it_whole() {
    let extents = |penalty: Option<Penalty>| {
        discovered(|at| reads_tokens(at, penalty), tokens, |lazy| lazy.plan().findings().to_vec())
    };
    let is_columns = |finding: &SplitFinding, of: usize| match finding {
        SplitFinding::Split(split) => split.extent == of && split.exits == [Slices],
        SplitFinding::Whole(_) => false,
    };
    let found = extents(None);
    assert!(is_columns(&found[0], D) && is_columns(&found[1], H), "{found:?}");
    let penalties: [Penalty; 5] = [
        |head| head.weight.val().powi_scalar(2).sum(),
        |head| head.weight.val().powi_scalar(2).sum() * 1e-30,
        // Without a value or a gradient there, where it is looked at.
        |head| relu(head.weight.val().abs() - 100.0).sum(),
        |head| (head.bias.as_ref().expect("there is one").val() - 1.0).powi_scalar(2).sum(),
        |head| head.bias.as_ref().expect("there is one").val().log().powi_scalar(2).sum(),
    ];
    for (number, penalty) in penalties.into_iter().enumerate() {
        let found = extents(Some(penalty));
        assert!(is_columns(&found[0], D), "{number}: {found:?}");
        let head = why(found[1].clone());
        assert!(head.contains("the loss behind it reads its parameters"), "{number}: {head}");
    }
    let not = why(extents(Some(|head| Tensor::full([1], f32::INFINITY, &head.weight.val().device())))[1].clone());
    assert!(not.contains("the loss behind it is no number"), "{not}");
}

#[test]
fn rows_of_a_table_are_not_cut() {
    let chain = |at: &Place| {
        Chain::of(EmbeddingConfig::new(12, 1).init(at))
            .first(&["weight"], |table: &burn::nn::Embedding, tokens: &Tensor<2, Int>| table.forward(tokens.clone()))
            .mean_loss(|_, rows, _| rows.mean())
    };
    let why = why(finding(chain, tokens, 0));
    assert!(why.contains("no extent") && why.contains("the number of rows of a table"), "{why}");
}

fn two_ranks() -> Config {
    Config::new().with("cluster.ranks", 2).unwrap().with("dist.tensor_parallel_size", 2).unwrap()
}

#[test]
fn other_tensors_than_those_of_the_sample_are_refused() {
    // A tensor that goes through stands in front of a sum, where there are several positions.
    let chain = |at: &Place| {
        Chain::of(pair(false)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                let left = down.forward(gelu(up.forward(rows.clone())));
                ((rows.dims()[1] > 1).then(|| rows.clone()), left.clone(), (rows.dims()[1] == 1).then_some(left))
            })
            .mean_loss(|_, (_, rows, _): (Option<Rows>, Rows, Option<Rows>), _| rows.mean())
    };
    let step = |positions: usize| {
        launch(&two_ranks(), |epl| {
            let all = sample(epl.place().device());
            let lazy = epl.plan(chain)?.discover(&all)?;
            assert!(matches!(&lazy.plan().findings()[0], SplitFinding::Split(split) if split.exits == [Same, Sum]));
            let settings = EngineSettings::from_config(epl.config());
            let mut engine = Engine::new(epl.draw(lazy)?, &SgdConfig::new(), settings)?;
            engine.step(vec![MicroBatch::new(all.slice([0..2, 0..positions]), [0, 1])], 0.1).map(|_| ())
        })
    };
    step(5).unwrap_or_else(|error| panic!("{error}"));
    let error = step(1).unwrap_err().to_string();
    assert!(error.contains("returns other tensors than when `discover` looked at it"), "{error}");
    assert!(error.contains("or leave `discover` out"), "{error}");
}

#[test]
fn a_moving_average_is_cut_as_what_it_follows_is() {
    type Pairs = ((Linear, Linear), (Linear, Linear));
    let findings = |norm: bool| {
        let chain = move |at: &Place| {
            let encoder = pair(true)(at);
            let teacher = at.moving_average(pair(true)(at), &encoder, AverageDecay::Constant(0.9));
            Chain::of((encoder, teacher))
                .first(&["0"], move |((up, down), _): &Pairs, rows: &Rows| {
                    let left = down.forward(gelu(up.forward(rows.clone())));
                    if norm { softmax(left, 2) } else { left }
                })
                .then(&["1"], |(_, (up, down)), rows: Rows, _| down.forward(gelu(up.forward(rows))))
                .mean_loss(|_, rows, _| rows.mean())
        };
        discovered(chain, sample, |lazy| lazy.plan().findings().to_vec())
    };
    let both = findings(false);
    assert!(both.iter().all(|finding| matches!(finding, SplitFinding::Split(split) if split.extent == H)), "{both:?}");
    let [encoder, teacher] = &findings(true)[..] else { panic!("two segments") };
    assert!(why(encoder.clone()).contains("neither the sum"));
    let teacher = why(teacher.clone());
    assert!(teacher.contains("is a moving average of `0.") && teacher.contains("cut the chain alike"), "{teacher}");
}

#[test]
fn who_measures_sums_the_gradients_too() {
    let chain = |at: &Place| {
        Chain::of(pair(true)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                down.forward(gelu(up.forward(rows.clone())))
            })
            .mean_loss(|_, rows, _| rows.mean())
    };
    let trace = Trace::new();
    let measured = launch_traced(&two_ranks(), Some(trace.clone()), |epl| {
        let all = sample(epl.place().device());
        let lazy = epl.plan(chain)?.discover(&all)?;
        let mark = |what: &str| epl.context().mark(|| what.to_string());
        mark("activations");
        let _ = lazy.activations([1, 2], |rows, at| sample(at).slice([0..rows]))?;
        mark("draw");
        let settings = EngineSettings::from_config(epl.config());
        let engine = Engine::new(epl.draw(lazy)?, &SgdConfig::new(), settings)?;
        mark("profile");
        let _ = engine.profile(&MicroBatch::new(all, [0, 1]))?;
        Ok(())
    });
    measured.unwrap_or_else(|error| panic!("{error}"));
    // Of the first rank: the sums over the tensor axis behind each mark.
    let (mut part, mut sums) = (String::new(), BTreeMap::<String, usize>::new());
    for event in trace.events().into_iter().filter(|event| event.rank.0 == 0) {
        match event.kind {
            EventKind::Mark(what) => part = what,
            EventKind::Collective { group, operation: Operation::AllReduce(_), .. }
                if group == Axis::Tensor.to_string() =>
            {
                *sums.entry(part.clone()).or_default() += 1;
            }
            _ => {}
        }
    }
    // Of what leaves, and of the gradient of the bias that every rank has: two sizes, a forward and three times both; a forward and
    // once both.
    assert_eq!((sums.get("activations"), sums.get("profile")), (Some(&14), Some(&3)), "{sums:?}");
}

#[test]
fn parameters_of_two_segments_stay_whole() {
    let chain = |at: &Place| {
        let forward = |(up, down): &(Linear, Linear), x: Rows| down.forward(gelu(up.forward(x)));
        Chain::of(pair(true)(at))
            .first(&["0", "1"], move |layers: &(Linear, Linear), rows: &Rows| forward(layers, rows.clone()))
            .then(&["0", "1"], move |layers, rows: Rows, _| forward(layers, rows))
            .mean_loss(|_, rows, _| rows.mean())
    };
    let why = why(finding(chain, sample, 0));
    assert!(why.contains("of several segments"), "{why}");
}

#[test]
fn ranks_that_look_with_other_batches_are_told() {
    // What is a slice of the batch on one rank is not on the other.
    let chain = |at: &Place| {
        Chain::of(pair(false)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                let hidden = up.forward(rows.clone());
                let left = down.forward(hidden);
                if rows.dims()[0] > 1 { left } else { relu(left) }
            })
            .mean_loss(|_, rows, _| rows.mean())
    };
    let error = launch(&two_ranks(), |epl| {
        let rows = 1 + epl.context().world().rank();
        let batch = sample(epl.place().device()).slice([0..rows]);
        epl.plan(chain)?.discover(&batch).map(|_| ())
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("give all of them the same batch"), "{error}");
}

#[test]
fn first_values_do_not_depend_on_what_is_found() {
    let chain = |at: &Place| {
        Chain::of(pair(true)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                down.forward(gelu(up.forward(rows.clone())))
            })
            .mean_loss(|_, rows, _| rows.mean())
    };
    let values = |look: bool| {
        let all = launch(&two_ranks(), |epl| {
            let lazy = epl.plan(chain)?;
            let lazy = if look { lazy.discover(&sample(epl.place().device()))? } else { lazy };
            let text = lazy.plan().to_string();
            Ok((epl.draw(lazy)?.parameters()?, text))
        });
        all.unwrap_or_else(|error| panic!("{error}")).remove(0)
    };
    let ((plain, before), (found, text)) = (values(false), values(true));
    assert_eq!(plain, found, "the whole of each, to the bit");
    assert!(text.contains("0+1 runs in slices: extent 12 is cut"), "{text}");
    assert!(text.contains("dim 1 over tensor [0..6]"), "{text}");
    assert!(!before.contains("slices"), "{before}");
}
