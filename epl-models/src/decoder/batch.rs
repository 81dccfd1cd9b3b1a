//! Rows of tokens as padded tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Bool, Device, Int, Tensor};
use epl_comm::{Error, unwind};
use epl_modules::TokenMask;

use super::config::DecoderConfig;
use crate::rows::{IGNORED, ignored_if_negative, is_token, padded};

/// A row of tokens, and which of them are to be learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderItem {
    /// The tokens.
    pub ids: Vec<i64>,
    /// Each token again where the model shall learn to write it, a negative number where not, as in Hugging Face. The first one
    /// never counts, as nothing stands before it.
    pub labels: Vec<i64>,
}

impl DecoderItem {
    /// A row of which every token is to be learned.
    pub fn new(ids: Vec<i64>) -> Self {
        Self { labels: ids.clone(), ids }
    }

    /// With other labels, such as those of an answer alone.
    #[must_use]
    pub fn with_labels(self, labels: Vec<i64>) -> Self {
        Self { labels, ..self }
    }

    /// What each position is to write: the label of the next one.
    fn targets(&self) -> Vec<i64> {
        let next = self.labels.iter().skip(1).copied().map(ignored_if_negative);
        next.chain(core::iter::once(IGNORED)).take(self.ids.len()).collect()
    }

    /// What is wrong with the row for a model.
    fn fault(&self, config: &DecoderConfig) -> Option<String> {
        let (ids, labels) = (self.ids.len(), self.labels.len());
        if ids != labels || ids == 0 {
            return Some(format!("{ids} tokens and {labels} labels; give each token a label, and at least one token"));
        }
        if ids > config.positions {
            let positions = config.positions;
            return Some(format!("{ids} tokens; the model has {positions} positions: cut the row into pieces"));
        }
        let unknown = |token: &&i64| !is_token(**token, config.vocab);
        let token = self.ids.iter().find(unknown);
        let token = token.or_else(|| self.labels.iter().filter(|label| **label >= 0).find(unknown))?;
        let last = config.vocab - 1;
        Some(format!("token {token}; the tokens of the model are 0 to {last}: use the tokenizer that it was made for"))
    }
}

/// Rows padded to the longest, on their right, where no real token looks.
#[derive(Clone, Debug)]
pub struct DecoderBatch {
    /// The tokens. Shape `[rows, length]`.
    pub ids: Tensor<2, Int>,
    /// What each position is to write, [`IGNORED`] where nothing counts. Shape `[rows, length]`.
    pub targets: Tensor<2, Int>,
    /// How many targets count.
    pub counted: usize,
    /// Which tokens are real.
    pub real: TokenMask,
    /// Where the rows stand, in a step of generation.
    pub step: Option<DecoderStep>,
}

/// Where the new tokens of a step of generation stand.
#[derive(Clone, Debug, Default)]
pub struct DecoderStep {
    /// Their positions, where these are learned; rotary ones are columns, padding included. Shape `[rows, length]`. Default:
    /// from 0
    pub positions: Option<Tensor<2, Int>>,
    /// True where a row is padding, of the tokens of earlier steps too. Shape `[rows, all columns]`. Default: nowhere
    pub padding: Option<Tensor<2, Bool>>,
}

/// It has no float.
impl epl_core::Batch for DecoderBatch {}

/// Makes a [`DecoderBatch`] of rows.
///
/// # Errors
///
/// Unwinds with an error when a row does not fit the model: here it is still on the host, where looking costs little.
#[derive(Clone, Debug)]
pub struct DecoderBatcher {
    config: DecoderConfig,
}

impl DecoderBatcher {
    /// For models of this shape.
    pub fn new(config: &DecoderConfig) -> Self {
        Self { config: config.clone() }
    }
}

impl Batcher<DecoderItem, DecoderBatch> for DecoderBatcher {
    fn batch(&self, items: Vec<DecoderItem>, device: &Device) -> DecoderBatch {
        for (row, item) in items.iter().enumerate() {
            if let Some(fault) = item.fault(&self.config) {
                unwind(Error::invalid(format!("row {row} of a batch has {fault}")));
            }
        }
        let width = items.iter().map(|item| item.ids.len()).max().unwrap_or(1);
        let ids: Vec<&[i64]> = items.iter().map(|item| &*item.ids).collect();
        let targets: Vec<Vec<i64>> = items.iter().map(DecoderItem::targets).collect();
        DecoderBatch {
            ids: padded(&ids, self.config.pad.unwrap_or(0), width, device),
            counted: targets.iter().flatten().filter(|target| **target >= 0).count(),
            targets: padded(&targets, IGNORED, width, device),
            real: TokenMask::from_lengths(&items.iter().map(|item| item.ids.len()).collect::<Vec<_>>(), width),
            step: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(items: Vec<DecoderItem>) -> DecoderBatch {
        let config = DecoderConfig::new(10).with_positions(4).with_pad(Some(7));
        DecoderBatcher::new(&config).batch(items, &Device::default())
    }

    #[test]
    fn each_position_writes_the_next_token() {
        let ints = |tensor: Tensor<2, Int>| tensor.into_data().iter::<i64>().collect::<Vec<_>>();
        let answer = DecoderItem::new(vec![4, 5, 6, 9]).with_labels(vec![4, -1, 6, 9]);
        let batch = batch(vec![DecoderItem::new(vec![1, 2]), answer, DecoderItem::new(vec![3])]);
        assert_eq!(ints(batch.ids), [1, 2, 7, 7, 4, 5, 6, 9, 3, 7, 7, 7]);
        let none = IGNORED;
        assert_eq!(ints(batch.targets), [2, none, none, none, none, 6, 9, none, none, none, none, none]);
        assert_eq!(batch.counted, 3);
    }

    #[test]
    fn rows_that_do_not_fit_are_named() {
        for (wrong, expected) in [
            (DecoderItem::new(vec![10]), "row 1 of a batch has token 10; the tokens of the model are 0 to 9"),
            (DecoderItem::new(vec![1]).with_labels(vec![11]), "row 1 of a batch has token 11"),
            (DecoderItem::new(vec![1]).with_labels(vec![]), "row 1 of a batch has 1 tokens and 0 labels"),
            (DecoderItem::new(vec![]), "row 1 of a batch has 0 tokens and 0 labels"),
            (DecoderItem::new(vec![1; 5]), "row 1 of a batch has 5 tokens; the model has 4 positions"),
        ] {
            let rows = vec![DecoderItem::new(vec![9]), wrong];
            let error = epl_comm::catch(|| batch(rows)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
