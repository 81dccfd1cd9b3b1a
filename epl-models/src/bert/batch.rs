//! Rows of tokens as padded tensors.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use epl_comm::{Error, unwind};

use super::config::BertConfig;
use crate::rows::padded;

/// A row of tokens, and what is to be learned of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BertItem<L> {
    /// The tokens.
    pub ids: Vec<i64>,
    /// The type of each token.
    pub token_types: Vec<i64>,
    /// How many of them are real; the others are padding, which no token attends to.
    pub tokens: usize,
    /// What is to be learned: see [`BertHead::Label`](super::BertHead::Label).
    pub label: L,
}

impl<L> BertItem<L> {
    /// A row without padding.
    pub fn new(ids: Vec<i64>, token_types: Vec<i64>, label: L) -> Self {
        Self { tokens: ids.len(), ids, token_types, label }
    }

    /// What is wrong with the row for a model.
    fn fault(&self, config: &BertConfig) -> Option<String> {
        let outside = |values: &[i64], size: usize| {
            let known = |value: &i64| usize::try_from(*value).is_ok_and(|value| value < size);
            values.iter().copied().find(|value| !known(value))
        };
        let Self { ids, token_types, tokens, .. } = self;
        if token_types.len() != ids.len() || *tokens > ids.len() || *tokens == 0 {
            let (ids, types) = (ids.len(), token_types.len());
            return Some(format!("{ids} tokens, {types} types and {tokens} real tokens; give each token a type"));
        }
        if ids.len() > config.longest_row() {
            let (ids, positions) = (ids.len(), config.longest_row());
            return Some(format!("{ids} tokens; the model has {positions} positions: cut the row into windows"));
        }
        if let Some(token) = outside(ids, config.vocab) {
            let last = config.vocab - 1;
            return Some(format!(
                "token {token}; the tokens of the model are 0 to {last}: use the vocabulary it was made for"
            ));
        }
        let found = outside(token_types, config.token_types)?;
        let last = config.token_types - 1;
        Some(format!("type {found}; the types of the model are 0 to {last}: give others, or a model with more types"))
    }
}

/// Rows padded to the longest, with labels as a head has them.
#[derive(Clone, Debug)]
pub struct BertBatch<L> {
    /// The tokens. Shape `[rows, length]`.
    pub ids: Tensor<2, Int>,
    /// The type of each token. Shape `[rows, length]`.
    pub token_types: Tensor<2, Int>,
    /// True at padding. Shape `[rows, length]`.
    pub padding: Tensor<2, Bool>,
    /// The position of each token, where positions are not counted from 0. Shape `[rows, length]`.
    pub positions: Option<Tensor<2, Int>>,
    /// True at the padding token, which learns no vector where it stands, if there is one. Shape `[rows, length]`.
    pub pads: Option<Tensor<2, Bool>>,
    /// How many tokens of each row are real, on the host.
    pub tokens: Vec<usize>,
    /// What is to be learned.
    pub labels: L,
}

/// It has no float but, perhaps, labels.
impl<L> epl_core::Batch for BertBatch<L> {}

impl<L> BertBatch<L> {
    /// Rows and tokens of a row.
    pub fn dims(&self) -> [usize; 2] {
        self.ids.dims()
    }

    /// Pads rows, and makes their labels by `labels`, which is given the length.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a row does not fit the model: here it is still on the host, where looking costs little.
    pub(super) fn new<I>(
        items: &[BertItem<I>],
        config: &BertConfig,
        device: &Device,
        labels: impl FnOnce(usize) -> L,
    ) -> Self {
        for (row, item) in items.iter().enumerate() {
            if let Some(fault) = item.fault(config) {
                unwind(Error::invalid(format!("row {row} of a batch has {fault}")));
            }
        }
        let length = items.iter().map(|item| item.ids.len()).max().unwrap_or(1);
        let ids: Vec<&[i64]> = items.iter().map(|item| &*item.ids).collect();
        let types: Vec<&[i64]> = items.iter().map(|item| &*item.token_types).collect();
        let is_pad = |item: &BertItem<I>, token: usize| item.ids.get(token).is_none_or(|id| *id == config.pad);
        let pads: Vec<bool> = items.iter().flat_map(|item| (0..length).map(move |token| is_pad(item, token))).collect();
        let truths =
            |truths: Vec<bool>| Tensor::<2, Bool>::from_data(TensorData::new(truths, [items.len(), length]), device);
        let positions = || {
            let rows: Vec<Vec<i64>> = pads.chunks(length.max(1)).map(|pads| positions(config, pads)).collect();
            padded(&rows, 0, length, device)
        };
        let positions = (config.first_position() > 0).then(positions);
        let padding: Vec<bool> = items.iter().flat_map(|item| (0..length).map(|token| token >= item.tokens)).collect();
        Self {
            ids: padded(&ids, config.pad, length, device),
            token_types: padded(&types, 0, length, device),
            padding: truths(padding),
            positions,
            pads: pads.contains(&true).then(|| truths(pads)),
            tokens: items.iter().map(|item| item.tokens).collect(),
            labels: labels(length),
        }
    }
}

