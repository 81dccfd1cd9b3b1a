//! Convolutions of one and two dims in host memory, as products of large matrices.
//!
//! ```text
//! columns [channels_in · taps, images · positions] of x        y  = W · columns
//! dx from  Wᵀ · g, each tap added to where it saw              dW = g · columnsᵀ, images after each other
//! ```
//!
//! Small images are put together, so that a product has some hundred columns at least; what is put together depends on the
//! sizes alone. The scheme is that of Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks for Document
//! Processing (2006).

use core::mem::MaybeUninit;

use burn::module::Param;
use burn::nn::conv::{Conv1d, Conv2d};
use burn::nn::{PaddingConfig1d, PaddingConfig2d};
use burn::tensor::Tensor;
use epl_comm::count_work;

use super::window::Window;
use crate::host::matrix::Matrix;
use crate::host::product::{Product, product};
use crate::host::transpose::{row_by_row, transpose_into};
use crate::host::unwritten::{Unwritten, written};
use crate::host::{self, HostFloat, Real, View, column_sums, host_float};
use crate::linear::weighted;

/// Burn's `Conv2d`: in host memory and of one group by products of this crate, else by Burn's.
///
/// # Shapes
///
/// - x: `[batch, channels_in, height, width]`
/// - output: `[batch, channels_out, height, width]`, the sizes by stride and padding
pub(crate) fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
    let [images, channels, height, width] = x.dims();
    let of_one_type = x.dtype() == weight.dtype() && bias.as_ref().is_none_or(|bias| bias.dtype() == x.dtype());
    let [filters, seen, taps @ ..] = weight.dims();
    let fits =
        seen == channels && taps == layer.kernel_size && bias.as_ref().is_none_or(|bias| bias.dims() == [filters]);
    let is_whole = fits && layer.groups == 1 && images * channels > 0;
    let window = Window::new(layer, [height, width]).filter(|_| of_one_type && is_whole);
    match (host_float(&x), window) {
        (Some(HostFloat::Single), Some(window)) => with_gradients::<f32>(x, weight, bias, window),
        (Some(HostFloat::Double), Some(window)) => with_gradients::<f64>(x, weight, bias, window),
        _ => layer.forward(x),
    }
}

/// Burn's `Conv1d`, as a [`conv2d`] of images of one row.
///
/// # Shapes
///
/// - x: `[batch, channels_in, length]`
/// - output: `[batch, channels_out, length]`, the length by stride and padding
pub(crate) fn conv1d(layer: &Conv1d, x: Tensor<3>) -> Tensor<3> {
    if host_float(&x).is_none() || layer.groups != 1 {
        return layer.forward(x);
    }
    let image = Conv2d {
        weight: Param::initialized(layer.weight.id, layer.weight.val().unsqueeze_dim(2)),
        bias: layer.bias.clone(),
        stride: [1, layer.stride],
        kernel_size: [1, layer.kernel_size],
        dilation: [1, layer.dilation],
        groups: layer.groups,
        padding: match layer.padding {
            PaddingConfig1d::Same => PaddingConfig2d::Same,
            PaddingConfig1d::Valid => PaddingConfig2d::Valid,
            PaddingConfig1d::Explicit(left, right) => PaddingConfig2d::Explicit(0, left, 0, right),
        },
    };
    conv2d(&image, x.unsqueeze_dim(2)).squeeze_dim(2)
}

fn with_gradients<T: Real>(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>, window: Window) -> Tensor<4> {
    let forward = move |x, weight, bias, [_, asks_weight]: [bool; 2]| {
        let y = forward::<T>(&x, &weight, bias, &window);
        (y, Saved { shape: x.dims(), x: asks_weight.then_some(x), weight, window })
    };
    weighted((x, weight, bias), forward, Saved::backward::<T>, bias_gradient::<T>)
}

/// What the gradients need.
struct Saved {
    /// The input's.
    shape: [usize; 4],
    /// Of a weight that is not trained none.
    x: Option<Tensor<4>>,
    weight: Tensor<4>,
    window: Window,
}

/// Columns that a product should have.
const COLUMNS: usize = 256;

/// Elements that are held at once for the weights' gradient, of columns and of the output's gradient each: some megabytes, or an
/// image's.
const COLUMNS_AT_ONCE: usize = 1 << 20;

