//! Products of matrices in host memory.
//!
//! Flex zeroes each output and copies it once more, wakes the other threads at each block of the depth, and lets `gemm` gather a
//! transposed right side element by element. Here an output is written once; a product is cut into one part a thread, each of
//! which is [`kernel`](super::kernel)'s on that thread alone; and for `gemm` a transposed right side is first transposed back,
//! tile by tile.
//!
//! `gemm` cuts the depth by its length alone where a product is larger than 64 by 64, and parts are; `gemmkit`, of 16 bits, does not
//! cut it, and adds in another order only where a product has few rows and few columns: a result has the same bits on any number of
//! threads.

use core::mem::MaybeUninit;

use burn::tensor::{bf16, f16};
use multiversion::multiversion;

use super::kernel::{LEAST, Problem, ProductElement};
use super::matrix::{Matrix, Output};
use super::real::Real;
use super::rows::{each, sum_of};
use super::transpose::transpose_into;
use super::unwritten::{Unwritten, written};

/// A product of two matrices, to be written somewhere.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a, T> {
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    /// What is added to each row.
    row: Option<&'a [T]>,
    /// Whether the product is added to what is there.
    adds: bool,
}

/// `a b`.
///
/// # Panics
///
/// When the sizes do not agree.
pub(crate) fn product<'a, T: Multiply>(a: Matrix<'a, T>, b: Matrix<'a, T>) -> Product<'a, T> {
    assert_eq!(a.sizes[1], b.sizes[0], "sizes that can be multiplied");
    Product { a, b, row: None, adds: false }
}

impl<'a, T: Multiply> Product<'a, T> {
    /// With this row added to each row.
    pub(crate) fn plus(self, row: Option<&'a [T]>) -> Self {
        assert!(row.is_none_or(|row| row.len() == self.b.sizes[1]), "an element of the row for each column");
        Self { row, ..self }
    }

