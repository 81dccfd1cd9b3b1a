//! Sums along rows, and tasks of some rows.

use core::mem::MaybeUninit;

use multiversion::multiversion;
use rayon::prelude::*;

use super::real::Real;
use super::unwritten::{Unwritten, written};

/// Lanes along which a row is summed.
pub(crate) const LANES: usize = 16;

/// Σ f(a, b) along two rows of one length.
#[inline(always)]
pub(crate) fn sum_of<T: Real>(a: &[T], b: &[T], f: impl Fn(T, T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (a_wide, b_wide) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_wide.remainder(), b_wide.remainder());
    for (a, b) in a_wide.zip(b_wide) {
        for lane in 0..LANES {
            lanes[lane] += f(a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[lane] += f(*a, *b);
    }
    fold(lanes)
}

/// Replaces every `x` of a row by `f(x)` and returns Σ f(x).
#[inline(always)]
pub(crate) fn map_sum<T: Real>(row: &mut [T], f: impl Fn(T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let mut wide = row.chunks_exact_mut(LANES);
    for chunk in &mut wide {
        for lane in 0..LANES {
            chunk[lane] = f(chunk[lane]);
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, x) in wide.into_remainder().iter_mut().enumerate() {
        *x = f(*x);
        lanes[lane] += *x;
    }
    fold(lanes)
}

#[inline(always)]
fn fold<T: Real>(lanes: [T; LANES]) -> T {
    lanes.into_iter().fold(T::ZERO, T::add)
}

/// The largest element of a row that is a number; -∞ when there is none.
#[inline(always)]
pub(crate) fn max_of<T: Real>(row: &[T]) -> T {
    let greater = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [T::NEG_INFINITY; LANES];
    let wide = row.chunks_exact(LANES);
    let rest = wide.remainder();
    for chunk in wide {
        for lane in 0..LANES {
            lanes[lane] = greater(lanes[lane], chunk[lane]);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(T::NEG_INFINITY, greater)
}

/// Rows of `length` elements that one task handles: enough work to pay for the task.
pub(crate) fn rows_a_task(length: usize) -> usize {
    const TASK: usize = 1 << 14;
    (TASK / length.max(1)).max(1)
}

// What forks is compiled for each type of elements and results, not for each function: the functions are called by reference.

/// Calls `f(block number, block)` for every block of `size` elements, on the threads of the current pool.
pub(crate) fn for_blocks<T: Send>(data: &mut [T], size: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    fn fork<T: Send>(data: &mut [T], size: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
        data.par_chunks_mut(size).enumerate().for_each(|(index, block)| f(index, block));
    }
    if data.len() > size {
        fork(data, size, &f);
    } else if !data.is_empty() {
        f(0, data);
    }
}

/// [`for_blocks`] over two arrays that are cut into the same number of blocks.
pub(crate) fn for_blocks2<T: Send, U: Send>(
    (a, a_size): (&mut [T], usize),
    (b, b_size): (&mut [U], usize),
    f: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    if a.len() <= a_size && b.len() <= b_size {
        if !a.is_empty() {
            f(0, a, b);
        }
        return;
    }
    let blocks = a.chunks_mut(a_size).zip(b.chunks_mut(b_size)).enumerate().collect();
    each(true, blocks, |(index, (a, b))| f(index, a, b));
}

/// A new array of `count` elements, of which `f(block number, block)` is given each block of `size` as zeros.
pub(crate) fn new_blocks<T: Real>(count: usize, size: usize, f: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
    let mut new = Unwritten::new(count);
    for_blocks(new.memory(), size, |index, block| f(index, zeroed(block)));
    // SAFETY: the blocks are all of it, and were filled.
    unsafe { new.written() }
}

/// [`new_blocks`] beside an array that is cut into the same number of blocks.
pub(crate) fn new_blocks2<T: Real, U: Send>(
    (count, size): (usize, usize),
    (b, b_size): (&mut [U], usize),
    f: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) -> Vec<T> {
    assert_eq!(count.div_ceil(size), b.len().div_ceil(b_size), "as many blocks of one as of the other");
    let mut new = Unwritten::new(count);
    for_blocks2((new.memory(), size), (b, b_size), |index, block, b| f(index, zeroed(block), b));
    // SAFETY: the blocks are all of it, as there are as many of both, and were filled.
    unsafe { new.written() }
}

/// What `f` gives for each number below `count`, on the threads of the current pool: one is not worth waking a thread.
pub(crate) fn map_blocks<R: Send>(count: usize, f: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
    fn fork<R: Send>(count: usize, f: &(dyn Fn(usize) -> R + Sync)) -> Vec<R> {
        (0..count).into_par_iter().map(f).collect()
    }
    if count > 1 { fork(count, &f) } else { (0..count).map(f).collect() }
}

/// What `f` gives for each of `count` rows of `length` elements: several rows make a task.
pub(crate) fn map_rows<R: Send>(count: usize, length: usize, f: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
    let height = rows_a_task(length);
    let of_task = |task: usize| (task * height..((task + 1) * height).min(count)).map(&f).collect::<Vec<_>>();
    map_blocks(count.div_ceil(height), of_task).into_iter().flatten().collect()
}

/// Calls `f` for each task, on the threads of the current pool where that is worth waking them.
pub(crate) fn each<A: Send>(is_worth_it: bool, tasks: Vec<A>, f: impl Fn(A) + Sync + Send) {
    fn fork<A: Send>(tasks: Vec<A>, f: &(dyn Fn(A) + Sync)) {
        tasks.into_par_iter().for_each(f);
    }
    match is_worth_it && tasks.len() > 1 {
        true => fork(tasks, &f),
        false => tasks.into_iter().for_each(f),
    }
}

/// Both results, on two threads where each is worth one.
pub(crate) fn both<A: Send, B: Send>(
    is_worth_it: bool,
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    if is_worth_it { rayon::join(first, second) } else { (first(), second()) }
}

/// Σ a b, whatever the number of threads: Flex's own sum follows the stealing of rayon from 4 Mi elements on.
pub(crate) fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    const BLOCK: usize = 1 << 14;
    let of_block = |block: usize| {
        let own = block * BLOCK..((block + 1) * BLOCK).min(a.len());
        dot_of_rows(&a[own.clone()], &b[own])
    };
    map_blocks(a.len().div_ceil(BLOCK), of_block).into_iter().fold(T::ZERO, T::add)
}

/// Σ a b of two rows.
#[multiversion(targets = "simd")]
fn dot_of_rows<T: Real>(a: &[T], b: &[T]) -> T {
    sum_of(a, b, |a, b| a * b)
}

/// The sum of arrays of `length` elements that lie behind each other, in their order.
pub(crate) fn sum_blocks<T: Real>(partials: &[T], length: usize) -> Vec<T> {
    const TASK: usize = 1 << 16;
    let count = partials.len() / length.max(1);
    let own = (TASK / count.max(1)).clamp(1 << 10, 1 << 14);
    new_blocks(length, own, |block, sums| {
        for partial in partials.chunks_exact(length) {
            sums.iter_mut().zip(&partial[block * own..]).for_each(|(sum, x)| *sum += *x);
        }
    })
}

/// The sums of so many rows of `length` elements that follow each other.
pub(crate) fn sum_neighbours<T: Real>(values: Vec<T>, count: usize, length: usize) -> Vec<T> {
    if count == 1 || values.is_empty() {
        return values;
    }
    let (of_sum, height) = (count * length, rows_a_task(count * length));
    new_blocks(values.len() / count, height * length, |block, sums| {
        let values = &values[block * height * of_sum..][..sums.len() * count];
        for (sum, rows) in sums.chunks_exact_mut(length).zip(values.chunks_exact(of_sum)) {
            for row in rows.chunks_exact(length) {
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += *x);
            }
        }
    })
}

/// The sums of the columns of rows of `length` elements, whatever the number of threads.
pub(crate) fn column_sums<T: Real>(values: &[T], length: usize) -> Vec<T> {
    if length == 0 {
        return Vec::new();
    }
    let rows = rows_a_task(length);
    let mut partials = vec![T::ZERO; values.len().div_ceil(rows * length) * length];
    for_blocks(&mut partials, length, |block, sums| {
        let rows = values.chunks(rows * length).nth(block).into_iter().flat_map(|rows| rows.chunks_exact(length));
        for row in rows {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += *x);
        }
    });
    sum_blocks(&partials, length)
}

/// Memory filled with zeros.
pub(crate) fn zeroed<T: Real>(memory: &mut [MaybeUninit<T>]) -> &mut [T] {
    memory.fill(MaybeUninit::new(T::ZERO));
    // SAFETY: all of it was written.
    unsafe { written(memory) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_mapped_once_in_order_whatever_is_a_task() {
        let height = rows_a_task(100);
        for (count, length) in [(0, 100), (1, 100), (height - 1, 100), (height + 1, 100), (3 * height + 1, 100), (5, 0)]
        {
            assert_eq!(map_rows(count, length, |row| row), (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn rows_are_reduced_whatever_their_length() {
        for length in [0, 1, 15, 16, 17, 100] {
            let mut row: Vec<f64> = (0..length).map(|i| (i as f64 * 0.7).sin()).collect();
            let (sum, max) = (row.iter().sum::<f64>(), row.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            assert!((sum_of(&row, &row, |a, _| a) - sum).abs() < 1e-12);
            assert_eq!(max_of(&row), max);
            assert!((map_sum(&mut row, |x| 2.0 * x) - 2.0 * sum).abs() < 1e-12);
        }
        assert_eq!(max_of(&[f32::NAN, 1.0, f32::NAN]), 1.0);
    }

    #[test]
    fn a_dot_product_has_the_same_bits_on_any_number_of_threads() {
        let [a, b] =
            [0.7, 1.3].map(|step| (0..5 << 20).map(|i| (f64::from(i) * step).sin() as f32).collect::<Vec<_>>());
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| dot(&a, &b))
        };
        let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((f64::from(on(1)) - exact).abs() < 1e-2, "{} is not {exact}", on(1));
        for threads in [2, 3, 5] {
            assert_eq!(on(threads).to_bits(), on(1).to_bits());
        }
        assert_eq!(dot::<f64>(&[], &[]), 0.0);
    }

    #[test]
    fn neighbours_are_summed_whatever_is_a_task() {
        for (sums, count, length) in [(7, 1, 3), (5, 3, 2), (900, 4, 33), (0, 2, 3)] {
            let values: Vec<f64> = (0..sums * count * length).map(|i| i as f64).collect();
            let of = |sum: usize, column: usize| {
                (0..count).map(|row| ((sum * count + row) * length + column) as f64).sum::<f64>()
            };
            let exact: Vec<f64> = (0..sums * length).map(|i| of(i / length, i % length)).collect();
            assert_eq!(sum_neighbours(values, count, length), exact);
        }
    }

    #[test]
    fn arrays_are_summed_whatever_is_a_task() {
        for (count, length) in [(0, 3), (3, 0), (1, 7), (2, 40_000), (100, 2500)] {
            let values: Vec<f64> = (0..count * length).map(|i| i as f64).collect();
            let of = |column: usize| (0..count).map(|row| (row * length + column) as f64).sum::<f64>();
            assert_eq!(sum_blocks(&values, length), (0..length).map(of).collect::<Vec<_>>());
        }
    }

    #[test]
    fn columns_are_summed_in_order() {
        let x: Vec<f64> = (0..700 * 33).map(|i| (f64::from(i) * 0.3).sin()).collect();
        let exact: Vec<f64> = (0..33).map(|c| (0..700).map(|r| x[r * 33 + c]).sum()).collect();
        let far = epl_testing::largest(column_sums(&x, 33).iter().zip(&exact).map(|(a, b)| (a - b).abs()));
        assert!(far < 1e-12, "{far:e}");
        assert_eq!(column_sums::<f64>(&[], 3), vec![0.0; 3]);
    }
}
