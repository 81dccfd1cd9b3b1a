//! Rows of tokens of different lengths, as tensors.

use burn::tensor::{Device, Int, Tensor, TensorData};

/// The target of a token or a row that does not count.
pub const IGNORED: i64 = -100;

/// Whether a vocabulary of this size has the token.
pub(crate) fn is_token(token: i64, vocab: usize) -> bool {
    usize::try_from(token).is_ok_and(|token| token < vocab)
}

/// All that does not count is marked alike.
pub(crate) fn ignored_if_negative(token: i64) -> i64 {
    if token < 0 { IGNORED } else { token }
}

/// Rows filled up to a width.
///
/// # Shapes
///
/// - output: `[rows, width]`
pub(crate) fn padded(rows: &[impl AsRef<[i64]>], filler: i64, width: usize, device: &Device) -> Tensor<2, Int> {
    let filled = |row: &[i64]| {
        let fill = core::iter::repeat_n(filler, width - row.len());
        row.iter().copied().chain(fill).collect::<Vec<_>>()
    };
    let values: Vec<i64> = rows.iter().flat_map(|row| filled(row.as_ref())).collect();
    Tensor::from_data(TensorData::new(values, [rows.len(), width]), device)
}