    /// Rows and columns of the result.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [self.a.sizes[0], self.b.sizes[1]]
    }

    /// Its part before `at` of dim 0 or 1 of the result, and the rest.
    fn split<'o>(self, output: Output<'o, T>, dim: usize, at: usize) -> [(Output<'o, T>, Self); 2] {
        let [before, rest] = output.split(dim, at);
        let of = |from: usize, count: usize| match dim {
            0 => Self { a: self.a.narrow(0, from, count), ..self },
            _ => Self { b: self.b.narrow(1, from, count), row: self.row.map(|row| &row[from..from + count]), ..self },
        };
        let size = self.sizes()[dim];
        [(before, of(0, at)), (rest, of(at, size - at))]
    }

    /// What of it is about so much work, and the rest, if both are worth it.
    fn cut<'o>(self, output: Output<'o, T>, work: usize) -> Cut<'o, 'a, T> {
        let [rows, columns] = self.sizes();
        // A right side that is transposed first is better cut than transposed in each part.
        let by_columns = columns > rows || self.has_columns_right() && columns >= 2 * least_part(rows);
        let (dim, size, others) = if by_columns { (1, columns, rows) } else { (0, rows, columns) };
        let least = least_part(others);
        if self.work() < work.saturating_add(WORTH_A_THREAD) || size < 2 * least {
            return ((output, self), None);
        }
        let [first, rest] = self.split(output, dim, (work / (self.work() / size)).clamp(least, size - least));
        (first, Some(rest))
    }

    /// Whether the right side's columns lie behind each other, and not its rows.
    fn has_columns_right(&self) -> bool {
        self.b.strides[0] == 1 && self.b.strides[1] != 1 && self.b.sizes[1] > 1
    }

    /// What it takes, in multiplications: of few rows or columns, to read the matrices takes longer than to multiply them.
    pub(crate) fn work(&self) -> usize {
        /// The multiplications in the time in which an element is read from memory.
        const READ: usize = 16;
        let [rows, depth, columns] = self.extents();
        (rows * depth * columns).max(READ * depth * (rows + columns))
    }

    /// Its floating-point operations.
    pub(crate) fn flops(&self) -> f64 {
        2.0 * self.extents().map(|size| size as f64).into_iter().product::<f64>()
    }

    /// Rows, depth and columns.
    fn extents(&self) -> [usize; 3] {
        [self.a.sizes[0], self.b.sizes[0], self.b.sizes[1]]
    }

    /// Whether it keeps a thread busy that is woken for it.
    pub(crate) fn is_worth_a_thread(&self) -> bool {
        self.work() >= WORTH_A_THREAD
    }

    /// The result, row by row, made on the threads of the current pool.
    pub(crate) fn values(self) -> Vec<T> {
        self.values_in(rayon::current_num_threads())
    }

    /// The same, in so many parts.
    pub(crate) fn values_in(self, parts: usize) -> Vec<T> {
        let mut values = Unwritten::new(self.sizes().into_iter().product());
        self.write(values.memory(), parts);
        // SAFETY: all of them were written.
        unsafe { values.written() }
    }

    /// Writes all of `out`, in so many parts, by the threads of the current pool.
    pub(crate) fn write(self, out: &mut [MaybeUninit<T>], threads: usize) -> &mut [T] {
        self.write_to(Output::whole(out, self.sizes()), threads);
        // SAFETY: the output was all of it.
        unsafe { written(out) }
    }

    /// [`write`](Self::write) where a matrix lies.
    pub(crate) fn write_to(self, output: Output<'_, T>, threads: usize) {
        // SAFETY: it is only written.
        unsafe { Self { adds: false, ..self }.run(output, threads) };
    }

    /// Adds the result to what lies there.
    ///
    /// # Safety
    ///
    /// All of it has been written.
    pub(crate) unsafe fn add_to_written(self, output: Output<'_, T>, threads: usize) {
        // SAFETY: the caller's promise.
        unsafe { Self { adds: true, ..self }.run(output, threads) };
    }

    /// Adds the result to `out`, in so many parts, by the threads of the current pool.
    pub(crate) fn add_to(self, out: &mut [T], threads: usize) {
        // SAFETY: a slice has been written.
        unsafe { self.add_to_written(Output::over(out, self.sizes()), threads) };
    }

    /// Writes a matrix.
    ///
    /// # Safety
    ///
    /// It has been written if it is added to.
    unsafe fn run(self, output: Output<'_, T>, threads: usize) {
        assert_eq!(output.sizes, self.sizes(), "a matrix of the result's sizes");
        // SAFETY: the caller's promise.
        unsafe { T::run(self, output, threads) };
    }
}

/// Some of a product, and perhaps more of it.
type Cut<'o, 'a, T> = ((Output<'o, T>, Product<'a, T>), Option<(Output<'o, T>, Product<'a, T>)>);

/// From so many rows on it costs less to transpose a matrix than to gather it in each block. A part has more, or all: it is made as
/// the whole is.
const FEW_ROWS: usize = 32;
const _: () = assert!(LEAST >= FEW_ROWS);

/// How a product is made, in so many parts.
pub(crate) trait Multiply: ProductElement {
    /// Writes a matrix of the result's sizes.
    ///
    /// # Safety
    ///
    /// It has been written if it is added to.
    unsafe fn run(product: Product<'_, Self>, output: Output<'_, Self>, threads: usize) {
        multiply_parts(output, product, threads);
    }
}

impl Multiply for f16 {}
impl Multiply for bf16 {}

impl<T: Real> Multiply for T {
    unsafe fn run(product: Product<'_, T>, output: Output<'_, T>, threads: usize) {
        let (a, [rows, _]) = (product.a, output.sizes);
        if product.has_columns_right() && rows >= FEW_ROWS {
            run_transposed(product, output, threads);
        } else if product.has_columns_right() && a.has_rows() && a.sizes[1] > 0 {
            in_parts(output, product, threads, &dots);
        } else {
            multiply_parts(output, product, threads);
        }
    }
}

