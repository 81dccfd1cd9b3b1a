//! Positions of a grid as windows, each of which attends to itself.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use epl_comm::custom_vjp;

use crate::invalid::refuse;

/// The bias of a pair that does not see each other: finite, since not all devices keep to the rules of infinities.
const HIDDEN: f64 = -1e9;

/// A grid of positions, cut into square windows, perhaps of the grid after it was shifted in a circle.
///
/// ```text
/// grid 4 × 4, windows of 2                shifted by 1: windows at the edges hold parts that are no neighbours
///
///   a a b b                                 d c c d
///   a a b b                                 b a a b
///   c c d d                                 b a a b
///   c c d d                                 d c c d
/// ```
///
/// Positions are rows of a tensor, in order of the grid's rows. A grid that the windows do not divide is filled up by zeros at its
/// end, which are attended to as published models do.
///
/// *Swin Transformer: Hierarchical Vision Transformer using Shifted Windows*, Liu et al., 2021
/// ([arXiv:2103.14030](https://arxiv.org/abs/2103.14030)).
///
/// ```
/// use epl_modules::Windows;
/// let windows = Windows::new([8, 8], 4, 2);
/// assert_eq!((windows.count(), windows.side()), (4, 4));
/// assert_eq!(Windows::new([3, 8], 4, 2).count(), 3); // of 3, the smaller side of the grid, and not shifted
/// ```
#[derive(Clone, Debug)]
pub struct Windows {
    grid: [usize; 2],
    side: usize,
    shift: usize,
    /// For each position of each window that of the grid, the grid's length where there is none.
    order: Arc<[i64]>,
    /// For each position of the grid that among those of the windows.
    back: Arc<[i64]>,
}

