//! What the machine gives: the speed of products and of copies.

use std::time::Instant;

use rayon::prelude::*;

/// The shortest of five runs, in seconds.
fn shortest(mut run: impl FnMut()) -> f64 {
    let seconds = (0..5).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

/// GFLOP/s of a large product of f32 on all threads, by `gemm`, each thread with rows of its own: without what Flex does around it.
pub fn product_speed() -> f64 {
    const ROWS: usize = 2048;
    const DEPTH: usize = 1024;
    const COLUMNS: usize = 2048;
    let numbers = |count: usize| (0..count).map(|index| (index % 97) as f32 / 97.0).collect::<Vec<f32>>();
    let (a, b, mut out) = (numbers(ROWS * DEPTH), numbers(DEPTH * COLUMNS), vec![0.0; ROWS * COLUMNS]);
    let rows = ROWS.div_ceil(rayon::current_num_threads());
    let seconds = shortest(|| {
        out.par_chunks_mut(rows * COLUMNS).zip(a.par_chunks(rows * DEPTH)).for_each(|(out, a)| {
            let (rows, of_a, of_columns) = (out.len() / COLUMNS, DEPTH as isize, COLUMNS as isize);
            // SAFETY: the matrices lie row by row in these slices, and `out` is this thread's alone.
            unsafe {
                gemm::gemm(
                    rows,
                    COLUMNS,
                    DEPTH,
                    out.as_mut_ptr(),
                    1,
                    of_columns,
                    false,
                    a.as_ptr(),
                    1,
                    of_a,
                    b.as_ptr(),
                    1,
                    of_columns,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        });
    });
    2.0 * (ROWS * DEPTH * COLUMNS) as f64 / seconds / 1e9
}

/// GB/s of a copy of 64 MiB on all threads: what is read and what is written.
pub fn copy_speed() -> f64 {
    let from = vec![1u8; 1 << 26];
    let mut to = vec![0u8; from.len()];
    let block = 1 << 16;
    let seconds = shortest(|| {
        to.par_chunks_mut(block).zip(from.par_chunks(block)).for_each(|(to, from)| to.copy_from_slice(from));
    });
    2.0 * from.len() as f64 / seconds / 1e9
}