/// With a right side that is first transposed, some columns after the others: they are still in the cache when they are multiplied,
/// and a thread keeps their memory.
fn run_transposed<T: Real>(mut product: Product<'_, T>, mut output: Output<'_, T>, threads: usize) {
    let [_, depth, columns] = product.extents();
    let blocks = columns.div_ceil(columns_at_once(product.extents(), threads));
    for block in 0..blocks {
        let count = columns * (block + 1) / blocks - columns * block / blocks;
        let [(own, of_own), (rest, of_rest)] = product.split(output, 1, count);
        (output, product) = (rest, of_rest);
        T::with_scratch(depth * count, |scratch| {
            let b = Matrix::new(transpose_into(of_own.b, scratch, threads), [depth, count]);
            multiply_parts(own, Product { b, ..of_own }, threads);
        });
    }
}

/// Of a right side that is first transposed, so many columns go at once.
///
/// They are a few megabytes; of many rows more, as each block packs the left side anew; and as many as give a part to each thread.
/// No block is smaller than a part, so it is made as the whole is.
fn columns_at_once([rows, depth, _]: [usize; 3], threads: usize) -> usize {
    const ELEMENTS: usize = 1 << 20;
    let parts = threads.div_ceil((rows / LEAST).max(1));
    (ELEMENTS / depth.max(1)).max(rows / 4).max(LEAST * parts).max(2 * LEAST)
}

