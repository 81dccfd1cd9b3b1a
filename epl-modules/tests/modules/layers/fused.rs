//! Fused operations against the same made of Burn's: of no row, of one, of sizes that nothing divides, of as many elements as make
//! several tasks, of tensors whose elements lie in another order than they are counted in; and the same bits on any number of threads.

use burn::module::{Param, ParamId};
use burn::nn::{PaddingConfig1d, PaddingConfig2d};
use burn::tensor::{Device, Int, Slice, Tensor, TensorData, activation};
use epl_comm::Split;
use epl_core::testing::error_on_scale;
use epl_core::{Epl, Pass};
use epl_modules::*;
use epl_testing::{numbers, tensor};

use super::Outcome;
use super::run::{THREADS, host, on_threads};

/// In which order the elements of what an operation is given lie in memory, and those of the gradient of what it gives.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// As they are counted.
    Counted,
    /// The dims the other way around, as behind a transpose.
    Turned,
    /// Other numbers between them, as of a part of a larger tensor.
    Apart,
    /// From the last to the first.
    Backwards,
}

impl Order {
    const ALL: [Self; 4] = [Self::Counted, Self::Turned, Self::Apart, Self::Backwards];

    /// A tracked tensor of the numbers of this seed.
    fn leaf<const D: usize>(self, seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
        let device = device.clone().without_autodiff();
        let x = tensor(seed, shape, &device);
        let lain = match self {
            Self::Counted => x,
            Self::Apart => {
                let between = numbers(seed, shape.iter().product()).into_iter().flat_map(|x| [f64::NAN, x]);
                let mut wide = shape;
                wide[D - 1] *= 2;
                let wide = Tensor::<D>::from_data(TensorData::new(between.collect::<Vec<_>>(), wide), &device);
                wide.slice_dim(D - 1, Slice::new(1, None, 2))
            }
            // What is read is in the order in which it lies.
            Self::Turned | Self::Backwards => self.seen(Tensor::from_data(self.seen(x).into_data(), &device)),
        };
        Tensor::from_inner(lain).require_grad()
    }

    /// The tensor in this order, which is its own opposite.
    fn seen<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Counted | Self::Apart => x,
            // Flex reads no element of what is empty and goes backwards, and fails.
            Self::Backwards if x.shape().num_elements() == 0 => x,
            Self::Turned => x.permute(core::array::from_fn::<_, D, _>(|dim| (D - 1 - dim) as isize)),
            Self::Backwards => x.flip(core::array::from_fn::<_, D, _>(|dim| dim as isize)),
        }
    }
}

/// The sizes of what an operation is given.
#[derive(Clone, Copy, Debug)]
struct Sizes<const D: usize> {
    x: [usize; D],
    weight: [usize; D],
    channels: usize,
}

/// What an operation is given. What it does not take has no gradient.
#[derive(Clone)]
struct Given<const D: usize> {
    x: Tensor<D>,
    weight: Tensor<D>,
    /// A bias, or a scale and a shift.
    channels: [Tensor<1>; 2],
}

/// What an operation gives, and all its gradients.
fn outcome<const D: usize>(
    sizes: Sizes<D>,
    order: Order,
    device: &Device,
    operation: impl FnOnce(Given<D>) -> Tensor<D>,
) -> Outcome {
    let given = Given {
        x: order.leaf(1, sizes.x, device),
        weight: order.leaf(2, sizes.weight, device),
        channels: [3, 4].map(|seed| order.leaf(seed, [sizes.channels], device)),
    };
    let y = operation(given.clone());
    let seed = tensor::<D>(99, y.dims(), device);
    let gradients = (order.seen(y.clone()) * order.seen(seed)).sum().backward();
    let [first, second] = given.channels.map(|x| x.grad(&gradients).map(host));
    let of = [("input", given.x.grad(&gradients).map(host)), ("weight", given.weight.grad(&gradients).map(host))];
    let all = of.into_iter().chain([("first", first), ("second", second), ("output", Some(host(y.inner())))]);
    all.filter_map(|(name, found)| Some((name.to_string(), found?))).collect()
}

/// Panics where one tensor is further off than the limit, of its largest element or, where all are smaller, of one: what is zero but
/// for rounding has no size of its own.
#[track_caller]
fn assert_near(what: &str, found: &Outcome, expected: &Outcome, limit: f64) {
    assert!(found.keys().eq(expected.keys()), "{what}: {:?} beside {:?}", found.keys(), expected.keys());
    assert!(expected.len() > 1, "{what}: no gradient was compared");
    let one = TensorData::from([1.0]);
    for (name, value) in expected {
        let is_small = value.iter::<f64>().all(|x| x.abs() < 1.0);
        let error = error_on_scale(&found[name], value, if is_small { &one } else { value });
        assert!(error <= limit, "{what}: `{name}` is off by {error:e}, limit {limit:e}");
    }
}