fn forward<T: Real>(x: &Tensor<4>, weight: &Tensor<4>, bias: Option<Tensor<1>>, window: &Window) -> Tensor<4> {
    let (device, [images, channels, ..], filters) = (x.device(), x.dims(), weight.dims()[0]);
    let [height, width] = window.output();
    let (positions, rows) = (window.positions(), channels * window.taps());
    let (input, kernel) = (View::<T>::new(x.clone()), View::<T>::new(weight.clone()));
    let kernel = Matrix::new(kernel.slice(), [filters, rows]);
    count_work(|| 2.0 * (images * filters * rows * positions) as f64);
    let bias = bias.map(View::<T>::new);
    let mut y = Unwritten::<T>::new(images * filters * positions);
    for_images(y.memory(), filters * positions, positions, |first, y, threads| {
        let count = y.len() / (filters * positions);
        with_columns(window, input.slice(), channels, first..first + count, threads, |columns| {
            let result = product(kernel, columns);
            match count {
                1 => _ = result.write(y, threads),
                _ => T::with_scratch(y.len(), |scratch| {
                    swap_outer(result.write(scratch, threads), [filters, count, positions], y);
                }),
            }
        });
        if let Some(bias) = &bias {
            for (channel, y) in y.chunks_exact_mut(positions).enumerate() {
                let bias = bias.slice()[channel % filters];
                // SAFETY: the product was written to all of it.
                y.iter_mut().for_each(|y| *unsafe { y.assume_init_mut() } += bias);
            }
        }
    });
    // SAFETY: each image was written.
    host::tensor(unsafe { y.written() }, [images, filters, height, width], &device)
}

impl Saved {
    fn backward<T: Real>(self, grad: Tensor<4>, needed: [bool; 2]) -> (Option<Tensor<4>>, Option<Tensor<4>>) {
        let (grad, [images, channels, ..]) = (View::<T>::new(grad), self.shape);
        let rows = channels * self.window.taps();
        let asked = needed.iter().filter(|needed| **needed).count();
        count_work(|| 2.0 * (asked * images * self.weight.dims()[0] * rows * self.window.positions()) as f64);
        let of_x = needed[0].then(|| self.input_gradient(&grad));
        let of_weight = self.x.as_ref().map(|x| self.weight_gradient(&View::<T>::new(x.clone()), &grad));
        (of_x, of_weight)
    }

    fn input_gradient<T: Real>(&self, grad: &View<T>) -> Tensor<4> {
        let (device, shape, window) = (self.weight.device(), self.shape, &self.window);
        let ([_, channels, ..], filters) = (shape, self.weight.dims()[0]);
        let (positions, pixels, taps) = (window.positions(), window.pixels(), window.taps());
        let kernel = View::<T>::new(self.weight.clone());
        let kernel = Matrix::new(kernel.slice(), [filters, channels * taps]).transposed();
        let mut of_x = Unwritten::<T>::new(shape.iter().product());
        for_images(of_x.memory(), channels * pixels, positions, |first, of_x, threads| {
            let count = of_x.len() / (channels * pixels);
            let grad = &grad.slice()[first * filters * positions..][..count * filters * positions];
            with_merged(grad, [count, filters, positions], |grad| {
                let seen = product(kernel, Matrix::new(grad, [filters, count * positions]));
                if window.is_pointwise() && count == 1 {
                    seen.write(of_x, threads);
                    return;
                }
                T::with_scratch(channels * taps * count * positions, |scratch| {
                    let seen = seen.write(scratch, threads);
                    match window.is_pointwise() {
                        true => _ = swap_outer(seen, [channels, count, positions], of_x),
                        false => scatter_columns(window, seen, channels, of_x, threads),
                    }
                });
            });
        });
        // SAFETY: each image was written.
        host::tensor(unsafe { of_x.written() }, shape, &device)
    }