/// The products of each list behind each other, made on the threads of the current pool. They are dealt out by work, one of each
/// list in turn: a thread's share has of all lists, whose products may take unlike times. A large product is cut where a share ends.
pub(crate) fn multiply_all<T: Multiply, const N: usize>(lists: [Vec<Product<'_, T>>; N]) -> [Vec<T>; N] {
    let elements = |list: &Vec<Product<T>>| list.iter().map(|product| product.sizes().iter().product::<usize>()).sum();
    let mut values = lists.each_ref().map(|list| Unwritten::new(elements(list)));
    let memory = values.each_mut().map(Unwritten::memory);
    let mut in_turn = Vec::new();
    for (list, mut memory) in lists.into_iter().zip(memory) {
        for (turn, product) in list.into_iter().enumerate() {
            let (own, rest) = memory.split_at_mut(product.sizes().iter().product());
            memory = rest;
            in_turn.push((turn, (Output::whole(own, product.sizes()), product)));
        }
    }
    in_turn.sort_by_key(|(turn, _)| *turn);
    run_all(in_turn.into_iter().map(|(_, product)| product).collect());
    // SAFETY: the products of each list have written all of its memory, one after the other.
    values.map(|values| unsafe { values.written() })
}

fn run_all<'o, 'a, T: Multiply>(products: Vec<(Output<'o, T>, Product<'a, T>)>) {
    /// Of a thread, so that one that was late, or is slow, leaves some to the others.
    const SHARES: usize = 2;
    let work = products.iter().map(|(_, product)| product.work()).sum::<usize>();
    let threads = if work >= 2 * WORTH_A_THREAD { rayon::current_num_threads() } else { 1 };
    let share = if threads > 1 { work.div_ceil(SHARES * threads).max(WORTH_A_THREAD) } else { usize::MAX };
    let (mut shares, mut own, mut room) = (Vec::new(), Vec::new(), share);
    let mut rest: Vec<_> = products.into_iter().rev().collect();
    while let Some((output, product)) = rest.pop() {
        let (first, after) = product.cut(output, room);
        room = room.saturating_sub(first.1.work());
        own.push(first);
        rest.extend(after);
        // Less is not worth another cut.
        if room < WORTH_A_THREAD / 4 {
            shares.push(core::mem::take(&mut own));
            room = share;
        }
    }
    shares.push(own);
    let run = |share: Vec<(Output<T>, Product<T>)>| {
        share.into_iter().for_each(|(output, product)| product.write_to(output, 1));
    };
    each(threads > 1, shares, run);
}

/// The multiplications below which a second thread costs more than it does.
pub(crate) const WORTH_A_THREAD: usize = 1 << 21;

/// The rows or columns that a part has at least, of so many columns or rows: up to 256 elements, too, `gemm` adds in another order.
fn least_part(others: usize) -> usize {
    (256 / others.max(1) + 1).max(LEAST)
}

fn multiply_parts<T: Multiply>(output: Output<'_, T>, product: Product<T>, parts: usize) {
    in_parts(output, product, parts, &multiply);
}

/// Makes a product part by part, each as `make` does.
fn in_parts<T: Multiply>(
    output: Output<'_, T>,
    product: Product<T>,
    parts: usize,
    make: &(dyn Fn(Output<'_, T>, Product<T>) + Sync),
) {
    let [rows, columns] = output.sizes;
    let (dim, size, others) = if rows >= columns { (0, rows, columns) } else { (1, columns, rows) };
    let least = least_part(others);
    if parts > 1 && size >= 2 * least && product.work() >= 2 * WORTH_A_THREAD {
        let (first, at) = (parts / 2, (size * (parts / 2) / parts).clamp(least, size - least));
        let [(before, of_before), (rest, of_rest)] = product.split(output, dim, at);
        let before = || in_parts(before, of_before, first, make);
        rayon::join(before, || in_parts(rest, of_rest, parts - first, make));
    } else {
        make(output, product);
    }
}

/// By the kernel of its type.
fn multiply<T: Multiply>(output: Output<'_, T>, Product { a, b, row, adds }: Product<T>) {
    let [rows, columns] = output.sizes;
    let strides = |strides: [usize; 2]| strides.map(|stride| stride as isize);
    let problem = Problem {
        sizes: [rows, a.sizes[1], columns],
        a: a.values.as_ptr(),
        a_strides: strides(a.strides),
        b: b.values.as_ptr(),
        b_strides: strides(b.strides),
        out: output.start,
        out_stride: output.stride as isize,
        adds,
        row,
    };
    // SAFETY: `Matrix::strided` has seen that all elements of both lie in their memory, and who made the output those of the
    // output, which has the result's sizes and is read only where it was written before; `plus` has counted the row.
    unsafe { T::multiply(&problem) };
}

/// Few rows by a transposed matrix, which is read once, in order.
#[multiversion(targets = "simd")]
fn dots<T: Real>(output: Output<'_, T>, Product { a, b, row, adds }: Product<T>) {
    for column in 0..b.sizes[1] {
        let (right, plus) = (b.column(column), row.map_or(T::ZERO, |row| row[column]));
        for index in 0..a.sizes[0] {
            let sum = sum_of(a.row(index), right, |a, b| a * b) + plus;
            let out = output.start.wrapping_add(index * output.stride + column);
            // SAFETY: the element is one of the output's, which is read only where it was written before.
            unsafe { out.write(if adds { out.read() + sum } else { sum }) };
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::ElementConversion;

    use super::*;

    fn values(count: usize, step: f64) -> Vec<f64> {
        (0..count).map(|i| (i as f64 * step).sin()).collect()
    }

    /// Element by element.
    fn reference(a: Matrix<f64>, b: Matrix<f64>, row: Option<&[f64]>) -> Vec<f64> {
        let ([rows, depth], columns) = (a.sizes, b.sizes[1]);
        let at = |m: Matrix<f64>, r: usize, c: usize| m.values[r * m.strides[0] + c * m.strides[1]];
        let mut out = Vec::new();
        for r in 0..rows {
            for c in 0..columns {
                let sum: f64 = (0..depth).map(|k| at(a, r, k) * at(b, k, c)).sum();
                out.push(sum + row.map_or(0.0, |row| row[c]));
            }
        }
        out
    }

    #[test]
    fn a_product_is_the_sum_of_its_products_whatever_its_sizes_and_layouts() {
        for [m, k, n] in
            [[0, 3, 2], [3, 0, 2], [2, 3, 0], [1, 1, 1], [1, 70, 300], [5, 33, 17], [40, 19, 23], [300, 40, 70]]
        {
            let (left, right, row) = (values(m * k, 0.7), values(k * n, 1.3), values(n, 2.1));
            let lefts = [Matrix::new(&left, [m, k]), Matrix::new(&left, [k, m]).transposed()];
            let rights = [Matrix::new(&right, [k, n]), Matrix::new(&right, [n, k]).transposed()];
            for (a, b) in lefts.into_iter().flat_map(|a| rights.map(|b| (a, b))) {
                for row in [None, Some(row.as_slice())] {
                    let (ours, exact) = (product(a, b).plus(row).values(), reference(a, b, row));
                    assert_eq!(ours.len(), exact.len());
                    let far = epl_testing::largest(ours.iter().zip(&exact).map(|(a, b)| (a - b).abs()));
                    assert!(far <= 1e-12, "{m} x {k} x {n}: {far:e}");
                    let mut twice = exact.clone();
                    product(a, b).plus(row).add_to(&mut twice, 2);
                    let far = epl_testing::largest(twice.iter().zip(&exact).map(|(a, b)| (a - 2.0 * b).abs()));
                    assert!(far <= 1e-12, "added, {m} x {k} x {n}: {far:e}");
                }
            }
        }
    }

    /// 16 bits, which are multiplied exactly, added in f32 and rounded once: to 2⁻ᵈ of the result, for `d` digits.
    fn sixteen_bits_are_rounded_once<T: Multiply>(digits: i32) {
        let narrow = |values: &[f64]| values.iter().map(|x| x.elem::<T>()).collect::<Vec<T>>();
        let wide = |values: &[T]| values.iter().map(|x| x.elem::<f64>()).collect::<Vec<f64>>();
        for [m, k, n] in [
            [0, 3, 2],
            [3, 0, 2],
            [2, 3, 0],
            [1, 1, 1],
            [1, 71, 300],
            [70, 9, 1],
            [5, 33, 17],
            [40, 19, 23],
            [300, 41, 70],
            [160, 2000, 130],
            [3, 17_000, 300],
        ] {
            let [left, right, row, kept] =
                [(m * k, 0.7), (k * n, 1.3), (n, 2.1), (m * n, 0.9)].map(|(count, step)| narrow(&values(count, step)));
            let [exact_left, exact_right, exact_row, exact_kept] = [&left, &right, &row, &kept].map(|x| wide(x));
            let lefts = [Matrix::new(&left, [m, k]), Matrix::new(&left, [k, m]).transposed()];
            let exact_lefts = [Matrix::new(&exact_left, [m, k]), Matrix::new(&exact_left, [k, m]).transposed()];
            let rights = [Matrix::new(&right, [k, n]), Matrix::new(&right, [n, k]).transposed()];
            let exact_rights = [Matrix::new(&exact_right, [k, n]), Matrix::new(&exact_right, [n, k]).transposed()];
            for (of_left, of_right, has_row) in [(0, 0, false), (0, 1, true), (1, 0, true), (1, 1, false)] {
                let (a, b) = (lefts[of_left], rights[of_right]);
                let exact =
                    reference(exact_lefts[of_left], exact_rights[of_right], has_row.then_some(exact_row.as_slice()));
                let product = product(a, b).plus(has_row.then_some(row.as_slice()));
                let near = |ours: &[T], exact: &[f64]| {
                    assert_eq!(ours.len(), exact.len());
                    for (ours, exact) in wide(ours).iter().zip(exact) {
                        // And as much as sums in f32 may lose.
                        let bound = exact.abs() * 0.501 * 2f64.powi(1 - digits) + 1e-6 * (k as f64).sqrt() + 1e-7;
                        assert!((ours - exact).abs() <= bound, "{m} x {k} x {n}: {ours} is not {exact}");
                    }
                };
                near(&product.values(), &exact);
                let mut sum = kept.clone();
                product.add_to(&mut sum, 2);
                near(&sum, &exact.iter().zip(&exact_kept).map(|(a, b)| a + b).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn products_of_sixteen_bits_are_rounded_once() {
        sixteen_bits_are_rounded_once::<bf16>(8);
        sixteen_bits_are_rounded_once::<f16>(11);
    }

    fn has_the_same_bits_on_any_number_of_threads<T: Multiply + PartialEq>() {
        // The last one is cut into parts that are packed one after the other, where it has 16 bits.
        for ([m, k, n], is_transposed) in [
            ([1000, 700, 300], false),
            ([129, 1500, 900], true),
            ([70, 3000, 1100], true),
            ([20, 300, 4000], true),
            ([1, 700, 9000], true),
            ([1, 700, 9000], false),
            ([3, 500, 9000], false),
            ([9000, 500, 2], false),
            ([300, 17_000, 520], false),
        ] {
            let [left, right] = [(m * k, 0.7), (k * n, 1.3)]
                .map(|(count, step)| values(count, step).iter().map(|x| x.elem::<T>()).collect::<Vec<_>>());
            let a = Matrix::new(&left, [m, k]);
            let b = if is_transposed { Matrix::new(&right, [n, k]).transposed() } else { Matrix::new(&right, [k, n]) };
            let row: Vec<T> = values(n, 2.1).iter().map(|x| x.elem()).collect();
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut sum = pool.install(|| product(a, b).plus(Some(&row)).values());
                pool.install(|| product(a, b).add_to(&mut sum, threads));
                sum
            };
            let one = on(1);
            for threads in [2, 3, 7] {
                assert!(on(threads) == one, "{m} x {k} x {n} of {:?} on {threads} threads", T::dtype());
            }
        }
    }

    /// A linear layer's input gradient, a tied head, few rows and many threads, more rows than columns, and next to nothing.
    #[test]
    fn a_right_side_is_transposed_in_blocks_that_a_thread_keeps_and_that_all_threads_have_a_part_of() {
        for [rows, depth, columns] in
            [[512, 3072, 768], [1024, 768, 32_128], [32, 4096, 250_000], [20_000, 64, 200], [40, 1, 2]]
        {
            for threads in [1, 2, 8, 64] {
                let at_once = columns_at_once([rows, depth, columns], threads);
                let blocks = columns.div_ceil(at_once);
                if threads <= 2 {
                    assert!(at_once.min(columns) * depth <= 1 << 21, "{rows} x {depth} x {columns}: {at_once}");
                }
                assert!(blocks == 1 || columns / blocks >= LEAST, "{rows} x {depth} x {columns}: {at_once}");
                let parts = (rows / LEAST).max(1) * (at_once / LEAST);
                assert!(blocks == 1 || parts >= threads, "{rows} x {depth} x {columns}: {at_once}");
            }
        }
        assert_eq!(768_usize.div_ceil(columns_at_once([512, 3072, 768], 2)), 3);
    }

    #[test]
    fn a_product_has_the_same_bits_on_any_number_of_threads() {
        has_the_same_bits_on_any_number_of_threads::<f32>();
        has_the_same_bits_on_any_number_of_threads::<bf16>();
        has_the_same_bits_on_any_number_of_threads::<f16>();
    }

    fn are_dealt_out_whatever_their_sizes_and_the_threads<T: Multiply + PartialEq>() {
        // None, one that is cut into several, few rows, few columns, one that is not worth it.
        let sizes =
            [[0, 300, 400], [1500, 300, 400], [20, 300, 4000], [4000, 300, 20], [300, 40, 700], [3, 5, 7], [9, 0, 4]];
        let narrow = |values: Vec<f64>| values.iter().map(|x| x.elem::<T>()).collect::<Vec<T>>();
        let kept: Vec<_> =
            sizes.iter().map(|[m, k, n]| (narrow(values(m * k, 0.7)), narrow(values(k * n, 1.3)))).collect();
        let matrix = |is_transposed: bool, values, [rows, columns]: [usize; 2]| match is_transposed {
            true => Matrix::new(values, [columns, rows]).transposed(),
            false => Matrix::new(values, [rows, columns]),
        };
        let of = |[of_left, of_right]: [bool; 2]| {
            let products = sizes.iter().zip(&kept).map(|([m, k, n], (left, right))| {
                product(matrix(of_left, left, [*m, *k]), matrix(of_right, right, [*k, *n]))
            });
            products.collect::<Vec<_>>()
        };
        let lists = || [of([false, false]), of([false, true]), Vec::new(), of([true, false])[..3].to_vec()];
        let one = lists().map(|list| list.into_iter().flat_map(Product::values).collect::<Vec<T>>());
        for threads in [1, 2, 3, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert!(pool.install(|| multiply_all(lists())) == one, "{:?} on {threads} threads", T::dtype());
        }
    }

    #[test]
    fn products_are_dealt_out_whatever_their_sizes_and_the_threads() {
        are_dealt_out_whatever_their_sizes_and_the_threads::<f64>();
        are_dealt_out_whatever_their_sizes_and_the_threads::<f32>();
        are_dealt_out_whatever_their_sizes_and_the_threads::<bf16>();
    }
}
