//! Matrices whose columns lie behind each other, row by row.

use core::mem::MaybeUninit;

use multiversion::multiversion;

use super::matrix::Matrix;
use super::real::Real;
use super::rows::{for_blocks, rows_a_task};
use super::unwritten::{Unwritten, written};

/// The rows of a matrix whose columns are contiguous behind each other, on the threads of the current pool.
pub(crate) fn row_by_row<T: Real>(from: Matrix<T>) -> Vec<T> {
    let mut rows = Unwritten::new(from.sizes().into_iter().product());
    transpose_into(from, rows.memory(), rayon::current_num_threads());
    // SAFETY: all of them were written.
    unsafe { rows.written() }
}

/// Writes the rows of a matrix whose columns are contiguous behind each other: on one thread, or on all of the pool.
pub(crate) fn transpose_into<'o, T: Real>(
    from: Matrix<T>,
    to: &'o mut [MaybeUninit<T>],
    threads: usize,
) -> &'o mut [T] {
    let [rows, columns] = from.sizes();
    assert_eq!(to.len(), rows * columns, "all of it is written");
    assert!(from.transposed().has_rows() || rows <= 1, "the elements of a column lie behind each other");
    if !to.is_empty() {
        // Bands of whole tiles, about as much as a task should be.
        let band = if threads == 1 { rows } else { (rows_a_task(columns) / TILE).max(1) * TILE };
        for_blocks(to, band * columns, |index, to| {
            transpose_band(from.rows(index * band, to.len() / columns), to);
        });
    }
    // SAFETY: it was written, row by row.
    unsafe { written(to) }
}

/// Rows and columns of a tile: of f32 the lines of a cache, each of which is written at once.
const TILE: usize = 2 * SIDE;
/// The sides of what is transposed in registers.
const SIDE: usize = 8;

/// Where a column begins in which 8 elements are read, and where a row begins in which they are written.
struct Tiles<'a, T> {
    from: &'a [T],
    from_stride: usize,
    to: &'a mut [MaybeUninit<T>],
    to_stride: usize,
    /// 8 or 16.
    columns: usize,
}

fn transpose_band<T: Real>(from: Matrix<T>, to: &mut [MaybeUninit<T>]) {
    #[cfg(target_arch = "x86_64")]
    if avx::is_for::<T>() {
        // SAFETY: they are f32, and the processor has AVX.
        return unsafe { avx::band_of_f32(from, to) };
    }
    portable_band(from, to);
}

#[multiversion(targets = "simd")]
fn portable_band<T: Real>(from: Matrix<T>, to: &mut [MaybeUninit<T>]) {
    in_tiles(from, to, |Tiles { from, from_stride, to, to_stride, columns }| {
        for left in (0..columns).step_by(SIDE) {
            let tile: [[T; SIDE]; SIDE] = core::array::from_fn(|column| {
                let from = &from[(left + column) * from_stride..][..SIDE];
                core::array::from_fn(|row| from[row])
            });
            for row in 0..SIDE {
                let transposed: [_; SIDE] = core::array::from_fn(|column| MaybeUninit::new(tile[column][row]));
                to[row * to_stride + left..][..SIDE].copy_from_slice(&transposed);
            }
        }
    });
}