    /// A product has its right side, or its result, transposed: the columns where there are fewer positions than filters, else the
    /// gradient, which makes the weights' one come out as `[channels_in · taps, filters]`.
    fn weight_gradient<T: Real>(&self, x: &View<T>, grad: &View<T>) -> Tensor<4> {
        let (device, [images, channels, ..], window) = (self.weight.device(), self.shape, &self.window);
        let (positions, shape) = (window.positions(), self.weight.dims());
        let (filters, rows, threads) = (shape[0], channels * window.taps(), rayon::current_num_threads());
        let by_filter = images * positions < filters;
        let mut sums: Option<Vec<T>> = None;
        let mut add = |result: Product<'_, T>| match &mut sums {
            Some(sums) => result.add_to(sums, threads),
            None => sums = Some(result.values()),
        };
        let at_once = (COLUMNS_AT_ONCE / (rows.max(filters) * positions).max(1)).clamp(1, images);
        for first in (0..images).step_by(at_once) {
            let count = at_once.min(images - first);
            let grad = &grad.slice()[first * filters * positions..][..count * filters * positions];
            with_columns(window, x.slice(), channels, first..first + count, threads, |columns| match by_filter {
                true => with_merged(grad, [count, filters, positions], |grad| {
                    add(product(Matrix::new(grad, [filters, count * positions]), columns.transposed()));
                }),
                false => T::with_scratch(grad.len(), |by_position| {
                    host::for_blocks(by_position, positions * filters, |image, out| {
                        let grad = &grad[image * filters * positions..][..filters * positions];
                        transpose_into(Matrix::new(grad, [filters, positions]).transposed(), out, 1);
                    });
                    // SAFETY: the gradient of each image was.
                    let by_position = unsafe { written(by_position) };
                    add(product(columns, Matrix::new(by_position, [count * positions, filters])));
                }),
            });
        }
        let sums = sums.expect("there is an image, or Burn's own convolution is taken");
        let of_weight = if by_filter { sums } else { row_by_row(Matrix::new(&sums, [rows, filters]).transposed()) };
        host::tensor(of_weight, shape, &device)
    }
}

fn bias_gradient<T: Real>(grad: &Tensor<4>) -> Tensor<1> {
    let [images, filters, height, width] = grad.dims();
    let (view, positions) = (View::<T>::new(grad.clone()), height * width);
    let mut sums = vec![T::ZERO; images * filters];
    let block = host::rows_a_task(positions);
    host::for_blocks(&mut sums, block, |index, sums| {
        let planes = view.slice()[index * block * positions..].chunks_exact(positions);
        sums.iter_mut().zip(planes).for_each(|(sum, plane)| *sum = host::sum_of(plane, plane, |x, _| x));
    });
    host::tensor(column_sums(&sums, filters), [filters], &grad.device())
}

/// Calls `f(first image, some images, threads for them)` on all threads, for as many images at once as have [`COLUMNS`].
fn for_images<T: Send>(all: &mut [T], image: usize, positions: usize, f: impl Fn(usize, &mut [T], usize) + Sync) {
    if all.is_empty() {
        return;
    }
    let together = COLUMNS.div_ceil(positions.max(1));
    let tasks = all.len().div_ceil(together * image);
    let threads = rayon::current_num_threads().div_ceil(tasks);
    host::for_blocks(all, together * image, |index, images| f(index * together, images, threads));
}

/// Calls `f` with the columns `[channels · taps, images · positions]` of these images.
fn with_columns<T: Real, R>(
    window: &Window,
    x: &[T],
    channels: usize,
    images: core::ops::Range<usize>,
    threads: usize,
    f: impl FnOnce(Matrix<T>) -> R,
) -> R {
    let (pixels, taps, positions, count) = (window.pixels(), window.taps(), window.positions(), images.len());
    let x = &x[images.start * channels * pixels..images.end * channels * pixels];
    if window.is_pointwise() && count == 1 {
        return f(Matrix::new(x, [channels, positions]));
    }
    let (rows, length) = (channels * taps, count * positions);
    T::with_scratch(rows * length, |columns| {
        let at_once = if threads == 1 { rows } else { host::rows_a_task(length) };
        host::for_blocks(columns, at_once * length, |block, columns| {
            for (row, columns) in columns.chunks_exact_mut(length).enumerate() {
                let (channel, tap) = ((block * at_once + row) / taps, (block * at_once + row) % taps);
                for (image, seen) in columns.chunks_exact_mut(positions).enumerate() {
                    let channel = &x[(image * channels + channel) * pixels..][..pixels];
                    window.gather(tap, channel, seen);
                }
            }
        });
        // SAFETY: each row was, for each image.
        f(Matrix::new(unsafe { written(columns) }, [rows, length]))
    })
}

