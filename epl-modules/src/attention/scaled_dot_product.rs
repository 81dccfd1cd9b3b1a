//! Scaled dot-product attention as one node of the graph.
//!
//! In host memory backward keeps what went in, which any would need, and of short sequences the weights. Elsewhere it keeps one matrix
//! of weights, the mask of dropout and the slopes of a softcap, in the place of the bias: as separate operations Burn would keep the
//! scores before and after the bias, every mask, and the weights twice.

use burn::tensor::{DType, Tensor};
use epl_comm::custom_vjp_needed;
use epl_core::model::precision::in_wide;
use epl_core::offload::is_host;

use super::heads::{Gradients, Inputs, apart, joined};
use super::on_host;
use super::weighing::{SavedWeights, Weighing};

/// softmax(softcap(q kᵀ · scale) + bias) v, with the masks and the dropout of `weighing`: of 16-bit inputs all between the first product
/// and the last in f32, in host memory the products, too.
///
/// # Shapes
///
/// - query: `[batch_size, heads, queries, head_dim]`, key and value: `[batch_size, heads / shared, keys, head_dim]`
/// - bias: `[biases, heads, queries, keys]`, whose number divides the batch size: after so many sequences they begin anew
/// - output: `[batch_size, heads, queries, head_dim]`
pub(super) fn attend(
    (query, key, value): (Tensor<4>, Tensor<4>, Tensor<4>),
    bias: Option<Tensor<4>>,
    weighing: Weighing,
) -> Tensor<4> {
    match bias {
        Some(bias) => custom_vjp_needed(
            (query, key, value, bias),
            move |(query, key, value, bias), needed| {
                forward(Inputs { query, key, value, bias: Some(bias) }, weighing, needed.contains(&true))
            },
            |saved, grad, [.., asks_bias]| {
                let found = saved.backward(grad, asks_bias);
                (Some(found.query), Some(found.key), Some(found.value), found.bias)
            },
        ),
        None => custom_vjp_needed(
            (query, key, value),
            move |(query, key, value), needed| {
                forward(Inputs { query, key, value, bias: None }, weighing, needed.contains(&true))
            },
            |saved, grad, _| {
                let found = saved.backward(grad, false);
                (Some(found.query), Some(found.key), Some(found.value))
            },
        ),
    }
}

/// What backward needs.
struct Saved {
    inputs: Inputs,
    kept: Kept,
}

enum Kept {
    /// The weights of short sequences.
    Host(Box<(Weighing, Option<Tensor<1>>)>),
    /// The inputs have no bias then, of which the number and the type is kept; the first part of the scale is in the query.
    Elsewhere { weights: Box<SavedWeights>, scale: [f64; 2], bias: Option<(usize, DType)> },
    /// No query, or no key.
    Nothing,
}

/// Whether there will be a backward pass is said.
fn forward(inputs: Inputs, weighing: Weighing, is_tracked: bool) -> (Tensor<4>, Saved) {
    if is_host(&inputs.query.device()) {
        let (output, weights) = match inputs.query.dtype() {
            DType::F64 => on_host::forward::<f64>(&inputs, &weighing, is_tracked),
            _ => on_host::forward::<f32>(&inputs, &weighing, is_tracked),
        };
        return (output, Saved { inputs, kept: Kept::Host(Box::new((weighing, weights))) });
    }
    forward_tensors(inputs, &weighing)
}

fn forward_tensors(mut inputs: Inputs, weighing: &Weighing) -> (Tensor<4>, Saved) {
    let (pairs @ [batch_size, heads, queries, _], [_, width]) = (inputs.pairs(), inputs.widths());
    if pairs.contains(&0) {
        let options = (&inputs.query.device(), inputs.query.dtype());
        return (Tensor::zeros([batch_size, heads, queries, width], options), Saved { inputs, kept: Kept::Nothing });
    }
    let bias = inputs.bias.as_ref().map(|bias| (bias.dims()[0], bias.dtype()));
    let (shared, scale) = (inputs.shared(), in_two(weighing.scale));
    inputs.query = scaled(inputs.query, scale[0]);
    let scores = joined(inputs.query.clone(), shared).matmul(inputs.key.clone().swap_dims(2, 3));
    let weighing = Weighing { scale: scale[1], ..weighing.clone() };
    let weights = weighing.weigh(apart(scores, shared), inputs.bias.take());
    let output = apart(joined(weights.kept, shared).matmul(inputs.value.clone()), shared);
    (output, Saved { inputs, kept: Kept::Elsewhere { weights: Box::new(weights.saved), scale, bias } })
}