/// Calls `f` for all tiles; what does not fill one is written here.
#[inline(always)]
fn in_tiles<T: Real>(from: Matrix<T>, to: &mut [MaybeUninit<T>], f: impl Fn(Tiles<'_, T>)) {
    let ([rows, columns], (values, stride)) = (from.sizes(), from.columns_and_stride());
    let whole = [rows, columns].map(|size| size - size % SIDE);
    for band in (0..whole[0]).step_by(TILE) {
        for left in (0..whole[1]).step_by(TILE) {
            for top in (band..(band + TILE).min(whole[0])).step_by(SIDE) {
                f(Tiles {
                    from: &values[left * stride + top..],
                    from_stride: stride,
                    to: &mut to[top * columns + left..],
                    to_stride: columns,
                    columns: (whole[1] - left).min(TILE),
                });
            }
        }
    }
    for row in 0..rows {
        let first = if row < whole[0] { whole[1] } else { 0 };
        for column in first..columns {
            to[row * columns + column].write(values[column * stride + row]);
        }
    }
}

/// By the processor's shuffles: what the compiler makes of the other path takes two to six times as long.
#[cfg(target_arch = "x86_64")]
mod avx {
    use core::any::TypeId;
    use core::arch::x86_64::{
        __m256, _mm256_loadu_ps, _mm256_permute2f128_ps, _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps,
        _mm256_unpacklo_ps,
    };

    use super::*;

    /// Whether they are f32, and the processor has what is needed.
    pub(super) fn is_for<T: 'static>() -> bool {
        TypeId::of::<T>() == TypeId::of::<f32>() && std::arch::is_x86_feature_detected!("avx")
    }

    impl<T> Tiles<'_, T> {
        fn are_in_memory(&self) -> bool {
            let last = |count: usize, stride: usize, length: usize| (count - 1) * stride + length;
            self.from.len() >= last(self.columns, self.from_stride, SIDE)
                && self.to.len() >= last(SIDE, self.to_stride, self.columns)
        }
    }

    /// # Safety
    ///
    /// `T` is f32.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn band_of_f32<T: Real>(from: Matrix<T>, to: &mut [MaybeUninit<T>]) {
        in_tiles(from, to, |tiles| {
            assert!(tiles.are_in_memory(), "tiles of the matrix");
            let Tiles { from, from_stride, to, to_stride, columns } = tiles;
            let (from, to) = (from.as_ptr().cast::<f32>(), to.as_mut_ptr().cast::<f32>());
            // SAFETY: eight columns of eight f32, or twice as many, lie in memory.
            let tile = |left: usize| unsafe { transposed(from.wrapping_add(left * from_stride), from_stride) };
            let (left, right) = (tile(0), (columns == TILE).then(|| tile(SIDE)));
            for row in 0..SIDE {
                let to = to.wrapping_add(row * to_stride);
                // SAFETY: so do eight rows of eight f32, or of twice as many, which are this band's alone.
                unsafe {
                    _mm256_storeu_ps(to, left[row]);
                    if let Some(right) = &right {
                        _mm256_storeu_ps(to.wrapping_add(SIDE), right[row]);
                    }
                }
            }
        });
    }

    /// The rows of eight columns of eight elements.
    ///
    /// # Safety
    ///
    /// They lie in memory.
    #[inline]
    #[target_feature(enable = "avx")]
    unsafe fn transposed(from: *const f32, stride: usize) -> [__m256; SIDE] {
        // SAFETY: the caller's promise.
        let [a, b, c, d, e, f, g, h] =
            core::array::from_fn(|column| unsafe { _mm256_loadu_ps(from.wrapping_add(column * stride)) });
        // Of each half of eight elements: pairs, fours, then both halves.
        let fours = |a, b, c, d| {
            let (low, high) = (
                [_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d)],
                [_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d)],
            );
            [
                _mm256_shuffle_ps::<0x44>(low[0], low[1]),
                _mm256_shuffle_ps::<0xee>(low[0], low[1]),
                _mm256_shuffle_ps::<0x44>(high[0], high[1]),
                _mm256_shuffle_ps::<0xee>(high[0], high[1]),
            ]
        };
        let (first, second) = (fours(a, b, c, d), fours(e, f, g, h));
        core::array::from_fn(|row| {
            let (first, second) = (first[row % 4], second[row % 4]);
            match row < 4 {
                true => _mm256_permute2f128_ps::<0x20>(first, second),
                false => _mm256_permute2f128_ps::<0x31>(first, second),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_transposed<T: Real>(of: impl Fn(usize) -> T) {
        for [rows, columns] in
            [[0, 3], [3, 0], [1, 1], [7, 9], [8, 8], [8, 16], [16, 8], [17, 33], [40, 24], [64, 50], [300, 129]]
        {
            // Columns of a wider matrix, or its own.
            for stride in [rows, rows + 5] {
                let values: Vec<T> = (0..columns * stride).map(&of).collect();
                let from = Matrix::strided(&values, [columns, rows], [stride, 1]).transposed();
                let exact: Vec<T> = (0..rows * columns).map(|i| values[i % columns * stride + i / columns]).collect();
                for threads in [1, 3] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                    assert!(pool.install(|| row_by_row(from)) == exact, "{rows} x {columns} on {threads} threads");
                }
                let mut portable = Unwritten::new(rows * columns);
                portable_band(from, portable.memory());
                // SAFETY: a band is all of its rows.
                assert!(unsafe { portable.written() } == exact, "{rows} x {columns}");
            }
        }
    }

    #[test]
    fn both_paths_write_all_rows() {
        is_transposed(|i| i as f32);
        is_transposed(|i| i as f64);
    }
}
