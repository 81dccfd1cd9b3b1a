//! A head that says which token stands at each position: the one that was hidden.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};
use epl_comm::{Error, Split, unwind};
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Loss, LossWeights, Place};
use epl_modules::{Activation, LayerNorm, LayerNormConfig, ReplicatedLinear, SplitCrossEntropyConfig, SplitEmbedding};

use super::architecture::BertArchitecture;
use super::batch::{BertBatch, BertItem};
use super::carry::BertCarry;
use super::config::BertConfig;
use super::head::BertHead;
use super::layer::linear;
use crate::huggingface::{Reference, Result};
use crate::rows::{IGNORED, ignored_if_negative, padded};

/// The loss of the tokens.
const CROSS_ENTROPY: &str = "cross_entropy";

/// `norm(f(x A)) Wᵀ + b`, where W are the vectors of the tokens; the tokens are split over the tensor axis.
#[derive(Module, Debug)]
pub struct MaskedLanguage {
    /// `[d_model, d_model]`
    pub transform: ReplicatedLinear,
    /// Normalises what is activated.
    pub norm: LayerNorm,
    /// This rank's share of `[vocab]`
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    vocab: usize,
    #[module(skip)]
    context: Context,
}

/// The tokens that were hidden in a batch.
#[derive(Clone, Debug)]
pub struct TokenLabels {
    /// The token at each position, [`IGNORED`] where it does not count. Shape `[rows, length]`.
    pub targets: Tensor<2, Int>,
    /// How many count.
    pub counted: usize,
}

impl MaskedLanguage {
    pub(super) fn new(config: &BertConfig, place: &Place) -> Self {
        Self {
            transform: linear(config, config.d_model).init(&place.child("transform")),
            norm: LayerNormConfig::new(config.d_model).with_epsilon(config.epsilon).init(&place.child("norm")),
            bias: place.split_param([config.vocab], &[(Axis::Tensor, 0)], Initializer::Zeros),
            activation: match config.architecture {
                BertArchitecture::Bert => config.activation,
                BertArchitecture::Roberta => Activation::Gelu,
            },
            vocab: config.vocab,
            context: place.context().clone(),
        }
    }

    /// The labels of rows, each beside the number of its tokens.
    pub(super) fn token_labels<'a>(
        given: impl Iterator<Item = (&'a [i64], usize)>,
        length: usize,
        config: &BertConfig,
        device: &Device,
    ) -> TokenLabels {
        let mut rows = Vec::new();
        for (row, (label, ids)) in given.enumerate() {
            let unknown = label.iter().find(|token| usize::try_from(**token).is_ok_and(|t| t >= config.vocab));
            if let Some(token) = unknown {
                let last = config.vocab - 1;
                unwind(Error::invalid(format!("row {row} of a batch has label {token}; the tokens are 0 to {last}")));
            }
            if label.len() != ids {
                let labels = label.len();
                unwind(Error::invalid(format!("row {row} of a batch has {labels} labels for {ids} tokens")));
            }
            rows.push(label.iter().copied().map(ignored_if_negative).collect::<Vec<_>>());
        }
        let counted = rows.iter().flatten().filter(|token| **token >= 0).count();
        TokenLabels { targets: padded(&rows, IGNORED, length, device), counted }
    }

    /// The sum of the losses of all tokens that count, from this rank's logits.
    pub(super) fn sum(&self, logits: Tensor<3>, labels: &TokenLabels) -> Tensor<1> {
        let [rows, length, classes] = logits.dims();
        let logits = self.split(logits.reshape([rows * length, classes]));
        let criterion = SplitCrossEntropyConfig::new().with_ignore_index(IGNORED).init(&self.context);
        criterion.forward(logits, labels.targets.clone().reshape([rows * length]))
    }

    /// This rank's classes as what they are.
    fn split<const D: usize>(&self, logits: Tensor<D>) -> Split<D> {
        Split::from_local(logits, D - 1, self.vocab, self.context.tensor())
    }
}

impl BertHead for MaskedLanguage {
    /// The token at each position; a negative one does not count. As many as the row has.
    type Label = Vec<i64>;
    type Labels = TokenLabels;

    const USES_WORDS: bool = true;

    fn labels(items: &[BertItem<Self::Label>], length: usize, config: &BertConfig, device: &Device) -> TokenLabels {
        let rows = items.iter().map(|item| (item.label.as_slice(), item.ids.len()));
        Self::token_labels(rows, length, config, device)
    }

    fn logits(&self, hidden: Tensor<3>, words: &SplitEmbedding) -> Tensor<3> {
        let hidden = self.norm.forward(self.activation.forward(self.transform.forward(hidden)));
        words.biased_logits(hidden, Some(self.bias.val())).local()
    }

    fn whole(&self, logits: Tensor<3>) -> Tensor<3> {
        self.split(logits).all_gather()
    }

    fn weights(labels: &TokenLabels) -> LossWeights {
        LossWeights::new().with(CROSS_ENTROPY, labels.counted as f64)
    }

    fn loss(&self, carry: BertCarry, batch: &BertBatch<TokenLabels>) -> Loss {
        Loss::new().with(CROSS_ENTROPY, self.sum(carry.hidden, &batch.labels), 1.0)
    }

    fn reference_labels(reference: &Reference) -> Result<Vec<Self::Label>> {
        reference.rows("labels")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(label: Vec<i64>) -> TokenLabels {
        let items = [BertItem::new(vec![1, 2], vec![0, 0], vec![-1, 5]), BertItem::new(vec![3; 3], vec![0; 3], label)];
        MaskedLanguage::labels(&items, 3, &BertConfig::new(9), &Device::default())
    }

    #[test]
    fn labels_are_padded_and_counted() {
        let labels = labels(vec![8, -100, 0]);
        assert_eq!(labels.targets.into_data().iter::<i64>().collect::<Vec<_>>(), [-100, 5, -100, 8, -100, 0]);
        assert_eq!(labels.counted, 3);
    }

    #[test]
    fn labels_that_do_not_fit_are_named() {
        for (label, expected) in [
            (vec![9, 0, 0], "row 1 of a batch has label 9; the tokens are 0 to 8"),
            (vec![0, 0], "row 1 of a batch has 2 labels for 3 tokens"),
        ] {
            let error = epl_comm::catch(|| labels(label)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
