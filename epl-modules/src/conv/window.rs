//! What a kernel sees of an image, as the columns of a matrix.

use core::mem::MaybeUninit;
use core::ops::Range;

use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;

use crate::host::Real;

/// How a kernel moves over images of one size.
#[derive(Clone, Debug)]
pub(super) struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    /// Padding at the top and at the left.
    before: [usize; 2],
    image: [usize; 2],
    output: [usize; 2],
}

impl Window {
    /// Of a layer of one group; none where its kernel is larger than the padded image.
    pub(super) fn new(layer: &Conv2d, image: [usize; 2]) -> Option<Self> {
        let padding = match &layer.padding {
            PaddingConfig2d::Valid => [(0, 0); 2],
            PaddingConfig2d::Explicit(top, left, bottom, right) => [(*top, *bottom), (*left, *right)],
            PaddingConfig2d::Same => core::array::from_fn(|dim| {
                // As Burn does: what is odd goes to the end.
                let missing = same_padding(image[dim], layer.kernel_size[dim], layer.stride[dim]);
                (missing / 2, missing - missing / 2)
            }),
        };
        let mut output = [0; 2];
        for dim in [0, 1] {
            let reach = layer.dilation[dim] * (layer.kernel_size[dim] - 1) + 1;
            let padded = image[dim] + padding[dim].0 + padding[dim].1;
            output[dim] = padded.checked_sub(reach)? / layer.stride[dim] + 1;
        }
        Some(Self {
            kernel: layer.kernel_size,
            stride: layer.stride,
            dilation: layer.dilation,
            before: padding.map(|(before, _)| before),
            image,
            output,
        })
    }

    /// The sizes of what comes out.
    pub(super) fn output(&self) -> [usize; 2] {
        self.output
    }

    /// Places at which the kernel is put.
    pub(super) fn positions(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements of a kernel, in one channel.
    pub(super) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Pixels of an image, in one channel.
    pub(super) fn pixels(&self) -> usize {
        self.image.iter().product()
    }

    /// Whether the columns are the image itself.
    pub(super) fn is_pointwise(&self) -> bool {
        // What moves by more than one pixel may have as many positions, by padding at the end.
        let stays = |dim: usize| self.stride[dim] == 1 || self.image[dim] == 1;
        self.kernel == [1, 1] && self.output == self.image && self.before == [0, 0] && stays(0) && stays(1)
    }

    /// What one tap sees at all positions; zero outside the image.
    pub(super) fn gather<T: Real>(&self, tap: usize, channel: &[T], seen: &mut [MaybeUninit<T>]) {
        let zero = MaybeUninit::new(T::ZERO);
        let (down, along) = (tap / self.kernel[1], tap % self.kernel[1]);
        let columns = self.inside(1, along);
        let Some(first) = self.source(1, columns.start, along) else { return seen.fill(zero) };
        if self.stride == [1, 1] && self.output == self.image {
            return self.gather_shifted([down, along], columns, channel, seen);
        }
        for (position, seen) in seen.chunks_exact_mut(self.output[1]).enumerate() {
            let Some(row) = self.source(0, position, down) else {
                seen.fill(zero);
                continue;
            };
            let row = &channel[row * self.image[1]..][first..self.image[1]];
            seen[..columns.start].fill(zero);
            seen[columns.end..].fill(zero);
            let seen = &mut seen[columns.clone()];
            match self.stride[1] {
                1 => _ = seen.write_copy_of_slice(&row[..seen.len()]),
                stride => {
                    assert!((seen.len().max(1) - 1) * stride < row.len(), "a pixel for each position");
                    seen.iter_mut().zip(row.iter().step_by(stride)).for_each(|(seen, x)| _ = seen.write(*x));
                }
            }
        }
    }

    /// Where there is a position at each pixel a tap sees the image moved as a whole, but for what comes from another row: that lies
    /// outside the columns.
    fn gather_shifted<T: Real>(
        &self,
        [down, along]: [usize; 2],
        columns: Range<usize>,
        channel: &[T],
        seen: &mut [MaybeUninit<T>],
    ) {
        let zero = MaybeUninit::new(T::ZERO);
        let width = self.image[1];
        let ahead = down * self.dilation[0] * width + along * self.dilation[1];
        let behind = self.before[0] * width + self.before[1];
        let count = channel.len().saturating_sub(ahead.abs_diff(behind));
        let (from, to) = if ahead >= behind { (channel.len() - count, 0) } else { (0, channel.len() - count) };
        seen[..to].fill(zero);
        seen[to..to + count].write_copy_of_slice(&channel[from..from + count]);
        seen[to + count..].fill(zero);
        for row in seen.chunks_exact_mut(width) {
            row[..columns.start].fill(zero);
            row[columns.end..].fill(zero);
        }
    }

    /// Adds what one tap saw at all positions to where it was seen.
    pub(super) fn scatter<T: Real>(&self, tap: usize, seen: &[T], channel: &mut [T]) {
        let (down, along) = (tap / self.kernel[1], tap % self.kernel[1]);
        let columns = self.inside(1, along);
        let Some(first) = self.source(1, columns.start, along) else { return };
        for (position, seen) in seen.chunks_exact(self.output[1]).enumerate() {
            let Some(row) = self.source(0, position, down) else { continue };
            let row = &mut channel[row * self.image[1]..][first..self.image[1]];
            let seen = &seen[columns.clone()];
            match self.stride[1] {
                1 => row.iter_mut().zip(seen).for_each(|(x, seen)| *x += *seen),
                stride => row.iter_mut().step_by(stride).zip(seen).for_each(|(x, seen)| *x += *seen),
            }
        }
    }

    /// The place in the image that a tap sees at a position along a dim; none outside it.
    fn source(&self, dim: usize, position: usize, tap: usize) -> Option<usize> {
        let at = (position * self.stride[dim] + tap * self.dilation[dim]).checked_sub(self.before[dim])?;
        (at < self.image[dim]).then_some(at)
    }

    /// The positions along a dim at which a tap sees the image.
    fn inside(&self, dim: usize, tap: usize) -> Range<usize> {
        let (stride, shift, before) = (self.stride[dim], tap * self.dilation[dim], self.before[dim]);
        let start = before.saturating_sub(shift).div_ceil(stride).min(self.output[dim]);
        let end = (self.image[dim] + before).saturating_sub(shift).div_ceil(stride).min(self.output[dim]);
        start..end.max(start)
    }
}

/// What padding `Same` adds to a dim of so many pixels, on both sides together.
pub(super) fn same_padding(size: usize, kernel: usize, stride: usize) -> usize {
    let needed = if size == 0 { 0 } else { (size.div_ceil(stride) - 1) * stride + kernel };
    needed.saturating_sub(size)
}