/// Compares an operation, of these sizes and whatever the order of its elements, with the same made of Burn's operations; and its
/// bits on some threads with those on one.
#[track_caller]
fn check<const D: usize>(
    what: &str,
    limit: f64,
    sizes: Sizes<D>,
    fused: impl Fn(&Epl, Given<D>) -> Tensor<D> + Sync,
    composed: impl Fn(Given<D>) -> Tensor<D> + Sync,
) {
    let [one, others @ ..] = THREADS.map(|threads| {
        on_threads(threads, |epl| {
            epl.context().begin(Pass { step: 0, training: true, samples: [].into(), empty: false });
            let of = |order| outcome(sizes, order, epl.place().device(), |given| fused(epl, given));
            Ok(Order::ALL.map(of))
        })
    });
    let expected = on_threads(1, |epl| Ok(outcome(sizes, Order::Counted, epl.place().device(), &composed)));
    for (at, order) in Order::ALL.into_iter().enumerate() {
        let what = format!("{what} of {sizes:?}, {order:?}");
        assert_near(&what, &one[at], &expected, limit);
        for (others, threads) in others.iter().zip(&THREADS[1..]) {
            assert!(others[at] == one[at], "{what}: other bits on {threads} threads");
        }
    }
}

/// A parameter that is part of the graph.
fn param<const D: usize>(x: Tensor<D>) -> Param<Tensor<D>> {
    Param::initialized(ParamId::new(), x)
}

/// How a kernel moves: stride, dilation, padding at the top, left, bottom, right.
type Moves = ([usize; 2], [usize; 2], [usize; 4]);

/// A convolution as a sum over its taps, of products of what each sees with its part of the kernel.
fn by_taps(x: Tensor<4>, weight: Tensor<4>, (stride, dilation, padding): Moves) -> Tensor<4> {
    let [images, channels, height, width] = x.dims();
    let [filters, _, kernel @ ..] = weight.dims();
    let [top, left, bottom, right] = padding;
    let padded = [height + top + bottom, width + left + right];
    let output = [0, 1].map(|dim| (padded[dim] - dilation[dim] * (kernel[dim] - 1) - 1) / stride[dim] + 1);
    if images == 0 {
        // Burn's slices of nothing are not part of a graph.
        let none = Tensor::zeros([0, filters, output[0], output[1]], &x.device());
        return none + (x.sum() + weight.sum()).reshape([1; 4]);
    }
    let x = x.pad((left, right, top, bottom), 0.0);
    let seen = |dim: usize, tap: usize| {
        let first = tap * dilation[dim];
        Slice::new(first as isize, Some((first + (output[dim] - 1) * stride[dim] + 1) as isize), stride[dim] as isize)
    };
    let taps = (0..kernel[0]).flat_map(|down| (0..kernel[1]).map(move |along| (down, along)));
    let of_tap = |(down, along): (usize, usize)| {
        let seen = x.clone().slice_dim(2, seen(0, down)).slice_dim(3, seen(1, along));
        let own = weight.clone().narrow(2, down, 1).narrow(3, along, 1).reshape([filters, channels]);
        let rows = seen.permute([0, 2, 3, 1]).reshape([images * output[0] * output[1], channels]);
        rows.matmul(own.transpose())
    };
    let sum = taps.map(of_tap).reduce(|sum, tap| sum + tap).expect("a kernel has a tap");
    sum.reshape([images, output[0], output[1], filters]).permute([0, 3, 1, 2])
}

/// A kernel's size, and how it moves.
type Kernel = ([usize; 2], Moves);

/// On a pixel, with as many positions as pixels, and with others.
const KERNELS: [Kernel; 3] =
    [([1, 1], ([1, 1], [1, 1], [0; 4])), ([3, 3], ([1, 1], [1, 1], [1; 4])), ([3, 2], ([2, 1], [1, 2], [1, 2, 2, 1]))];

/// Images, and filters: none, one of one pixel, some, some that are put together for a product, some with fewer positions than
/// filters.
const IMAGES: [([usize; 4], usize); 6] = [
    ([0, 3, 5, 7], 5),
    ([1, 1, 1, 1], 1),
    ([1, 3, 5, 7], 5),
    ([5, 3, 7, 5], 1),
    ([9, 7, 13, 11], 19),
    ([1, 5, 3, 3], 31),
];