/// Writes the sums of the columns `[channels · taps, images · positions]` of each pixel where they were seen: the opposite of
/// [`with_columns`].
fn scatter_columns<T: Real>(
    window: &Window,
    columns: &[T],
    channels: usize,
    images: &mut [MaybeUninit<T>],
    threads: usize,
) {
    let (pixels, taps, positions) = (window.pixels(), window.taps(), window.positions());
    let planes = images.len() / pixels;
    let at_once = if threads == 1 { planes } else { 1 };
    host::for_blocks(images, at_once * pixels, |block, images| {
        for (plane, pixels) in host::zeroed(images).chunks_exact_mut(pixels).enumerate() {
            let plane = block * at_once + plane;
            let (image, channel) = (plane / channels, plane % channels);
            for tap in 0..taps {
                let row = (channel * taps + tap) * (planes / channels) + image;
                window.scatter(tap, &columns[row * positions..][..positions], pixels);
            }
        }
    });
}

/// Calls `f` with `[images, filters, positions]` as `[filters, images · positions]`.
fn with_merged<T: Real>(x: &[T], [images, filters, positions]: [usize; 3], f: impl FnOnce(&[T])) {
    if images == 1 {
        return f(x);
    }
    T::with_scratch(x.len(), |merged| {
        f(swap_outer(x, [images, filters, positions], merged));
    });
}

