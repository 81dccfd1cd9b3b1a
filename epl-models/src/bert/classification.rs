//! A head that classifies a row by its first token.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use epl_comm::{Error, unwind};
use epl_core::{Loss, LossWeights, Place};
use epl_modules::{Dropout, DropoutConfig, ReplicatedLinear, SplitEmbedding};

use super::architecture::BertArchitecture;
use super::batch::{BertBatch, BertItem};
use super::carry::BertCarry;
use super::config::BertConfig;
use super::cross_entropy::cross_entropy;
use super::head::BertHead;
use super::layer::linear;
use crate::huggingface::{Reference, Result};
use crate::rows::ignored_if_negative;

/// The loss of the classes.
const CROSS_ENTROPY: &str = "cross_entropy";

/// `dropout(tanh(x₀ P)) C`, where x₀ is the first token's state: the pooler and the classes.
#[derive(Module, Debug)]
pub struct SequenceClassification {
    /// Dropout of the first token's state.
    pub state_dropout: Dropout,
    /// `[d_model, d_model]`
    pub pooler: ReplicatedLinear,
    /// Dropout of the features.
    pub dropout: Dropout,
    /// `[d_model, classes]`
    pub classifier: ReplicatedLinear,
}

/// The classes of a batch's rows.
#[derive(Clone, Debug)]
pub struct ClassLabels {
    /// The class of each row, [`IGNORED`](super::IGNORED) where it does not count. Shape `[rows]`.
    pub targets: Tensor<1, Int>,
    /// How many count.
    pub counted: usize,
}

impl SequenceClassification {
    /// The classes of sentences in pretraining: the next one, or any other.
    pub(super) const SENTENCES: usize = 2;

    pub(super) fn new(config: &BertConfig, place: &Place) -> Self {
        let dropout = config.classifier_dropout.unwrap_or(config.dropout);
        // A RoBERTa drops features of the encoder, too.
        let of_state = if config.architecture == BertArchitecture::Roberta { dropout } else { 0.0 };
        Self::with(config, place, config.classes, [of_state, dropout])
    }

    /// Of whether a text follows another one, without dropout.
    pub(super) fn of_sentences(config: &BertConfig, place: &Place) -> Self {
        Self::with(config, place, Self::SENTENCES, [0.0; 2])
    }

    fn with(config: &BertConfig, place: &Place, classes: usize, [of_state, of_features]: [f64; 2]) -> Self {
        Self {
            state_dropout: DropoutConfig::new(of_state).init(&place.child("state_dropout")),
            pooler: linear(config, config.d_model).init(&place.child("pooler")),
            dropout: DropoutConfig::new(of_features).init(&place.child("dropout")),
            classifier: linear(config, classes).init(&place.child("classifier")),
        }
    }

    /// The labels of rows, of so many classes.
    pub(super) fn class_labels(given: impl Iterator<Item = i64>, classes: usize, device: &Device) -> ClassLabels {
        let given: Vec<i64> = given.collect();
        let unknown = |class: i64| usize::try_from(class).is_ok_and(|class| class >= classes);
        if let Some((row, class)) = given.iter().enumerate().find(|(_, class)| unknown(**class)) {
            let last = classes - 1;
            unwind(Error::invalid(format!("row {row} of a batch has class {class}; the classes are 0 to {last}")));
        }
        let targets: Vec<i64> = given.into_iter().map(ignored_if_negative).collect();
        let counted = targets.iter().filter(|target| **target >= 0).count();
        ClassLabels { targets: Tensor::from_data(targets.as_slice(), device), counted }
    }

    /// The sum of the losses of all rows that count.
    pub(super) fn sum(&self, logits: Tensor<3>, labels: &ClassLabels) -> Tensor<1> {
        let [rows, _, classes] = logits.dims();
        cross_entropy(logits.reshape([rows, classes]), labels.targets.clone())
    }
}

impl BertHead for SequenceClassification {
    /// The class; a negative one does not count.
    type Label = i64;
    type Labels = ClassLabels;

    const USES_WORDS: bool = false;

    fn labels(items: &[BertItem<i64>], _length: usize, config: &BertConfig, device: &Device) -> ClassLabels {
        Self::class_labels(items.iter().map(|item| item.label), config.classes, device)
    }

    fn logits(&self, hidden: Tensor<3>, _words: &SplitEmbedding) -> Tensor<3> {
        let [rows, _, d_model] = hidden.dims();
        let first = hidden.slice([0..rows, 0..1, 0..d_model]);
        let features = self.pooler.forward(self.state_dropout.forward(first)).tanh();
        self.classifier.forward(self.dropout.forward(features))
    }

    fn weights(labels: &ClassLabels) -> LossWeights {
        LossWeights::new().with(CROSS_ENTROPY, labels.counted as f64)
    }

    fn loss(&self, carry: BertCarry, batch: &BertBatch<ClassLabels>) -> Loss {
        Loss::new().with(CROSS_ENTROPY, self.sum(carry.hidden, &batch.labels), 1.0)
    }

    fn reference_labels(reference: &Reference) -> Result<Vec<i64>> {
        Ok(reference.input("labels")?.iter::<i64>().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(classes: [i64; 3]) -> ClassLabels {
        let items = classes.map(|class| BertItem::new(vec![1], vec![0], class));
        SequenceClassification::labels(&items, 1, &BertConfig::new(9).with_classes(3), &Device::default())
    }

    #[test]
    fn negative_classes_do_not_count_and_unknown_ones_are_named() {
        let known = labels([2, -7, 0]);
        assert_eq!(known.targets.into_data().iter::<i64>().collect::<Vec<_>>(), [2, -100, 0]);
        assert_eq!(known.counted, 2);
        let error = epl_comm::catch(|| labels([0, 3, 0])).unwrap_err().to_string();
        assert!(error.contains("row 1 of a batch has class 3; the classes are 0 to 2"), "{error}");
    }
}
