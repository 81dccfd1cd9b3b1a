//! Layouts on one thread, on lists of whole numbers: what global tensors are compared with.

use burn::tensor::{Device, Tensor, TensorData};
use epl_core::{Axis, Coordinate, MeshSizes};
use epl_modules::{Layout, Sbp};

/// The axes that these tests lay tensors out on, and all that an axis can do with a matrix.
pub const AXES: [Axis; 2] = [Axis::Data, Axis::Tensor];
pub const STATES: [Sbp; 4] = [Sbp::Split(0), Sbp::Split(1), Sbp::Broadcast, Sbp::Partial];

/// Every layout of a matrix on two axes, and those in which the order of the axes counts also the other way round.
pub fn layouts() -> Vec<Layout> {
    let pairs = STATES.into_iter().flat_map(|data| STATES.map(|tensor| (data, tensor)));
    let ordered = pairs.map(|(data, tensor)| Layout::from([(AXES[0], data), (AXES[1], tensor)]));
    let swapped = [0, 1].map(|dim| Layout::from([(AXES[1], Sbp::Split(dim)), (AXES[0], Sbp::Split(dim))]));
    ordered.chain(swapped).collect()
}

/// Whole numbers, exact in f32, sums and squares too.
pub fn value(row: usize, column: usize) -> f64 {
    ((7 * row + 3 * column + row * column) % 23) as f64 - 11.0
}

pub fn weight(row: usize, column: usize) -> f64 {
    ((5 * row + 11 * column + 2) % 13) as f64 - 6.0
}

/// A matrix of numbers with the rows and columns that they stand for.
pub fn tensor(rows: &[usize], columns: &[usize], number: impl Fn(usize, usize) -> f64, device: &Device) -> Tensor<2> {
    let numbers = rows.iter().flat_map(|row| columns.iter().map(|column| number(*row, *column))).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(numbers, [rows.len(), columns.len()]), device)
}

/// The indices of a dim that are left to a rank after these axes have dealt it out, each to its ranks in turn.
fn dealt(extent: usize, cuts: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    cuts.fold((0..extent).collect(), |indices: Vec<usize>, (ranks, mine)| {
        let mut counts = vec![0; ranks];
        (0..indices.len()).for_each(|index| counts[index % ranks] += 1);
        let first: usize = counts[..mine].iter().sum();
        indices[first..first + counts[mine]].to_vec()
    })
}

/// The rows and the columns that a rank holds.
pub fn held(layout: &Layout, shape: [usize; 2], sizes: MeshSizes, at: Coordinate) -> [Vec<usize>; 2] {
    [0, 1].map(|dim| {
        let cuts = layout.axes().iter().filter(|(_, sbp)| *sbp == Sbp::Split(dim));
        dealt(shape[dim], cuts.map(|(axis, _)| (sizes.along(*axis), at.along(*axis))))
    })
}

/// A rank's part of the matrix of [`value`]s. Where an axis is partial, all terms differ, and their sum is the value.
pub fn local(layout: &Layout, shape: [usize; 2], sizes: MeshSizes, at: Coordinate, device: &Device) -> Tensor<2> {
    let partial = layout.axes().iter().filter(|(_, sbp)| *sbp == Sbp::Partial);
    let (mine, terms) = partial.fold((0, 1), |(mine, terms), (axis, _)| {
        (mine * sizes.along(*axis) + at.along(*axis), terms * sizes.along(*axis))
    });
    let term = |number: usize, row: usize, column: usize| ((5 * row + 3 * column + 7 * number) % 9) as f64 - 4.0;
    let number = |row: usize, column: usize| match mine + 1 == terms {
        true => value(row, column) - (0..mine).map(|other| term(other, row, column)).sum::<f64>(),
        false => term(mine, row, column),
    };
    let [rows, columns] = held(layout, shape, sizes, at);
    tensor(&rows, &columns, number, device)
}

/// What the ranks hold, each with its coordinate, makes up the matrix of [`value`]s.
#[track_caller]
pub fn check_whole(
    layout: &Layout,
    shape: [usize; 2],
    sizes: MeshSizes,
    ranks: &[(Coordinate, TensorData)],
    what: &str,
) {
    // Data is not independent of the two axes that make it up.
    let is_partial = |axis: Axis| {
        let of_data = matches!(axis, Axis::Expert | Axis::ExpertData) && layout.along(Axis::Data) == Sbp::Partial;
        of_data || layout.along(axis) == Sbp::Partial
    };
    let mut fixed = vec![Axis::ExpertData, Axis::Expert, Axis::Tensor];
    fixed.retain(|axis| !is_partial(*axis));
    for (at, _) in ranks {
        let [rows, columns] = held(layout, shape, sizes, *at);
        let mut sum = vec![0.0; rows.len() * columns.len()];
        for (_, term) in
            ranks.iter().filter(|(other, _)| fixed.iter().all(|axis| other.along(*axis) == at.along(*axis)))
        {
            assert_eq!(term.shape().as_slice(), [rows.len(), columns.len()], "{what}, {at}");
            sum.iter_mut().zip(term.iter::<f64>()).for_each(|(sum, term)| *sum += term);
        }
        let expected = rows.iter().flat_map(|row| columns.iter().map(|column| value(*row, *column)));
        assert_eq!(sum, expected.collect::<Vec<_>>(), "{what}, {at}");
    }
}