impl Windows {
    /// Windows of so many positions a side, after the grid was moved by `shift` towards its first row and column. A grid of
    /// which a side is no longer than a window has windows of that side, and is not shifted.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the grid or the side is empty, or the shift is not below the side.
    pub fn new(grid: [usize; 2], side: usize, shift: usize) -> Self {
        let shortest = grid[0].min(grid[1]);
        if shortest == 0 || side == 0 || shift >= side {
            refuse(format!(
                "windows of {side} positions a side, shifted by {shift}, over a grid of {} × {}: give sides of at least 1, and a \
                 shift below that of a window",
                grid[0], grid[1]
            ));
        }
        let (side, shift) = if shortest <= side { (shortest, 0) } else { (side, shift) };
        let filled = grid.map(|length| length.next_multiple_of(side));
        let (mut order, mut back) = (Vec::new(), vec![0; grid[0] * grid[1]]);
        for [row, column] in shifted_places(filled, side) {
            let [row, column] = [(row + shift) % filled[0], (column + shift) % filled[1]];
            let inside = row < grid[0] && column < grid[1];
            let place = if inside { row * grid[1] + column } else { grid[0] * grid[1] };
            if inside {
                back[place] = order.len() as i64;
            }
            order.push(place as i64);
        }
        Self { grid, side, shift, order: order.into(), back: back.into() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.order.len() / (self.side * self.side)
    }

    /// The positions of a side of a window.
    pub fn side(&self) -> usize {
        self.side
    }

    /// The windows of each sample, one after the other.
    ///
    /// # Shapes
    ///
    /// - x: `[samples, height * width, features]`
    /// - output: `[samples * windows, side * side, features]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when x is of another grid.
    pub fn apart(&self, x: Tensor<3>) -> Tensor<3> {
        let ([samples, positions, features], [height, width]) = (x.dims(), self.grid);
        if positions != height * width {
            refuse(format!("{positions} positions, for windows of a grid of {height} × {width}"));
        }
        let moved = moved(x, self.order.clone(), self.back.clone());
        moved.reshape([samples * self.count(), self.side * self.side, features])
    }

    /// What [`apart`](Self::apart) has cut, as it was; what fills the grid up is left out.
    ///
    /// # Shapes
    ///
    /// - x: `[samples * windows, side * side, features]`
    /// - output: `[samples, height * width, features]`
    pub fn joined(&self, x: Tensor<3>) -> Tensor<3> {
        let [windows, positions, features] = x.dims();
        let samples = windows / self.count();
        moved(x.reshape([samples, self.count() * positions, features]), self.back.clone(), self.order.clone())
    }

    /// The bias of pairs that only the shift has brought into one window: they do not see each other. `None` without a shift.
    ///
    /// # Shapes
    ///
    /// - output: `[windows, 1, side * side, side * side]`
    pub fn mask(&self, device: &Device) -> Option<Tensor<4>> {
        if self.shift == 0 {
            return None;
        }
        let filled = self.grid.map(|length| length.next_multiple_of(self.side));
        // Along a side the last window holds, behind each other, the end of the grid and its beginning.
        let part = |place: usize, length: usize| usize::from(place >= length - self.shift);
        let last = |place: usize, length: usize| usize::from(place >= length - self.side);
        let region = |[row, column]: [usize; 2]| {
            let of = |place, length| part(place, length) + last(place, length);
            of(row, filled[0]) * 3 + of(column, filled[1])
        };
        let regions: Vec<usize> = shifted_places(filled, self.side).map(region).collect();
        let area = self.side * self.side;
        let mut biases = Vec::with_capacity(regions.len() * area);
        for window in regions.chunks(area) {
            for own in window {
                biases.extend(window.iter().map(|other| if own == other { 0.0 } else { HIDDEN }));
            }
        }
        // In 16 bits by default, it would be infinite.
        Some(Tensor::from_data(TensorData::new(biases, [self.count(), 1, area, area]), (device, DType::F32)))
    }

    /// For each pair of a query and a key of a window the number of the distance between them, of `(2 side - 1)²`: rows apart,
    /// then columns.
    pub(super) fn distances(&self) -> Vec<i64> {
        let side = self.side;
        let mut distances = Vec::with_capacity(side.pow(4));
        for query in 0..side * side {
            let [row, column] = [query / side + side - 1, query % side + side - 1];
            let of_key = |key: usize| (row - key / side) * (2 * side - 1) + column - key % side;
            distances.extend((0..side * side).map(|key| of_key(key) as i64));
        }
        distances
    }
}

/// The row and column of each position of each window of the shifted grid.
fn shifted_places([height, width]: [usize; 2], side: usize) -> impl Iterator<Item = [usize; 2]> {
    let windows =
        (0..height / side).flat_map(move |row| (0..width / side).map(move |column| [row * side, column * side]));
    windows.flat_map(move |[row, column]| (0..side * side).map(move |at| [row + at / side, column + at % side]))
}

/// Rows in another order, zeros where it names the row behind the last. `back` is the order that undoes it.
///
/// # Shapes
///
/// - x: `[samples, rows, features]`, output: `[samples, order, features]`
fn moved(x: Tensor<3>, order: Arc<[i64]>, back: Arc<[i64]>) -> Tensor<3> {
    custom_vjp((x,), |(x,)| (taken(x, &order), back), |back, grad| (Some(taken(grad, &back)),))
}

fn taken(x: Tensor<3>, order: &[i64]) -> Tensor<3> {
    let ([samples, rows, features], device) = (x.dims(), x.device());
    let is_filled = order.contains(&(rows as i64));
    let x = match is_filled {
        true => Tensor::cat(vec![x.clone(), Tensor::zeros([samples, 1, features], (&device, x.dtype()))], 1),
        false => x,
    };
    x.select(1, Tensor::<1, Int>::from_data(TensorData::new(order.to_vec(), [order.len()]), &device))
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;

    /// The numbers of the positions of a grid, as one feature.
    fn numbered([height, width]: [usize; 2]) -> Tensor<3> {
        let numbers: Vec<f64> = (1..=height * width).map(|number| number as f64).collect();
        Tensor::from_data(TensorData::new(numbers, [1, height * width, 1]), (&Device::flex(), DType::F64))
    }

    fn values<const D: usize>(x: Tensor<D>) -> Vec<f64> {
        x.into_data().iter::<f64>().collect()
    }

    #[test]
    fn windows_are_squares_of_the_shifted_grid() {
        let plain = Windows::new([4, 4], 2, 0);
        let expected = [1, 2, 5, 6, 3, 4, 7, 8, 9, 10, 13, 14, 11, 12, 15, 16].map(f64::from);
        assert_eq!(values(plain.apart(numbered([4, 4]))), expected);
        let shifted = Windows::new([4, 4], 2, 1);
        let expected = [6, 7, 10, 11, 8, 5, 12, 9, 14, 15, 2, 3, 16, 13, 4, 1].map(f64::from);
        assert_eq!(values(shifted.apart(numbered([4, 4]))), expected);
        let filled = Windows::new([3, 4], 2, 1);
        let expected = [6, 7, 10, 11, 8, 5, 12, 9, 0, 0, 2, 3, 0, 0, 4, 1].map(f64::from);
        assert_eq!(values(filled.apart(numbered([3, 4]))), expected);
    }

    #[test]
    fn what_is_joined_is_what_was_cut_and_so_are_gradients() {
        for (grid, side, shift) in [([4, 4], 2, 1), ([5, 7], 3, 1), ([2, 9], 4, 2), ([6, 6], 7, 3), ([1, 1], 1, 0)] {
            let windows = Windows::new(grid, side, shift);
            let x = Tensor::cat(vec![numbered(grid), numbered(grid) * 2.0], 0);
            let tracked = x.clone().autodiff().require_grad();
            let apart = windows.apart(tracked.clone());
            assert_eq!(apart.dims(), [2 * windows.count(), windows.side().pow(2), 1]);
            let joined = windows.joined(apart.clone() * apart);
            assert_eq!(values(joined.clone()), values(x.clone() * x.clone()), "{grid:?}");
            let gradients = (joined * x.clone().autodiff()).sum().backward();
            let found = tracked.grad(&gradients).expect("it is tracked");
            assert_eq!(values(found), values(x.clone() * x * 2.0), "{grid:?}");
        }
    }

    /// A pair is hidden where the shift has brought it together: where its places in the grid lie a window apart.
    #[test]
    fn pairs_that_are_no_neighbours_do_not_see_each_other() {
        assert!(Windows::new([4, 4], 2, 0).mask(&Device::flex()).is_none());
        for (grid, side, shift) in [([4, 4], 2, 1), ([9, 6], 3, 1), ([8, 12], 4, 2)] {
            let windows = Windows::new(grid, side, shift);
            let (area, places) = (side * side, values(windows.apart(numbered(grid))));
            let mask = values(windows.mask(&Device::flex()).expect("it is shifted"));
            let apart = |one: f64, other: f64| {
                let [one, other] = [one, other].map(|number| number as usize - 1);
                let far = |one: usize, other: usize| one.abs_diff(other) >= side;
                far(one / grid[1], other / grid[1]) || far(one % grid[1], other % grid[1])
            };
            for (at, bias) in mask.into_iter().enumerate() {
                let [window, one, other] = [at / (area * area), at / area % area, at % area];
                let [one, other] = [one, other].map(|place| places[window * area + place]);
                assert_eq!(bias, if apart(one, other) { HIDDEN } else { 0.0 }, "{grid:?}: {one} and {other}");
            }
        }
    }

    #[test]
    fn impossible_windows_are_refused() {
        for (grid, side, shift) in [([0, 4], 2, 0), ([4, 4], 0, 0), ([4, 4], 2, 2)] {
            let refused = epl_comm::catch(|| Windows::new(grid, side, shift)).unwrap_err().to_string();
            assert!(refused.contains(&format!("windows of {side} positions a side, shifted by {shift}")), "{refused}");
        }
    }
}