/// A scale as what queries are multiplied by, so that products that are made small do not overflow f16 before, and what products
/// are multiplied by. The first is a power of two: it rounds nothing.
fn in_two(scale: f64) -> [f64; 2] {
    let size = scale.abs();
    let first = if size > 0.0 && size < 1.0 { size.log2().floor().exp2() } else { 1.0 };
    [first, scale / first]
}

impl Saved {
    fn backward(self, grad: Tensor<4>, asks_bias: bool) -> Gradients {
        let Self { inputs, kept } = self;
        let (weights, scale, bias) = match kept {
            Kept::Elsewhere { weights, scale, bias } => (weights, scale, bias),
            Kept::Nothing => return inputs.zeros(asks_bias),
            Kept::Host(kept) => {
                let (weighing, weights) = *kept;
                return match inputs.query.dtype() {
                    DType::F64 => on_host::backward::<f64>(&inputs, (&weighing, weights), grad, asks_bias),
                    _ => on_host::backward::<f32>(&inputs, (&weighing, weights), grad, asks_bias),
                };
            }
        };
        let (dtype, shared) = (grad.dtype(), inputs.shared());
        let grad = joined(grad, shared);
        let grad_weights = grad.clone().matmul(inputs.value.swap_dims(2, 3));
        let ([grad_scores, grad_scaled], kept) = weights.backward(apart(grad_weights, shared));
        let narrow = joined(grad_scaled.cast(dtype), shared);
        let bias = bias.filter(|_| asks_bias).map(|(biases, dtype)| summed(grad_scores, biases).cast(dtype));
        Gradients {
            query: scaled(apart(narrow.clone().matmul(inputs.key), shared), scale[0] * scale[1]),
            key: scaled(narrow.swap_dims(2, 3).matmul(joined(inputs.query, shared)), scale[1]),
            value: joined(kept, shared).swap_dims(2, 3).matmul(grad),
            bias,
        }
    }
}

/// The sum over sequences that share a bias, of which there are so many.
fn summed(x: Tensor<4>, biases: usize) -> Tensor<4> {
    let [batch_size, heads, queries, keys] = x.dims();
    if biases == batch_size {
        return x;
    }
    let apart = x.reshape([batch_size / biases.max(1), biases * heads, queries, keys]);
    apart.sum_dim(0).reshape([biases, heads, queries, keys])
}