/// The positions of a row of which it is known which tokens are padding: that has the one before the first, wherever it stands.
fn positions(config: &BertConfig, pads: &[bool]) -> Vec<i64> {
    let before = config.first_position() as i64 - 1;
    let next = |position: &mut i64, is_pad: &bool| {
        *position += i64::from(!is_pad);
        Some(if *is_pad { before } else { *position })
    };
    pads.iter().scan(before, next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(ids: &[i64], types: &[i64]) -> BertItem<()> {
        BertItem::new(ids.to_vec(), types.to_vec(), ())
    }

    fn batch(items: &[BertItem<()>]) -> BertBatch<usize> {
        let config = BertConfig::new(10).with_positions(4).with_pad(7);
        BertBatch::new(items, &config, &Device::default(), |length| length)
    }

    #[test]
    fn rows_are_padded_to_the_longest() {
        let mut partly = item(&[4, 5, 6], &[0, 1, 1]);
        partly.tokens = 2;
        let batch = batch(&[item(&[1, 2], &[0, 1]), partly]);
        let ints = |tensor: Tensor<2, Int>| tensor.into_data().iter::<i64>().collect::<Vec<_>>();
        assert_eq!(ints(batch.ids), [1, 2, 7, 4, 5, 6]);
        assert_eq!(ints(batch.token_types), [0, 1, 0, 0, 1, 1]);
        let padding: Vec<bool> = batch.padding.into_data().iter().collect();
        assert_eq!(padding, [false, false, true, false, false, true]);
        assert_eq!((batch.tokens, batch.labels), (vec![2, 2], 3));
        assert!(batch.positions.is_none());
        let pads: Vec<bool> = batch.pads.expect("one stands there").into_data().iter().collect();
        assert_eq!(pads, [false, false, true, false, false, false]);
    }

    #[test]
    fn positions_of_a_roberta_leave_padding_out() {
        let config = BertConfig::roberta_base(10).with_positions(6);
        let items = [item(&[4, 1, 5], &[0; 3]), item(&[6], &[0])];
        let batch = BertBatch::new(&items, &config, &Device::default(), |_| ());
        let positions = batch.positions.expect("they are counted from 2");
        assert_eq!(positions.into_data().iter::<i64>().collect::<Vec<_>>(), [2, 1, 3, 2, 1, 1]);
        let whole = BertBatch::new(&[item(&[4, 5], &[0; 2])], &config, &Device::default(), |_| ());
        assert!(whole.pads.is_none());
    }

    #[test]
    fn rows_that_do_not_fit_are_named() {
        for (wrong, expected) in [
            (item(&[10], &[0]), "row 1 of a batch has token 10; the tokens of the model are 0 to 9"),
            (item(&[1], &[2]), "row 1 of a batch has type 2; the types of the model are 0 to 1"),
            (item(&[1, 2], &[0]), "row 1 of a batch has 2 tokens, 1 types and 2 real tokens"),
            (item(&[], &[]), "row 1 of a batch has 0 tokens, 0 types and 0 real tokens"),
            (item(&[1; 5], &[0; 5]), "row 1 of a batch has 5 tokens; the model has 4 positions"),
        ] {
            let rows = [item(&[9], &[0]), wrong];
            let error = epl_comm::catch(|| batch(&rows)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