/// `[a, b, inner]` as `[b, a, inner]`.
fn swap_outer<'o, T: Copy>(from: &[T], [a, b, inner]: [usize; 3], to: &'o mut [MaybeUninit<T>]) -> &'o mut [T] {
    assert_eq!(to.len(), a * b * inner, "all of it is written");
    for (index, to) in to.chunks_exact_mut(inner).enumerate() {
        let (of_b, of_a) = (index / a, index % a);
        let from = &from[(of_a * b + of_b) * inner..][..inner];
        to.write_copy_of_slice(from);
    }
    // SAFETY: each inner row was written.
    unsafe { written(to) }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, Distribution, TensorData};

    use super::*;

    fn values(tensor: Option<TensorData>) -> Vec<f64> {
        tensor.map(|data| data.iter::<f64>().collect()).unwrap_or_default()
    }

    /// The output of a convolution, and the gradients of its input, weight and bias.
    fn run(layer: &Conv2d, x: &Tensor<4>, forward: fn(&Conv2d, Tensor<4>) -> Tensor<4>) -> [Vec<f64>; 4] {
        let bias = layer.bias.as_ref().map(|bias| bias.val());
        let y = forward(layer, x.clone());
        let steps = Tensor::<1, burn::tensor::Int>::arange(0..y.dims().iter().product::<usize>() as i64, &x.device());
        let seed = steps.float().cast(DType::F64).sin().reshape(y.dims());
        let gradients = (y.clone() * seed).sum().backward();
        let of_bias = bias.and_then(|bias| bias.grad(&gradients)).map(Tensor::into_data);
        [
            values(Some(y.into_data())),
            values(x.grad(&gradients).map(Tensor::into_data)),
            values(layer.weight.val().grad(&gradients).map(Tensor::into_data)),
            values(of_bias),
        ]
    }

    fn check(image: [usize; 4], filters: usize, sizes: [[usize; 2]; 3], padding: PaddingConfig2d, has_bias: bool) {
        let [kernel_size, stride, dilation] = sizes;
        let device = Device::flex().autodiff();
        let draw = |shape: Vec<usize>| {
            Tensor::<1>::random([shape.iter().product::<usize>()], Distribution::Default, (&device, DType::F64)) - 0.5
        };
        let x = draw(image.to_vec()).reshape(image).detach().require_grad();
        let shape = [filters, image[1], kernel_size[0], kernel_size[1]];
        let layer = Conv2d {
            weight: Param::from_tensor(draw(shape.to_vec()).reshape(shape).detach()),
            bias: has_bias.then(|| Param::from_tensor(draw(vec![filters]).detach())),
            stride,
            kernel_size,
            dilation,
            groups: 1,
            padding: padding.clone(),
        };
        let ours = run(&layer, &x, conv2d);
        let burns = run(&layer, &x, Conv2d::forward);
        for (what, (ours, burns)) in ["output", "input", "weight", "bias"].into_iter().zip(ours.iter().zip(&burns)) {
            assert_eq!(ours.len(), burns.len(), "{what} of {image:?}, {sizes:?}, {padding:?}");
            let far = epl_testing::largest(ours.iter().zip(burns).map(|(a, b)| (a - b).abs()));
            assert!(far <= 1e-11, "{what} of {image:?} to {filters}, {sizes:?}, {padding:?}: {far:e}");
        }
        assert!(!ours[1].is_empty() && !ours[2].is_empty() && ours[3].is_empty() != has_bias);
    }

    #[test]
    fn a_convolution_and_its_gradients_are_burns() {
        use PaddingConfig2d::{Explicit, Same, Valid};
        // Alone, put together, of two threads; a row, a column, a pixel.
        let images = [[1, 3, 9, 7], [5, 2, 6, 6], [2, 3, 20, 21], [3, 1, 1, 8], [2, 2, 8, 1], [4, 5, 1, 1]];
        let kernels = [[1, 1], [3, 3], [2, 5], [1, 3], [4, 1]];
        let moves = [[[1, 1], [1, 1]], [[2, 1], [1, 2]], [[3, 2], [2, 1]], [[2, 2], [1, 1]]];
        let mut count = 0;
        for (image, kernel) in images.into_iter().flat_map(|image| kernels.map(|kernel| (image, kernel))) {
            for [stride, dilation] in moves {
                for padding in [Valid, Same, Explicit(2, 0, 1, 3), Explicit(4, 4, 4, 4)] {
                    let layer_fits = |dim: usize| {
                        let both = match &padding {
                            Explicit(top, left, bottom, right) => [top + bottom, left + right][dim],
                            _ => 0,
                        };
                        image[2 + dim] + both > dilation[dim] * (kernel[dim] - 1)
                    };
                    // Burn adds no padding to one side only of what keeps its size, and no kernel fits an image that is smaller.
                    if padding == Same
                        && (kernel.iter().any(|size| size % 2 == 0) || stride != [1, 1] || dilation != [1, 1])
                        || padding != Same && !(layer_fits(0) && layer_fits(1))
                    {
                        continue;
                    }
                    check(image, 4, [kernel, stride, dilation], padding, count % 2 == 0);
                    count += 1;
                }
            }
        }
        assert!(count > 200, "{count}");
    }

    #[test]
    fn what_is_as_large_as_several_tasks_is_the_same() {
        check([17, 8, 12, 12], 20, [[3, 3], [1, 1], [1, 1]], PaddingConfig2d::Explicit(1, 1, 1, 1), true);
        check([9, 70, 4, 4], 64, [[3, 3], [2, 2], [1, 1]], PaddingConfig2d::Explicit(1, 1, 1, 1), false);
        check([3, 24, 40, 40], 16, [[1, 1], [2, 2], [1, 1]], PaddingConfig2d::Valid, false);
        // Many filters beside few positions, in several rounds.
        check([8, 128, 7, 7], 400, [[3, 3], [1, 1], [1, 1]], PaddingConfig2d::Same, false);
        // As many positions as pixels: by padding at either end, with dilation, more of it than there are pixels.
        for (image, kernel, dilation, [top, left, bottom, right]) in [
            ([2, 3, 7, 6], [3, 3], [2, 2], [2, 2, 2, 2]),
            ([2, 3, 7, 6], [3, 3], [1, 1], [0, 2, 2, 0]),
            ([2, 3, 7, 6], [4, 2], [1, 1], [3, 0, 0, 1]),
            ([1, 2, 2, 1], [3, 3], [2, 2], [2, 2, 2, 2]),
            ([2, 1, 1, 3], [5, 5], [1, 1], [2, 2, 2, 2]),
        ] {
            let padding = PaddingConfig2d::Explicit(top, left, bottom, right);
            check(image, 4, [kernel, [1, 1], dilation], padding, true);
        }
        // As many positions as pixels, and yet others.
        check([1, 2, 3, 3], 2, [[1, 1], [2, 2], [1, 1]], PaddingConfig2d::Explicit(0, 0, 2, 2), false);
        check([2, 140, 24, 24], 140, [[3, 3], [1, 1], [1, 1]], PaddingConfig2d::Same, true);
    }
}
