//! The head that BERT is pretrained with: which tokens were hidden, and whether the second text follows the first.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use epl_core::{Loss, LossWeights, Place};
use epl_modules::SplitEmbedding;

use super::batch::{BertBatch, BertItem};
use super::carry::BertCarry;
use super::classification::{ClassLabels, SequenceClassification};
use super::config::BertConfig;
use super::head::{BertHead, HeadPaths};
use super::masked_language::{MaskedLanguage, TokenLabels};
use crate::huggingface::{Reference, Result};

/// The loss of the tokens.
const MASKED_TOKENS: &str = "masked_tokens";
/// The loss of the next sentence.
const NEXT_SENTENCE: &str = "next_sentence";

/// A [`MaskedLanguage`] head, and one that says of each row whether its second text follows the first (class 0) or is any other
/// (class 1). Its loss is the sum of both.
///
/// [`Bert::forward`](super::Bert::forward) gives the logits of the tokens; those of the sentences are
/// [`BertCarry::sentence`].
#[derive(Module, Debug)]
pub struct Pretraining {
    /// Says which tokens were hidden.
    pub masked: MaskedLanguage,
    /// Says what the second text is.
    pub sentence: SequenceClassification,
}

/// What is to be learned of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PretrainingLabel {
    /// The token at each position; a negative one does not count. As many as the row has.
    pub tokens: Vec<i64>,
    /// 0 where the second text follows the first, 1 where it is any other; a negative one does not count.
    pub sentence: i64,
}

impl Pretraining {
    pub(super) fn new(config: &BertConfig, place: &Place) -> Self {
        Self {
            masked: MaskedLanguage::new(config, &place.child("masked")),
            sentence: SequenceClassification::of_sentences(config, &place.child("sentence")),
        }
    }
}

impl BertHead for Pretraining {
    type Label = PretrainingLabel;
    /// Of the tokens, and of the sentences.
    type Labels = (TokenLabels, ClassLabels);

    const USES_WORDS: bool = true;
    const IS_PRETRAINING: bool = true;
    const PATHS: HeadPaths = HeadPaths { masked: "head.masked", classified: "head.sentence" };

    fn labels(items: &[BertItem<Self::Label>], length: usize, config: &BertConfig, device: &Device) -> Self::Labels {
        let tokens = items.iter().map(|item| (item.label.tokens.as_slice(), item.ids.len()));
        let sentences = items.iter().map(|item| item.label.sentence);
        (
            MaskedLanguage::token_labels(tokens, length, config, device),
            SequenceClassification::class_labels(sentences, SequenceClassification::SENTENCES, device),
        )
    }

    fn logits(&self, hidden: Tensor<3>, words: &SplitEmbedding) -> Tensor<3> {
        self.masked.logits(hidden, words)
    }

    fn sentence_logits(&self, hidden: Tensor<3>, words: &SplitEmbedding) -> Option<Tensor<3>> {
        Some(self.sentence.logits(hidden, words))
    }

    fn whole(&self, logits: Tensor<3>) -> Tensor<3> {
        self.masked.whole(logits)
    }

    fn weights((tokens, sentences): &Self::Labels) -> LossWeights {
        let weights = LossWeights::new().with(MASKED_TOKENS, tokens.counted as f64);
        weights.with(NEXT_SENTENCE, sentences.counted as f64)
    }

    fn loss(&self, carry: BertCarry, batch: &BertBatch<Self::Labels>) -> Loss {
        let (tokens, sentences) = &batch.labels;
        let logits = carry.sentence.expect("the last segment makes them");
        Loss::new().with(MASKED_TOKENS, self.masked.sum(carry.hidden, tokens), 1.0).with(
            NEXT_SENTENCE,
            self.sentence.sum(logits, sentences),
            1.0,
        )
    }

    fn reference_labels(reference: &Reference) -> Result<Vec<Self::Label>> {
        let tokens = MaskedLanguage::reference_labels(reference)?;
        let sentences: Vec<i64> = reference.input("next_sentence_label")?.iter::<i64>().collect();
        if tokens.len() != sentences.len() {
            let (tokens, sentences) = (tokens.len(), sentences.len());
            return Err(reference.error(format!("labels of {tokens} rows, and of {sentences} sentences")));
        }
        let of = |(tokens, sentence)| PretrainingLabel { tokens, sentence };
        Ok(tokens.into_iter().zip(sentences).map(of).collect())
    }
}
