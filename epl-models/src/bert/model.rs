//! The whole model.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use epl_comm::{Error, unwind};
use epl_core::{Context, Model, Place};
use epl_modules::TransformerLayer;

use super::batch::BertBatch;
use super::carry::BertCarry;
use super::classification::SequenceClassification;
use super::config::BertConfig;
use super::embeddings::BertEmbeddings;
use super::head::BertHead;
use super::layer::layer;
use super::masked_language::MaskedLanguage;
use super::pretraining::Pretraining;
use super::question_answering::QuestionAnswering;

/// A BERT with a head.
///
/// Attention, feed-forward networks and the vocabulary are split over the tensor axis. Made by
/// [`BertConfig::init_question_answering`] and its like.
#[derive(Module, Debug)]
pub struct Bert<H> {
    /// From tokens to the first hidden states.
    pub embeddings: BertEmbeddings,
    /// The encoder.
    pub layers: Vec<TransformerLayer>,
    /// From hidden states to logits.
    pub head: H,
    #[module(skip)]
    config: BertConfig,
    #[module(skip)]
    context: Context,
}

/// Finds the answer to a question in a text.
pub type BertForQuestionAnswering = Bert<QuestionAnswering>;
/// Says which tokens were hidden.
pub type BertForMaskedLanguage = Bert<MaskedLanguage>;
/// Says which tokens were hidden, and whether a text follows another.
pub type BertForPretraining = Bert<Pretraining>;
/// Classifies rows.
pub type BertForSequenceClassification = Bert<SequenceClassification>;

impl BertConfig {
    /// Lays out a model that finds answers; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as heads that the tensor axis
    /// does not divide; likewise for the others.
    pub fn init_question_answering(&self, place: &Place) -> BertForQuestionAnswering {
        self.init_with(place, |place| QuestionAnswering::new(self, place))
    }

    /// Lays out a model that says which tokens were hidden.
    pub fn init_masked_language(&self, place: &Place) -> BertForMaskedLanguage {
        self.init_with(place, |place| MaskedLanguage::new(self, place))
    }

    /// Lays out a model that says which tokens were hidden, and whether a text follows another. `transformers` has no such RoBERTa:
    /// one cannot be exported.
    pub fn init_pretraining(&self, place: &Place) -> BertForPretraining {
        self.init_with(place, |place| Pretraining::new(self, place))
    }

    /// Lays out a model that classifies rows.
    pub fn init_classification(&self, place: &Place) -> BertForSequenceClassification {
        self.init_with(place, |place| SequenceClassification::new(self, place))
    }

    /// Lays out a model with a head of the caller's, which is given its place.
    pub fn init_with<H>(&self, place: &Place, head: impl FnOnce(&Place) -> H) -> Bert<H> {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        let layers = place.child("layers");
        Bert {
            embeddings: BertEmbeddings::new(self, &place.child("embeddings")),
            layers: (0..self.layers).map(|index| layer(self).init(&layers.child(&index.to_string()))).collect(),
            head: head(&place.child("head")),
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl<H: BertHead> Bert<H> {
    /// The shape.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.embeddings.words.weight.lazy_device()
    }

    /// The logits of a batch. Collective over the tensor axis. With pipeline stages no rank has the whole model: then
    /// only the engine runs it.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, length, 2]` of start and end, `[rows, length, vocab]`, or `[rows, 1, classes]`
    pub fn forward(&self, batch: &BertBatch<H::Labels>) -> Tensor<3> {
        self.logits_of(self.forward_all(batch))
    }

    /// The logits of a batch, from what the last segment returned. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - output: as of [`forward`](Self::forward)
    pub fn logits_of(&self, carry: BertCarry) -> Tensor<3> {
        self.head.whole(carry.hidden)
    }
}
