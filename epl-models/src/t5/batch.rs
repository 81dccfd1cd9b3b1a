//! Token pairs as padded tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use epl_comm::{Error, unwind};
use epl_modules::TokenMask;

use super::config::T5Config;
use crate::rows::{self, IGNORED, ignored_if_negative, is_token};
use crate::text::TokenPair;

/// Pairs padded to the longest of each side.
#[derive(Clone, Debug)]
pub struct T5Batch {
    /// What the encoder reads. Shape `[rows, source length]`.
    pub source: Tensor<2, Int>,
    /// True where the source is padding. Shape `[rows, source length]`.
    pub source_padding: Tensor<2, Bool>,
    /// What the decoder reads: the targets, shifted right. Shape `[rows, target length]`.
    pub decoder_input: Tensor<2, Int>,
    /// What the decoder shall write, [`IGNORED`] at padding. Shape `[rows, target length]`.
    pub targets: Tensor<2, Int>,
    /// Which tokens of the source are real, on the host: what experts are chosen for.
    pub source_real: TokenMask,
    /// Which tokens of the decoder are real, on the host.
    pub target_real: TokenMask,
    /// The number of rows.
    pub rows: usize,
    /// The number of targets that count.
    pub tokens: usize,
}

/// It has no float.
impl epl_core::Batch for T5Batch {}

/// Makes a [`T5Batch`] of token pairs.
///
/// A negative target does not count (Hugging Face writes -100); the decoder reads padding in its place. A token that
/// is not in the vocabulary unwinds with an error: here it is still on the host, where looking costs little.
#[derive(Clone, Debug)]
pub struct T5Batcher {
    vocab: usize,
    pad: i64,
    decoder_start: i64,
}

impl T5Batcher {
    /// For models of this shape.
    pub fn new(config: &T5Config) -> Self {
        Self { vocab: config.vocab, pad: config.pad, decoder_start: config.decoder_start }
    }

    /// Rows of the source alone, and where they are padded.
    pub(super) fn source(&self, rows: &[Vec<i64>], device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>, TokenMask) {
        let (source, padding) = padded(rows, self.pad, device);
        let real = real(rows, source.dims()[1]);
        (source, padding, real)
    }

    /// What a step of generation reads: the sources, with where they are padded, and what each row wrote last, nothing once
    /// it is finished.
    pub(super) fn step(
        &self,
        (source, source_padding, source_real): (Tensor<2, Int>, Tensor<2, Bool>, TokenMask),
        last: &[Option<i64>],
        device: &Device,
    ) -> T5Batch {
        let written: Vec<Vec<i64>> = last.iter().map(|token| Vec::from_iter(*token)).collect();
        let (decoder_input, _) = padded(&written, self.pad, device);
        let (target_real, targets) = (real(&written, 1), decoder_input.full_like(IGNORED));
        let rows = last.len();
        T5Batch { source, source_padding, decoder_input, targets, source_real, target_real, rows, tokens: 0 }
    }

    /// Refuses a token that the model has no vector for.
    fn check(&self, items: &[TokenPair]) {
        for (row, pair) in items.iter().enumerate() {
            let source = pair.source.iter().find(|token| !is_token(**token, self.vocab));
            let target = pair.target.iter().find(|token| **token >= 0 && !is_token(**token, self.vocab));
            if let Some((side, token)) = source.map(|t| ("source", t)).or_else(|| target.map(|t| ("target", t))) {
                unwind(Error::invalid(format!(
                    "row {row} of a batch has token {token} in its {side}; the tokens of the model are 0 to {}: use the \
                     tokenizer that it was made for, or a `vocab` of the tokenizer's size",
                    self.vocab.saturating_sub(1)
                )));
            }
        }
    }

    /// What the decoder reads: the start token, then the target without its last token.
    fn shift_right(&self, target: &[i64]) -> Vec<i64> {
        let before = target.iter().take(target.len().saturating_sub(1));
        let read = before.map(|token| if *token < 0 { self.pad } else { *token });
        core::iter::once(self.decoder_start).chain(read).take(target.len()).collect()
    }
}