/// An image that several threads share, and some whose weights' gradient takes several rounds.
const LARGE: [([usize; 4], usize, Kernel); 2] = [
    ([1, 16, 33, 31], 40, ([3, 3], ([1, 1], [1, 1], [1; 4]))),
    ([3, 8, 27, 29], 5, ([9, 9], ([1, 1], [1, 1], [4; 4]))),
];

pub(crate) fn convolutions(limit: f64) {
    let small = IMAGES.into_iter().flat_map(|(image, filters)| KERNELS.map(|kernel| (image, filters, kernel)));
    for (image, filters, (kernel, moves)) in small.chain(LARGE) {
        let sizes = Sizes { x: image, weight: [filters, image[1], kernel[0], kernel[1]], channels: filters };
        let (stride, dilation, [top, left, bottom, right]) = moves;
        let config = ReplicatedConv2dConfig::new([image[1], filters], kernel).with_stride(stride);
        let config = config.with_dilation(dilation).with_padding(PaddingConfig2d::Explicit(top, left, bottom, right));
        let fused = |epl: &Epl, Given { x, weight, channels: [bias, _] }: Given<4>| {
            let mut layer = config.init(epl.place());
            (layer.weight, layer.bias) = (param(weight), Some(param(bias)));
            layer.forward(x)
        };
        check("convolution", limit, sizes, fused, |Given { x, weight, channels: [bias, _] }| {
            by_taps(x, weight, moves) + bias.reshape([1, filters, 1, 1])
        });
    }
}

pub(crate) fn convolutions_along_one_dim(limit: f64) {
    for (x, filters) in [([0, 3, 7], 5), ([1, 1, 1], 1), ([1, 3, 9], 5), ([7, 5, 11], 1), ([9, 17, 131], 19)] {
        let sizes = Sizes { x, weight: [filters, x[1], 3], channels: filters };
        let config = nn::conv::Conv1dConfig::new(x[1], filters, 3).with_stride(2).with_bias(false);
        let config = config.with_padding(PaddingConfig1d::Explicit(2, 1));
        let fused = |epl: &Epl, Given { x, weight, .. }: Given<3>| {
            let mut layer = config.init(epl.place());
            layer.weight = param(weight);
            layer.forward(x)
        };
        check("convolution along one dim", limit, sizes, fused, |Given { x, weight, .. }| {
            by_taps(x.unsqueeze_dim(2), weight.unsqueeze_dim(2), ([1, 2], [1, 1], [0, 2, 0, 1])).squeeze_dim(2)
        });
    }
}

/// A number of f32, which Burn's scalars are.
const EPSILON: f64 = 1.0 / 1024.0;

/// Of no row, of one number, row or column, of some, of several tasks.
fn rows() -> impl Iterator<Item = Sizes<3>> {
    let all = [[0, 3, 5], [1, 1, 1], [1, 1, 7], [3, 5, 1], [3, 5, 37], [7, 101, 65]];
    all.into_iter().map(|x| Sizes { x, weight: [0; 3], channels: x[2] })
}

pub(crate) fn layer_norm(limit: f64) {
    for sizes in rows() {
        let centred = |x: Tensor<3>| {
            let centred = x.clone() - x.mean_dim(2);
            centred.clone() / (centred.square().mean_dim(2) + EPSILON).sqrt()
        };
        let config = LayerNormConfig::new(sizes.channels).with_epsilon(EPSILON);
        let fused = |epl: &Epl, Given { x, channels: [gamma, beta], .. }: Given<3>| {
            let mut layer = config.init(epl.place());
            (layer.gamma, layer.beta) = (param(gamma), Some(param(beta)));
            layer.forward(x)
        };
        check("layer norm", limit, sizes, fused, |Given { x, channels: [gamma, beta], .. }| {
            centred(x) * gamma.unsqueeze() + beta.unsqueeze()
        });
        let config = config.clone().with_bias(false).with_zero_centered_gamma(true);
        let fused = |epl: &Epl, Given { x, channels: [gamma, _], .. }: Given<3>| {
            let mut layer = config.init(epl.place());
            layer.gamma = param(gamma);
            layer.forward(x)
        };
        check("layer norm around zero, no shift", limit, sizes, fused, |Given { x, channels: [gamma, _], .. }| {
            centred(x) * (gamma + 1.0).unsqueeze()
        });
    }
}

pub(crate) fn rms_norm(limit: f64) {
    for sizes in rows() {
        let config = RmsNormConfig::new(sizes.channels).with_epsilon(EPSILON);
        let fused = |epl: &Epl, Given { x, channels: [gamma, _], .. }: Given<3>| {
            let mut layer = config.init(epl.place());
            layer.gamma = param(gamma);
            layer.forward(x)
        };
        check("RMS norm", limit, sizes, fused, |Given { x, channels: [gamma, _], .. }| {
            x.clone() / (x.square().mean_dim(2) + EPSILON).sqrt() * gamma.unsqueeze()
        });
    }
}

