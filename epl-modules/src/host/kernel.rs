//! What products are made of, and how one is made on one thread: of f32 and f64 by the `gemm` crate, as Flex's are; of 16 bits by
//! `gemmkit`, which adds in f32, rounds once, and has the processor multiply bf16 itself where it can (AVX-512 BF16).

use core::cell::RefCell;

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

macro_rules! by_gemmkit {
    ($half:ty) => {
        impl ProductElement for $half {
            elements!();

            unsafe fn multiply(problem: &Problem<'_, Self>) {
                let Problem { sizes: [rows, depth, columns], a, a_strides, b, b_strides, out, out_stride, .. } =
                    *problem;
                let row = problem.row.map_or(core::ptr::null(), <[Self]>::as_ptr);
                let multiply = |workspace: &mut gemmkit::Workspace| {
                    // The fused entry, also without a row: so its kernels alone are compiled.
                    // SAFETY: the caller's promise.
                    unsafe {
                        gemmkit::gemm_fused_unchecked_with(
                            workspace,
                            rows,
                            depth,
                            columns,
                            Self::ONE,
                            a,
                            a_strides[0],
                            a_strides[1],
                            b,
                            b_strides[0],
                            b_strides[1],
                            if problem.adds { Self::ONE } else { Self::ZERO },
                            out,
                            out_stride,
                            1,
                            row,
                            gemmkit::BiasDim::PerCol,
                            problem.row.is_some(),
                            None,
                            gemmkit::Parallelism::Serial,
                        );
                    }
                };
                // It packs the whole depth of one side.
                with_workspace(depth.saturating_mul(rows.max(columns)), multiply);
            }
        }
    };
}
by_gemmkit!(f16);
by_gemmkit!(bf16);

/// Calls `f` with the memory in which so many elements are packed. A thread keeps it for its next call, if they are not too many.
fn with_workspace(elements: usize, f: impl FnOnce(&mut gemmkit::Workspace)) {
    thread_local! {
        static KEPT: RefCell<gemmkit::Workspace> = const { RefCell::new(gemmkit::Workspace::new()) };
    }
    const MOST: usize = 1 << 21;
    match elements <= MOST {
        true => KEPT.with_borrow_mut(f),
        false => f(&mut gemmkit::Workspace::new()),
    }
}
