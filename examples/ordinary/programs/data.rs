//! What the programs learn from: made by rule, other rows in each step.

use burn::tensor::{Bool, Device, Int, Tensor};

/// Images `[rows, 1, 12, 12]`, and their classes.
pub type Images = (Tensor<4>, Tensor<1, Int>);
/// Tokens `[rows, 16]`, where there is none, and the classes of the texts.
pub type Texts = (Tensor<2, Int>, Tensor<2, Bool>, Tensor<1, Int>);
/// Eight numbers a row, and one that depends on them.
pub type Points = (Tensor<2>, Tensor<2>);
/// Curves `[rows, 12, 1]`, and how they go on.
pub type Curves = (Tensor<3>, Tensor<2>);

/// The number of a place in `[0, 1)`, which no generator makes.
fn number(seed: u64, index: usize) -> f32 {
    let x = (index as u64 + seed * 7919 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 24) as f32
}

fn floats<const D: usize>(shape: [usize; D], number: impl Fn(usize) -> f32, device: &Device) -> Tensor<D> {
    let values: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape(shape)
}

fn ints<const D: usize>(shape: [usize; D], number: impl Fn(usize) -> i32, device: &Device) -> Tensor<D, Int> {
    let values: Vec<i32> = (0..shape.iter().product()).map(number).collect();
    Tensor::<1, Int>::from_ints(values.as_slice(), device).reshape(shape)
}

/// A number in place of another for one row in four: what cannot be learned.
fn mislabelled(seed: u64, row: usize, label: i32, classes: usize) -> i32 {
    if number(seed, row) < 0.25 { (number(seed + 1, row) * classes as f32) as i32 } else { label }
}

/// Stripes that lie, stand, or run down one diagonal or the other, in noise: four classes.
pub fn images(rows: usize, step: u64, device: &Device) -> Images {
    const SIDE: usize = 12;
    let class = |row: usize| (number(step, row) * 4.0) as usize;
    let pixel = |index: usize| {
        let (row, y, x) = (index / (SIDE * SIDE), index / SIDE % SIDE, index % SIDE);
        let along = [y, x, x + y, x + SIDE - y][class(row)] + (number(step + 1, row) * 4.0) as usize;
        (if along % 4 < 2 { 1.0 } else { 0.0 }) + number(step + 2, index) - 1.0
    };
    let label = |row| mislabelled(step + 3, row, class(row) as i32, 4);
    (floats([rows, 1, SIDE, SIDE], pixel, device), ints([rows], label, device))
}

/// Texts of 4 to 16 tokens of 20; the class of one is whether more of them are below ten than not.
pub fn texts(rows: usize, step: u64, device: &Device) -> Texts {
    const LENGTH: usize = 16;
    let length = |row: usize| 4 + (number(step, row) * 13.0) as usize;
    let token = |index: usize| (number(step + 1, index) * 20.0) as usize;
    let low = |row: usize| (0..length(row)).filter(|at| token(row * LENGTH + at) < 10).count();
    let label = |row| mislabelled(step + 2, row, (2 * low(row) > length(row)) as i32, 2);
    let classes = ints([rows], label, device);
    let missing = ints([rows, LENGTH], |index| (index % LENGTH >= length(index / LENGTH)) as i32, device);
    (ints([rows, LENGTH], |index| token(index) as i32, device), missing.greater_elem(0), classes)
}

/// A product, a square and a sum, with noise.
pub fn points(rows: usize, step: u64, device: &Device) -> Points {
    let input = |row: usize, column: usize| 2.0 * number(step, row * 8 + column) - 1.0;
    let target = |row: usize| {
        let of = |column| input(row, column);
        of(0) * of(1) + of(2).powi(2) + 0.5 * (of(3) + of(4) - of(5)) + 0.4 * number(step + 1, row)
    };
    (floats([rows, 8], |index| input(index / 8, index % 8), device), floats([rows, 1], target, device))
}

/// Waves of some length, which begin somewhere and go on with noise.
pub fn curves(rows: usize, step: u64, device: &Device) -> Curves {
    const LENGTH: usize = 12;
    let wave = |row: usize, at: usize| {
        let (pace, begin) = (0.3 + 0.5 * number(step, row), 6.3 * number(step + 1, row));
        (begin + pace * at as f32).sin()
    };
    let curves = floats([rows, LENGTH, 1], |index| wave(index / LENGTH, index % LENGTH), device);
    (curves, floats([rows, 1], |row| wave(row, LENGTH) + number(step + 2, row) - 0.5, device))
}