impl Batcher<TokenPair, T5Batch> for T5Batcher {
    fn batch(&self, items: Vec<TokenPair>, device: &Device) -> T5Batch {
        self.check(&items);
        let rows = items.len();
        let tokens = items.iter().flat_map(|pair| &pair.target).filter(|token| **token >= 0).count();
        let inputs: Vec<Vec<i64>> = items.iter().map(|pair| self.shift_right(&pair.target)).collect();
        let (sources, targets): (Vec<_>, Vec<_>) = items
            .into_iter()
            .map(|pair| (pair.source, pair.target.into_iter().map(ignored_if_negative).collect::<Vec<_>>()))
            .unzip();
        let (source, source_padding, source_real) = self.source(&sources, device);
        let (decoder_input, _) = padded(&inputs, self.pad, device);
        let target_real = real(&inputs, decoder_input.dims()[1]);
        let (targets, _) = padded(&targets, IGNORED, device);
        T5Batch { source, source_padding, decoder_input, targets, source_real, target_real, rows, tokens }
    }
}

/// Which tokens of rows filled up to a width are real.
fn real(rows: &[Vec<i64>], width: usize) -> TokenMask {
    TokenMask::from_lengths(&rows.iter().map(Vec::len).collect::<Vec<_>>(), width)
}

/// Rows filled up to the longest, at least one wide, and where they were filled.
fn padded(rows: &[Vec<i64>], filler: i64, device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>) {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let padding: Vec<bool> = rows.iter().flat_map(|row| (0..width).map(|column| column >= row.len())).collect();
    let padding = Tensor::from_data(TensorData::new(padding, [rows.len(), width]), device);
    (rows::padded(rows, filler, width, device), padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(tensor: Tensor<2, Int>) -> Vec<i64> {
        tensor.into_data().iter().collect()
    }

    fn bools(tensor: Tensor<2, Bool>) -> Vec<bool> {
        tensor.into_data().iter().collect()
    }

    #[test]
    fn sides_are_padded_and_targets_shifted() {
        let pairs = vec![
            TokenPair { source: vec![5, 1], target: vec![6, 7, 1] },
            TokenPair { source: vec![8, 9, 1], target: vec![-100, 1] },
        ];
        let batcher = T5Batcher::new(&T5Config::new(10).with_decoder_start(2));
        let batch = batcher.batch(pairs, &Device::default());
        assert_eq!(ints(batch.source), [5, 1, 0, 8, 9, 1]);
        assert_eq!(bools(batch.source_padding), [false, false, true, false, false, false]);
        assert_eq!(ints(batch.decoder_input), [2, 6, 7, 2, 0, 0]);
        assert_eq!(batch.source_real, TokenMask::from_lengths(&[2, 3], 3));
        assert_eq!(batch.target_real, TokenMask::from_lengths(&[3, 2], 3));
        assert_eq!(ints(batch.targets), [6, 7, 1, -100, 1, -100]);
        assert_eq!((batch.rows, batch.tokens), (2, 4));
    }
    #[test]
    fn a_token_outside_the_vocabulary_is_named() {
        let batcher = T5Batcher::new(&T5Config::new(10));
        for (source, target, side) in
            [(vec![10], vec![1], "source"), (vec![-1], vec![1], "source"), (vec![1], vec![-100, 10], "target")]
        {
            let token = if side == "source" { source[0] } else { 10 };
            let pairs = vec![TokenPair { source: vec![9], target: vec![-100] }, TokenPair { source, target }];
            let error = epl_comm::catch(|| batcher.batch(pairs, &Device::default())).unwrap_err().to_string();
            let expected =
                format!("row 1 of a batch has token {token} in its {side}; the tokens of the model are 0 to 9");
            assert!(error.contains(&expected), "{error}");
        }
    }
}