/// As of rows; long runs of a channel, too, and of none and short ones as many as make several tasks.
pub(crate) fn batch_norm(limit: f64) {
    let all = [[0, 3, 4], [1, 1, 1], [1, 3, 1], [5, 3, 1], [3, 5, 7], [700, 33, 1], [301, 11, 9], [9, 37, 65]];
    for (x, statistics) in
        all.into_iter().flat_map(|x| [BatchStatistics::Global, BatchStatistics::PerReplica].map(|over| (x, over)))
    {
        let sizes = Sizes { x, weight: [0; 3], channels: x[1] };
        let config = SyncBatchNormConfig::new(x[1]).with_epsilon(EPSILON).with_statistics(statistics);
        let fused = |epl: &Epl, Given { x, channels: [gamma, beta], .. }: Given<3>| {
            let mut layer = config.init(epl.place());
            (layer.gamma, layer.beta) = (param(gamma), param(beta));
            layer.forward(x)
        };
        check("batch norm", limit, sizes, fused, |Given { x, channels: [gamma, beta], .. }| {
            let [rows, channels, _] = x.dims();
            let [gamma, beta] = [gamma, beta].map(|x| x.reshape([1, channels, 1]));
            if rows == 0 {
                // No row has a mean.
                return x * gamma + beta;
            }
            let over_rows = |x: Tensor<3>| x.mean_dim(2).mean_dim(0);
            let centred = x.clone() - over_rows(x);
            centred.clone() / (over_rows(centred.square()) + EPSILON).sqrt() * gamma + beta
        });
    }
}

/// Functions of each element.
type Function = fn(Tensor<3>) -> Tensor<3>;

pub(crate) fn activations(limit: f64) {
    let all: [(&str, Function, Function); 8] = [
        ("relu", |x| Activation::Relu.forward(x), activation::relu),
        ("gelu", |x| Activation::Gelu.forward(x), activation::gelu),
        ("gelu by tanh", |x| Activation::GeluNew.forward(x), activation::gelu_approximate),
        ("silu", |x| Activation::Silu.forward(x), activation::silu),
        ("sigmoid", |x| nn::Sigmoid::new().forward(x), activation::sigmoid),
        ("tanh", |x| nn::Tanh::new().forward(x), Tensor::tanh),
        // Of which the reciprocal, too, is a number of f32, which Burn's scalars are.
        ("softcap", |x| softcap(x, 0.5), |x| (x / 0.5).tanh() * 0.5),
        ("residual", |x| residual(x, Tensor::sin), |x| x.clone() + x.sin()),
    ];
    for (name, fused, composed) in all {
        for x in [[0, 3, 5], [1, 1, 1], [3, 5, 7], [5, 67, 65]] {
            let sizes = Sizes { x, weight: [0; 3], channels: 0 };
            check(name, limit, sizes, |_, given| fused(given.x), |given| composed(given.x));
        }
    }
}

pub(crate) fn linear(limit: f64) {
    for (x, columns) in [([0, 3], 5), ([1, 1], 1), ([1, 7], 5), ([5, 3], 1), ([7, 13], 11), ([301, 67], 131)] {
        let sizes = Sizes { x, weight: [x[1], columns], channels: columns };
        let fused = |epl: &Epl, Given { x, weight, channels: [bias, _] }: Given<2>| {
            let mut layer = ReplicatedLinearConfig::new(x.dims()[1], columns).init(epl.place());
            (layer.weight, layer.bias) = (param(weight), Some(param(bias)));
            layer.forward(x)
        };
        check("linear", limit, sizes, fused, |Given { x, weight, channels: [bias, _] }| {
            x.matmul(weight) + bias.unsqueeze()
        });
    }
}

