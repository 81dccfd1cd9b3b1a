//! A head that finds the answer to a question in a text: where it begins and where it ends.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use epl_core::model::output::{Combine, Merge};
use epl_core::model::precision::widen;
use epl_core::{Context, Loss, LossWeights, Place};
use epl_modules::{ReplicatedLinear, SplitEmbedding};

use super::batch::{BertBatch, BertItem};
use super::carry::BertCarry;
use super::config::BertConfig;
use super::cross_entropy::{cross_entropy, without};
use super::head::BertHead;
use super::layer::linear;
use crate::huggingface::{Reference, Result};
use crate::rows::IGNORED;

/// The output of an evaluation: the logits of start and end of all real tokens, row after row. Shape `[tokens, 2]`.
pub const ANSWER_LOGITS: &str = "answer_logits";

/// The loss of the first tokens.
const START: &str = "start";
/// The loss of the last tokens.
const END: &str = "end";

/// Two logits a token: that the answer begins there, and that it ends there.
///
/// The loss is the mean of two cross-entropies, over the tokens as classes.
#[derive(Module, Debug)]
pub struct QuestionAnswering {
    /// `[d_model, 2]`: start and end
    pub answers: ReplicatedLinear,
    #[module(skip)]
    in_padding: bool,
    #[module(skip)]
    context: Context,
}

/// Where the answers of a batch are.
#[derive(Clone, Debug)]
pub struct AnswerLabels {
    /// The first token of each row's answer, [`IGNORED`] outside the row. Shape `[rows]`.
    pub start: Tensor<1, Int>,
    /// The last token. Shape `[rows]`.
    pub end: Tensor<1, Int>,
    /// How many first tokens count.
    pub starts: usize,
    /// How many last tokens count.
    pub ends: usize,
}

impl QuestionAnswering {
    pub(super) fn new(config: &BertConfig, place: &Place) -> Self {
        place.context().declare_output(ANSWER_LOGITS, Merge::Global(Combine::Concat));
        Self {
            answers: linear(config, 2).init(&place.child("answers")),
            in_padding: config.answers_in_padding,
            context: place.context().clone(),
        }
    }

    /// Hands out the logits of real tokens: rows padded to different lengths fit together.
    fn hand_out(&self, logits: &Tensor<3>, tokens: &[usize]) {
        if self.context.is_training() {
            return;
        }
        let [rows, length, two] = logits.dims();
        let of_row = |(row, tokens): (usize, &usize)| (0..*tokens).map(move |token| (row * length + token) as i64);
        let real: Vec<i64> = tokens.iter().enumerate().flat_map(of_row).collect();
        let real = Tensor::<1, Int>::from_data(real.as_slice(), &logits.device());
        self.context.output(ANSWER_LOGITS, widen(logits.clone()).reshape([rows * length, two]).select(0, real));
    }
}

impl BertHead for QuestionAnswering {
    /// The first and the last token of the answer; a token outside the row does not count.
    type Label = (usize, usize);
    type Labels = AnswerLabels;

    const USES_WORDS: bool = false;
    const TOKENS_ARE_CLASSES: bool = true;

    fn labels(items: &[BertItem<Self::Label>], length: usize, config: &BertConfig, device: &Device) -> AnswerLabels {
        let targets = |token: fn(&Self::Label) -> usize| -> (Tensor<1, Int>, usize) {
            let target = |item: &BertItem<_>| {
                let end = if config.answers_in_padding { length } else { item.tokens };
                let token = token(&item.label);
                if token < end { token as i64 } else { IGNORED }
            };
            let targets: Vec<i64> = items.iter().map(target).collect();
            let counted = targets.iter().filter(|target| **target >= 0).count();
            (Tensor::from_data(targets.as_slice(), device), counted)
        };
        let ((start, starts), (end, ends)) = (targets(|label| label.0), targets(|label| label.1));
        AnswerLabels { start, end, starts, ends }
    }

    fn logits(&self, hidden: Tensor<3>, _words: &SplitEmbedding) -> Tensor<3> {
        self.answers.forward(hidden)
    }

    fn weights(labels: &AnswerLabels) -> LossWeights {
        LossWeights::new().with(START, labels.starts as f64).with(END, labels.ends as f64)
    }

    fn loss(&self, carry: BertCarry, batch: &BertBatch<AnswerLabels>) -> Loss {
        let logits = carry.hidden;
        self.hand_out(&logits, &batch.tokens);
        let [rows, length, _] = logits.dims();
        let of = |which: usize| {
            let logits = logits.clone().slice([0..rows, 0..length, which..which + 1]).reshape([rows, length]);
            if self.in_padding { logits } else { without(logits, batch.padding.clone()) }
        };
        Loss::new().with(START, cross_entropy(of(0), batch.labels.start.clone()), 0.5).with(
            END,
            cross_entropy(of(1), batch.labels.end.clone()),
            0.5,
        )
    }

    fn reference_labels(reference: &Reference) -> Result<Vec<Self::Label>> {
        let tokens = |name: &str| -> Result<Vec<usize>> {
            let tokens = reference.input(name)?;
            let token = |token: i64| {
                let wrong = || reference.error(format!("`{name}` has token {token}; it should be at least 0"));
                usize::try_from(token).map_err(|_| wrong())
            };
            tokens.iter::<i64>().map(token).collect()
        };
        Ok(tokens("start_positions")?.into_iter().zip(tokens("end_positions")?).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_outside_a_row_do_not_count() {
        let item = |tokens: usize, label| BertItem { ids: vec![1; 4], token_types: vec![0; 4], tokens, label };
        let items = [item(4, (1, 3)), item(2, (1, 2)), item(3, (7, 9))];
        let labels = |in_padding: bool| {
            let config = BertConfig::new(9).with_answers_in_padding(in_padding);
            let labels = QuestionAnswering::labels(&items, 4, &config, &Device::default());
            let [start, end] =
                [labels.start, labels.end].map(|token| token.into_data().iter::<i64>().collect::<Vec<_>>());
            (start, end, labels.starts, labels.ends)
        };
        assert_eq!(labels(false), (vec![1, 1, IGNORED], vec![3, IGNORED, IGNORED], 2, 1));
        // The third token of the second row is padding.
        assert_eq!(labels(true), (vec![1, 1, IGNORED], vec![3, 2, IGNORED], 2, 2));
    }
}