fn scaled(x: Tensor<4>, scale: f64) -> Tensor<4> {
    if scale == 1.0 { x } else { in_wide(x, |x| x * scale) }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Bool, Device, Distribution, TensorData, s};

    use super::super::weighing::Sight;
    use super::*;
    use crate::dropout::Mask;
    use crate::random::Noise;
    use crate::softcap::Softcap;

    fn draw(shape: [usize; 4], dtype: DType) -> Tensor<4> {
        Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.5), &Device::flex()).cast(dtype)
    }

    /// Heads as a linear layer leaves them.
    fn heads([batch_size, heads, rows, width]: [usize; 4], dtype: DType) -> Tensor<4> {
        draw([batch_size, rows, heads, width], dtype).swap_dims(1, 2)
    }

    /// Two heads of queries share one of keys where their number is even.
    fn inputs(size: [usize; 4], biases: Option<usize>, dtype: DType) -> Inputs {
        inputs_of([5, 7], size, biases, dtype)
    }

    /// The same, of keys and of values of these widths.
    fn inputs_of(
        [depth, width]: [usize; 2],
        [batch_size, n_heads, queries, keys]: [usize; 4],
        biases: Option<usize>,
        dtype: DType,
    ) -> Inputs {
        let of_keys = if n_heads.is_multiple_of(2) { n_heads / 2 } else { n_heads };
        Inputs {
            query: heads([batch_size, n_heads, queries, depth], dtype),
            key: heads([batch_size, of_keys, keys, depth], dtype),
            value: draw([batch_size, of_keys, keys, width], dtype),
            bias: biases.map(|sequences| draw([sequences, n_heads, queries, keys], dtype)),
        }
    }

    fn copy(Inputs { query, key, value, bias }: &Inputs) -> Inputs {
        Inputs { query: query.clone(), key: key.clone(), value: value.clone(), bias: bias.clone() }
    }

    fn far(a: Tensor<4>, b: Tensor<4>) -> f64 {
        assert_eq!(a.dims(), b.dims());
        epl_testing::largest((a - b).abs().into_data().iter::<f64>())
    }

    /// One block and several, sizes that do not divide, queries that see no key, and nothing at all.
    const SIZES: [[usize; 4]; 13] = [
        [2, 3, 5, 19],
        [1, 1, 1, 1],
        [3, 2, 130, 130],
        [1, 2, 150, 700],
        [2, 4, 80, 2048],
        [11, 1, 40, 6],
        [36, 1, 5, 6],
        [12, 2, 40, 9],
        [2, 1, 9, 4],
        [1, 2, 150, 20],
        [2, 2, 0, 3],
        [2, 2, 3, 0],
        [0, 2, 3, 4],
    ];

    fn weighing([batch_size, _, _, keys]: [usize; 4], causal: bool, masks: bool) -> Weighing {
        let hidden: Vec<bool> = (0..batch_size * keys).map(|i| i >= keys || i % 4 == 1).collect();
        let padding = Tensor::<2, Bool>::from_data(TensorData::new(hidden, [batch_size, keys]), &Device::flex());
        let samples: Vec<u64> = (0..batch_size as u64).map(|sample| 7 + 2 * sample).collect();
        // Its factor, 2, is the same in all types.
        let dropout = Mask::new(0.5, Noise::new(1, 2, 3, 4), samples.into());
        let sight = if causal { Sight::Causal { window: None } } else { Sight::All };
        let (padding, dropout) = (masks.then_some(padding), masks.then_some(dropout));
        Weighing { scale: 0.4, softcap: None, sight, padding, dropout }
    }

    /// The same, with a window of so many positions and a limit that many scores are near.
    fn limited(size: [usize; 4], window: usize, masks: bool) -> Weighing {
        let softcap = Softcap::new(0.8).ok();
        Weighing { softcap, sight: Sight::Causal { window: Some(window) }, ..weighing(size, true, masks) }
    }

    #[test]
    fn in_host_memory_it_is_what_tensor_operations_give() {
        // Biases that begin anew after two sequences, and after half of them.
        let counts = |size: [usize; 4]| [None, Some(1), Some(2), Some(size[0] / 2), Some(size[0])];
        let cases = SIZES.into_iter().flat_map(|size| counts(size).map(|biases| (size, biases)));
        let fits = |size: &[usize; 4], biases: usize| biases > 0 && size[0].is_multiple_of(biases);
        for (size, biases) in cases.filter(|(size, biases)| biases.is_none_or(|biases| fits(size, biases))) {
            let [plain, with_masks] =
                [false, true].map(|masks| [false, true].map(|causal| weighing(size, causal, masks)));
            // Within a block, and over several.
            let without_limit = Weighing { softcap: None, ..limited(size, 3, true) };
            let windows = [limited(size, 3, true), limited(size, 70, false), without_limit];
            for weighing in plain.into_iter().chain(with_masks).chain(windows) {
                let (mut inputs, masks) = (inputs(size, biases, DType::F64), weighing.padding.is_some());
                // A bias may hide all keys of a query.
                let first = 0..size[2].min(1);
                inputs.bias = inputs.bias.map(|bias| bias.slice_fill(s![.., .., first, ..], f64::NEG_INFINITY));
                let (ours, saved) = forward(copy(&inputs), weighing.clone(), true);
                let grad = heads([size[0], size[1], size[2], 7], DType::F64);
                let found = saved.backward(grad.clone(), true);
                let what = format!("{size:?}, biases {biases:?}, {:?}, masks {masks}", weighing.sight);
                let (expected, saved) = forward_tensors(inputs, &weighing);
                assert!(far(ours.clone(), expected) < 1e-12, "{what}");
                let expected = saved.backward(grad, true);
                let gradients = [found.query, found.key, found.value].into_iter().chain(found.bias);
                let exact = [expected.query, expected.key, expected.value].into_iter().chain(expected.bias);
                for (index, (ours, exact)) in gradients.zip(exact).enumerate() {
                    assert!(far(ours, exact) < 1e-12, "{what}: gradient {index}");
                }
                if masks && size[0] > 1 && !size.contains(&0) {
                    // All keys of the others are padding.
                    let others = ours.slice_dim(0, 1..size[0]).abs().max().into_scalar::<f64>();
                    assert_eq!(others, 0.0, "{what}");
                }
            }
        }
    }

    /// The weights that forward has kept, if it has.
    fn kept(saved: &mut Saved) -> Option<Tensor<1>> {
        match &mut saved.kept {
            Kept::Host(kept) => kept.1.take(),
            _ => None,
        }
    }

    /// Of several blocks and parts, of which each has a place of its own for its weights.
    #[test]
    fn kept_weights_give_the_gradients_of_weights_that_are_made_again() {
        for (size, biases) in [
            ([1, 1, 130, 130], None),
            ([9, 1, 130, 130], Some(3)),
            ([4, 1, 150, 150], Some(1)),
            ([4, 2, 100, 100], None),
        ] {
            let window = Weighing { softcap: None, ..limited(size, 70, true) };
            for weighing in [weighing(size, true, false), weighing(size, false, true), window] {
                let what = format!("{size:?}, biases {biases:?}, {:?}", weighing.sight);
                let inputs = inputs_of([64; 2], size, biases, DType::F64);
                let grad = heads([size[0], size[1], size[2], 64], DType::F64);
                let run = |is_kept: bool| {
                    let (output, mut saved) = forward(copy(&inputs), weighing.clone(), true);
                    assert!(is_kept || kept(&mut saved).is_some(), "{what}: they are short enough");
                    let found = saved.backward(grad.clone(), true);
                    [vec![output, found.query, found.key, found.value], found.bias.into_iter().collect()].concat()
                };
                let (ours, again) = (run(true), run(false));
                let (expected, saved) = forward_tensors(copy(&inputs), &weighing);
                let exact = saved.backward(grad.clone(), true);
                let exact = [expected, exact.query, exact.key, exact.value].into_iter().chain(exact.bias);
                for (index, ((ours, again), exact)) in ours.into_iter().zip(again).zip(exact).enumerate() {
                    assert_eq!(ours.clone().into_data(), again.into_data(), "{what}: {index}, to the bit");
                    let scale = exact.clone().abs().max().into_scalar::<f64>().max(1.0);
                    assert!(far(ours, exact) < 1e-12 * scale, "{what}: {index}");
                }
            }
        }
    }

    #[test]
    fn weights_are_kept_that_are_no_more_bytes_than_what_went_in() {
        let keeps = |length: usize, dtype: DType, softcap: bool, is_tracked: bool| {
            let size = [2, 1, length, length];
            let softcap = softcap.then(|| Softcap::new(0.8).unwrap());
            let weighing = Weighing { softcap, ..weighing(size, false, false) };
            let (_, mut saved) = forward(inputs_of([8; 2], size, None, dtype), weighing, is_tracked);
            kept(&mut saved).is_some()
        };
        // Three matrices of eight columns; weights are in f32 at least.
        for (dtype, most) in [(DType::F64, 24), (DType::F32, 24), (DType::BF16, 12)] {
            assert!(keeps(most, dtype, false, true) && !keeps(most + 1, dtype, false, true), "{dtype:?}");
            assert!(!keeps(most, dtype, true, true), "{dtype:?}: a softcap has slopes, too");
            assert!(!keeps(most, dtype, false, false), "{dtype:?}: no backward pass has them");
        }
    }

    /// The key of padding is a number, of which the product is none.
    #[test]
    fn padding_hides_scores_that_are_no_numbers() {
        let rows = |values: &[f32], width: usize| {
            Tensor::<1>::from_floats(values, &Device::flex()).reshape([1, 1, values.len() / width, width])
        };
        let (query, key, value) = (rows(&[1e20; 2], 2), rows(&[1e-20, 1e-20, 1e30, -1e30], 2), rows(&[3.0, 5.0], 1));
        let inputs = Inputs { query, key, value, bias: None };
        let padding = Tensor::<2, Bool>::from_data([[false, true]], &Device::flex());
        for softcap in [None, Softcap::new(0.8).ok()] {
            let weighing = Weighing { padding: Some(padding.clone()), softcap, ..weighing([1, 1, 1, 2], false, false) };
            for (output, saved) in
                [forward_tensors(copy(&inputs), &weighing), forward(copy(&inputs), weighing.clone(), true)]
            {
                assert_eq!(output.into_scalar::<f32>(), 3.0);
                let found = saved.backward(rows(&[1.0], 1), false);
                let values = [found.query, found.key, found.value].map(|x| x.into_data().try_to_vec::<f32>().unwrap());
                // One key alone is seen: its weight is 1, whatever its score.
                assert_eq!(values, [vec![0.0; 2], vec![0.0; 4], vec![1.0, 0.0]], "{softcap:?}");
            }
        }
    }

    /// Inputs in 16 bits are attended over in f32: what comes out, and every gradient, is rounded once, to the type of what it is
    /// of. Tensor operations round the scores and the weights, too.
    #[test]
    fn sixteen_bits_are_rounded_once() {
        let size = [2, 3, 70, 40];
        let types = [(DType::F16, DType::F16, 1e-3), (DType::BF16, DType::BF16, 8e-3), (DType::BF16, DType::F32, 8e-3)];
        let weighings = [weighing(size, true, true), limited(size, 20, true)];
        for ((dtype, of_bias, unit), weighing) in types.into_iter().flat_map(|of| weighings.each_ref().map(|w| (of, w)))
        {
            let mut half = inputs(size, Some(1), dtype);
            half.bias = half.bias.map(|bias| bias.cast(of_bias));
            let rounded = copy(&half);
            let wide = |x: &Tensor<4>| x.clone().cast(DType::F32);
            let bias = half.bias.as_ref().map(wide);
            let full = Inputs { query: wide(&half.query), key: wide(&half.key), value: wide(&half.value), bias };
            let grad = heads([2, 3, 70, 7], dtype);
            let all = |(output, saved): (Tensor<4>, Saved), grad: Tensor<4>| {
                let found = saved.backward(grad, true);
                [output, found.query, found.key, found.value, found.bias.expect("it was asked for")]
            };
            let tensors = all(forward_tensors(rounded, weighing), grad.clone());
            let ours = all(forward(half, weighing.clone(), true), grad.clone());
            let exact = all(forward(full, weighing.clone(), true), wide(&grad));
            for (((ours, exact), tensors), dtype) in
                ours.into_iter().zip(exact).zip(tensors).zip([dtype, dtype, dtype, dtype, of_bias])
            {
                assert_eq!((ours.dtype(), tensors.dtype()), (dtype, dtype));
                let scale = exact.clone().abs().max().into_scalar::<f64>();
                assert!(far(wide(&tensors), exact.clone()) <= 8.0 * unit * scale, "{dtype:?}");
                assert_eq!(ours.into_data(), exact.cast(dtype).into_data());
            }
        }
    }

    /// In f16 the products without their scale would be no numbers.
    #[test]
    fn products_that_only_their_scale_makes_small_do_not_overflow() {
        let size = [1, 2, 3, 4];
        let filled = |rows: usize| Tensor::<4>::full([1, 2, rows, 64], 40.0, (&Device::flex(), DType::F16));
        let inputs = Inputs { query: filled(3), key: filled(4), value: draw([1, 2, 4, 7], DType::F16), bias: None };
        let weighing = Weighing { scale: 0.125, ..weighing(size, false, false) };
        let grad = heads([1, 2, 3, 7], DType::F16);
        let all = |(output, saved): (Tensor<4>, Saved)| {
            let found = saved.backward(grad.clone(), false);
            [output, found.query, found.key, found.value].map(|x| x.cast(DType::F32))
        };
        let (ours, exact) = (all(forward_tensors(copy(&inputs), &weighing)), all(forward(inputs, weighing, true)));
        for (index, (ours, exact)) in ours.into_iter().zip(exact).enumerate() {
            let finite = ours.clone().into_data().iter::<f32>().all(f32::is_finite);
            assert!(finite && far(ours, exact) < 0.1, "{index}");
        }
        for (scale, exact) in [(0.125, [0.125, 1.0]), (-0.4, [0.25, -1.6]), (1.0, [1.0, 1.0]), (0.0, [1.0, 0.0])] {
            assert_eq!(in_two(scale), exact);
        }
    }

    #[test]
    fn the_bits_do_not_depend_on_the_number_of_threads() {
        let (few, many, short, all) = ([2, 2, 300, 600], [1, 1, 600, 2048], [4, 3, 150, 150], true);
        let cases = [
            (few, [5, 7], weighing(few, true, all)),
            (many, [5, 7], weighing(many, false, all)),
            (few, [5, 7], limited(few, 90, all)),
            (short, [64; 2], weighing(short, true, all)),
        ];
        for (size, widths, weighing) in cases {
            let inputs = inputs_of(widths, size, Some(1), DType::F32);
            let grad = heads([size[0], size[1], size[2], widths[1]], DType::F32);
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    let (output, saved) = forward(copy(&inputs), weighing.clone(), true);
                    let found = saved.backward(grad.clone(), true);
                    let all = [Some(output), Some(found.query), Some(found.key), Some(found.value), found.bias];
                    all.map(|x| x.map(Tensor::into_data))
                })
            };
            let one = on(1);
            for threads in [2, 3, 7] {
                assert!(on(threads) == one, "{size:?} on {threads} threads");
            }
        }
    }

    /// One key for all sequences, whose rows lie apart, a transposed value, and one gradient for all heads.
    #[test]
    fn whatever_the_layout_of_its_inputs() {
        let key = draw([1, 3, 40, 10], DType::F64).slice_dim(3, 0..5).expand([2, 3, 40, 5]);
        let value = draw([2, 3, 7, 40], DType::F64).swap_dims(2, 3);
        let inputs = Inputs { query: heads([2, 3, 70, 5], DType::F64), key, value, bias: None };
        let weighing = weighing([2, 3, 70, 40], false, true);
        let grad = draw([2, 1, 70, 7], DType::F64).expand([2, 3, 70, 7]);
        let (ours, saved) = forward(copy(&inputs), weighing.clone(), true);
        let (expected, saved_tensors) = forward_tensors(inputs, &weighing);
        let (found, exact) = (saved.backward(grad.clone(), true), saved_tensors.backward(grad, true));
        let pairs = [(ours, expected), (found.query, exact.query), (found.key, exact.key), (found.value, exact.value)];
        for (ours, exact) in pairs {
            assert!(far(ours, exact) < 1e-12);
        }
    }

    /// By Burn's own operations, and Burn's gradients of them.
    #[test]
    fn a_limit_and_a_window_are_those_of_the_formula() {
        let (size, window) = ([2, 4, 6, 9], 4);
        let given = inputs(size, Some(1), DType::F64);
        let bias = given.bias.expect("it was asked for");
        let tracked = |x: &Tensor<4>| x.clone().autodiff().set_require_grad(true);
        let grad = heads([2, 4, 6, 7], DType::F64).autodiff();
        let gradients = |attended: &dyn Fn([Tensor<4>; 4]) -> Tensor<4>| {
            let all = [&given.query, &given.key, &given.value, &bias].map(tracked);
            let output = attended(all.clone());
            let found = (output.clone() * grad.clone()).sum().backward();
            [vec![output.inner()], all.iter().filter_map(|x| x.grad(&found)).collect()].concat()
        };
        let ours = gradients(&|[query, key, value, bias]| {
            attend((query, key, value), Some(bias), limited(size, window, false))
        });
        let exact = gradients(&|[query, key, value, bias]| {
            // The last query stands at the last key.
            let unseen = |pair: usize| (pair % 9 > pair / 9 + 3) || (pair % 9 + window <= pair / 9 + 3);
            let unseen = TensorData::new((0..54).map(unseen).collect::<Vec<_>>(), [1, 1, 6, 9]);
            let unseen = Tensor::<4, Bool>::from_data(unseen, &query.device()).expand([2, 4, 6, 9]);
            let each = |x: Tensor<4>| x.repeat_dim(2, 2).reshape([2, 4, 9, -1]);
            let scores = (query.matmul(each(key).transpose()) * (0.4 / 0.8)).tanh() * 0.8 + bias;
            burn::tensor::activation::softmax(scores.mask_fill(unseen, -1e300), 3).matmul(each(value))
        });
        assert_eq!((ours.len(), exact.len()), (5, 5));
        for (index, (ours, exact)) in ours.into_iter().zip(exact).enumerate() {
            assert!(far(ours, exact) < 1e-12, "{index}");
        }
    }

    /// What is asked of the bias and of the others does not depend on each other.
    #[test]
    fn a_bias_may_be_a_constant_and_may_be_all_that_is_learned() {
        let given = inputs([2, 2, 5, 6], Some(1), DType::F32);
        let bias = given.bias.clone().expect("it was asked for");
        let gradients = |tracks: [bool; 2]| {
            let tensor = |x: &Tensor<4>, tracks: bool| x.clone().autodiff().set_require_grad(tracks);
            let query = tensor(&given.query, tracks[0]);
            let (key, value, bias) = (tensor(&given.key, false), tensor(&given.value, false), tensor(&bias, tracks[1]));
            let weighing = weighing([2, 2, 5, 6], true, false);
            let loss = attend((query.clone(), key, value), Some(bias.clone()), weighing).powi_scalar(2).sum();
            let found = loss.backward();
            [query.grad(&found), bias.grad(&found)].map(|grad| grad.map(Tensor::into_data))
        };
        let [both, without, alone] = [[true, true], [true, false], [false, true]].map(gradients);
        assert!(both.iter().all(Option::is_some));
        assert_eq!(without, [both[0].clone(), None]);
        assert_eq!(alone, [None, both[1].clone()]);
    }
}
