//! What products are made of, and how one is made on one thread: of f32 and f64 by the `gemm` crate, as Flex's are; of 16 bits by
//! `gemmkit`, which adds in f32, rounds once, and has the processor multiply bf16 itself where it can (AVX-512 BF16).

use core::ops::Range;

use burn::backend::{Flex, tensor::FloatTensor};
use burn::tensor::{DType, Element, Tensor, bf16, f16};
use epl_core::offload::is_host;

/// The element type in which a product is made in host memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ProductType {
    F16,
    Bf16,
    F32,
    F64,
}

/// The type in which products of a tensor are made here; `None` when they must be left to its backend.
pub(crate) fn product_type<const D: usize>(x: &Tensor<D>) -> Option<ProductType> {
    if !is_host(&x.device()) {
        return None;
    }
    match x.dtype() {
        DType::F16 => Some(ProductType::F16),
        DType::BF16 => Some(ProductType::Bf16),
        DType::F32 => Some(ProductType::F32),
        DType::F64 => Some(ProductType::F64),
        _ => None,
    }
}

/// Where a product's matrices lie. Element `[row, column]` of `a` and `b` is at `row * strides[0] + column * strides[1]`.
pub(crate) struct Problem<'a, T> {
    /// Rows, depth and columns.
    pub(super) sizes: [usize; 3],
    pub(super) a: *const T,
    pub(super) a_strides: [isize; 2],
    pub(super) b: *const T,
    pub(super) b_strides: [isize; 2],
    /// The result; its rows are contiguous.
    pub(super) out: *mut T,
    pub(super) out_stride: isize,
    /// Whether the product is added to what is there.
    pub(super) adds: bool,
    /// What is added to each row.
    pub(super) row: Option<&'a [T]>,
}

/// A float of which products are made in host memory.
pub(crate) trait ProductElement: Element {
    /// The elements, if they lie in row-major order.
    fn slice(tensor: &FloatTensor<Flex>) -> Option<&[Self]>;
    fn storage(tensor: &FloatTensor<Flex>) -> &[Self];

    /// Makes a product.
    ///
    /// # Safety
    ///
    /// All elements of the three matrices lie in memory that is theirs; the result's is nobody else's, and has been written if
    /// the product is added to it. The row has an element for each column.
    unsafe fn multiply(problem: &Problem<'_, Self>);
}

macro_rules! elements {
    () => {
        fn slice(tensor: &FloatTensor<Flex>) -> Option<&[Self]> {
            tensor.as_slice()
        }
        fn storage(tensor: &FloatTensor<Flex>) -> &[Self] {
            tensor.storage()
        }
    };
}

macro_rules! by_gemm {
    ($float:ty) => {
        impl ProductElement for $float {
            elements!();

            unsafe fn multiply(problem: &Problem<'_, Self>) {
                let Problem { sizes: [rows, depth, columns], a_strides, b_strides, out, out_stride, row, .. } =
                    *problem;
                // SAFETY: the caller's promise.
                unsafe {
                    gemm::gemm(
                        rows,
                        columns,
                        depth,
                        out,
                        1,
                        out_stride,
                        problem.adds,
                        problem.a,
                        a_strides[1],
                        a_strides[0],
                        problem.b,
                        b_strides[1],
                        b_strides[0],
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        gemm::Parallelism::None,
                    );
                }
                let Some(row) = row else { return };
                for index in 0..rows {
                    let start = out.wrapping_offset(index as isize * out_stride);
                    // SAFETY: the product has written this row of the result, which is nobody else's.
                    let out = unsafe { core::slice::from_raw_parts_mut(start, columns) };
                    out.iter_mut().zip(row).for_each(|(out, x)| *out += *x);
                }
            }
        }
    };
}
by_gemm!(f32);
by_gemm!(f64);

/// Elements of the rows that are packed at once, which a thread keeps the memory of. `gemmkit` packs them with their whole depth,
/// where it packs a few columns at a time.
const PACKED: usize = 1 << 22;
/// Parts of a product have so many rows, or columns, at least: up to 64 by 64 `gemm` adds in another order, and `gemmkit` up to 32
/// by 32.
pub(super) const LEAST: usize = 128;

/// The parts in which so many rows are multiplied, of so much depth.
fn parts(rows: usize, depth: usize) -> impl Iterator<Item = Range<usize>> {
    let most = (PACKED / depth.max(1)).max(2 * LEAST);
    let parts = rows.div_ceil(most).max(1);
    (0..parts).map(move |part| rows * part / parts..rows * (part + 1) / parts)
}

macro_rules! by_gemmkit {
    ($half:ty) => {
        impl ProductElement for $half {
            elements!();

            unsafe fn multiply(problem: &Problem<'_, Self>) {
                let Problem { sizes: [all_rows, depth, columns], a, a_strides, b, b_strides, .. } = *problem;
                let row = problem.row.map_or(core::ptr::null(), <[Self]>::as_ptr);
                for rows in parts(all_rows, depth) {
                    let first = rows.start as isize;
                    // SAFETY: the caller's promise, of some of its rows.
                    unsafe {
                        // The fused entry, also without a row: so its kernels alone are compiled.
                        gemmkit::gemm_fused_unchecked(
                            rows.len(),
                            depth,
                            columns,
                            Self::ONE,
                            a.wrapping_offset(first * a_strides[0]),
                            a_strides[0],
                            a_strides[1],
                            b,
                            b_strides[0],
                            b_strides[1],
                            if problem.adds { Self::ONE } else { Self::ZERO },
                            problem.out.wrapping_offset(first * problem.out_stride),
                            problem.out_stride,
                            1,
                            row,
                            gemmkit::BiasDim::PerCol,
                            problem.row.is_some(),
                            None,
                            gemmkit::Parallelism::Serial,
                        );
                    }
                }
            }
        }
    };
}
by_gemmkit!(f16);
by_gemmkit!(bf16);