/// Rows of a table, some of them several times, some never.
pub(crate) fn embedding(limit: f64) {
    for ([batch, length], rows, columns) in
        [([0, 3], 5, 7), ([1, 1], 1, 1), ([1, 7], 5, 1), ([3, 5], 31, 9), ([37, 11], 101, 67)]
    {
        let sizes = Sizes { x: [0, 0], weight: [rows, columns], channels: 0 };
        let ids: Vec<i64> = (0..batch * length).map(|at| ((at * at + at) % rows) as i64).collect();
        let fused = |epl: &Epl, given: Given<2>| {
            let mut layer = nn::EmbeddingConfig::new(rows, columns).init(epl.place());
            layer.weight = param(given.weight);
            let data = TensorData::new(ids.clone(), [batch, length]);
            layer.forward(Tensor::from_data(data, epl.place().device())).reshape([batch * length, columns])
        };
        // By a matrix that has a one in each row.
        let chosen: Vec<f64> =
            ids.iter().flat_map(|id| (0..rows as i64).map(move |row| f64::from(u8::from(row == *id)))).collect();
        check("embedding", limit, sizes, fused, |given| {
            Tensor::from_data(TensorData::new(chosen.clone(), [batch * length, rows]), &given.weight.device())
                .matmul(given.weight)
        });
    }
}

/// Both halves of the weight's columns, each a part of it.
fn halves(weight: Tensor<2>) -> [Tensor<2>; 2] {
    let columns = weight.dims()[1] / 2;
    [0, 1].map(|half| weight.clone().narrow(1, half * columns, columns))
}

pub(crate) fn gated(limit: f64) {
    for (x, columns) in [([0, 3], 5), ([1, 1], 1), ([1, 7], 5), ([5, 3], 1), ([301, 37], 65)] {
        let sizes = Sizes { x, weight: [x[1], 2 * columns], channels: 0 };
        let config = nn::SwiGluConfig::new(x[1], columns);
        let fused = |epl: &Epl, given: Given<2>| {
            let mut layer = config.init(epl.place());
            let [inner, outer] = halves(given.weight).map(param);
            (layer.linear_inner.weight, layer.linear_outer.weight) = (inner, outer);
            layer.forward(given.x)
        };
        check("gated", limit, sizes, fused, |Given { x, weight, .. }| {
            let [inner, outer] = halves(weight).map(|weight| x.clone().matmul(weight));
            activation::silu(inner) * outer
        });
    }
}

/// The classes of rows, of which every third one does not count, and how they are shared between two.
fn classes(rows: usize, classes: usize) -> ([Vec<i64>; 2], Vec<f64>) {
    let of = |step: usize| move |row: usize| ((row * row * step + row) % classes) as i64;
    let counted = |row: usize| if row % 3 == 1 { -100 } else { of(5)(row) };
    (
        [(0..rows).map(counted).collect(), (0..rows).map(of(3)).collect()],
        (0..rows).map(|row| 1.0 / (1 + row % 4) as f64).collect(),
    )
}

/// − Σ over the rows that count, of each class's share times the logarithm of its probability.
fn by_log_softmax(x: Tensor<2>, ([first, second], shares): ([Vec<i64>; 2], Vec<f64>), smoothing: f64) -> Tensor<2> {
    let [rows, classes] = x.dims();
    let mut weights = vec![0.0; rows * classes];
    for (row, weights) in weights.chunks_mut(classes).enumerate().filter(|(row, _)| first[*row] >= 0) {
        weights.fill(smoothing / classes as f64);
        weights[first[row] as usize] += (1.0 - smoothing) * shares[row];
        weights[second[row] as usize] += (1.0 - smoothing) * (1.0 - shares[row]);
    }
    let weights = Tensor::from_data(TensorData::new(weights, [rows, classes]), &x.device());
    (activation::log_softmax(x, 1) * weights).sum().neg().reshape([1, 1])
}

pub(crate) fn cross_entropy(limit: f64) {
    for x @ [rows, columns] in [[0, 5], [1, 1], [1, 7], [5, 1], [7, 13], [301, 173]] {
        let sizes = Sizes { x, weight: [0; 2], channels: 0 };
        for (smoothing, is_mixed) in [(0.0, false), (0.1, false), (0.1, true)] {
            let (both, mut shares) = classes(rows, columns);
            if !is_mixed {
                shares.fill(1.0);
            }
            let fused = |epl: &Epl, given: Given<2>| {
                let device = epl.place().device();
                let [first, second] = both.each_ref().map(|ids| Tensor::<1, Int>::from_data(ids.as_slice(), device));
                let shares = Tensor::from_data(shares.as_slice(), device);
                let mixed = is_mixed.then_some(MixedTargets { others: second, shares });
                let loss = SplitCrossEntropyConfig::new().with_label_smoothing(smoothing).init(epl.context());
                let logits = Split::from_local(given.x, 1, columns, epl.context().tensor());
                loss.forward(logits, Targets { classes: first, mixed }).reshape([1, 1])
            };
            let composed = |given: Given<2>| by_log_softmax(given.x, (both.clone(), shares.clone()), smoothing);
            check(&format!("cross-entropy, smoothed {smoothing}, mixed {is_mixed}"), limit, sizes, fused, composed);
        }
    }
}
