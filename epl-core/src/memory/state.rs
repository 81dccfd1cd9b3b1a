//! How many elements an optimizer keeps for a parameter.

/// The elements of an optimizer's state, as memory holds them: a tensor that two fields share counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerState {
    /// So many for each element of the parameter.
    PerElement(u64),
    /// One for each row and one for each column of every matrix in the last two dims; of a vector, one an element.
    RowsAndColumns,
}

impl OptimizerState {
    /// The elements for a parameter of this shape.
    pub fn numel(self, shape: &[usize]) -> u64 {
        let numel = |dims: &[usize]| dims.iter().map(|dim| *dim as u64).product::<u64>();
        match (self, shape) {
            (Self::PerElement(count), shape) => count * numel(shape),
            (Self::RowsAndColumns, [matrices @ .., rows, columns]) => numel(matrices) * (*rows + *columns) as u64,
            (Self::RowsAndColumns, shape) => numel(shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_follow_the_shape() {
        let adam = OptimizerState::PerElement(2);
        assert_eq!([adam.numel(&[]), adam.numel(&[5]), adam.numel(&[3, 4])], [2, 10, 24]);
        let factored = OptimizerState::RowsAndColumns;
        assert_eq!([factored.numel(&[5]), factored.numel(&[3, 4]), factored.numel(&[2, 3, 4])], [5, 7, 14]);
        assert_eq!(OptimizerState::PerElement(0).numel(&[3, 4]), 0);
    }
}
