//! What a head is: from hidden states to logits, and their loss.

use core::marker::PhantomData;

use burn::data::dataloader::batcher::Batcher;
use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Device, Tensor};
use epl_core::{Loss, LossWeights};
use epl_modules::SplitEmbedding;

use super::batch::{BertBatch, BertItem};
use super::carry::BertCarry;
use super::config::BertConfig;
use crate::huggingface::{Reference, Result};

/// What stands behind the encoder.
pub trait BertHead: Module + ModuleDisplay {
    /// What is to be learned of one row.
    type Label: Clone + Send + Sync + 'static;

    /// The labels of a batch.
    type Labels: Clone + Send + 'static;

    /// Whether the head uses the vectors of the tokens, so that they belong to two segments.
    const USES_WORDS: bool;

    /// Whether the tokens of a row are the classes of its loss.
    const TOKENS_ARE_CLASSES: bool = false;

    /// Whether it is that of pretraining, whose classes are those of sentences.
    const IS_PRETRAINING: bool = false;

    /// Where its parts stand in the model.
    const PATHS: HeadPaths = HeadPaths { masked: "head", classified: "head" };

    /// The labels of rows that are padded to `length`.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a label cannot be.
    fn labels(items: &[BertItem<Self::Label>], length: usize, config: &BertConfig, device: &Device) -> Self::Labels;

    /// This rank's logits. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, length, d_model]`
    /// - output: `[rows, length or 1, classes or this rank's share of them]`
    fn logits(&self, hidden: Tensor<3>, words: &SplitEmbedding) -> Tensor<3>;

    /// The logits of whole rows, beside those of tokens. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, length, d_model]`
    /// - output: `[rows, 1, classes]`
    fn sentence_logits(&self, _hidden: Tensor<3>, _words: &SplitEmbedding) -> Option<Tensor<3>> {
        None
    }

    /// The logits of all classes, from this rank's. Collective over the tensor axis.
    fn whole(&self, logits: Tensor<3>) -> Tensor<3> {
        logits
    }

    /// The weights of the loss terms.
    fn weights(labels: &Self::Labels) -> LossWeights;

    /// The loss of what the last segment returned. Collective over the tensor axis.
    fn loss(&self, carry: BertCarry, batch: &BertBatch<Self::Labels>) -> Loss;

    /// The labels that are stored with a model's outputs, for parity tests.
    ///
    /// # Errors
    ///
    /// When they are missing or of another form.
    fn reference_labels(reference: &Reference) -> Result<Vec<Self::Label>>;
}

/// The paths at which parts of a head stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPaths {
    /// Of what says which tokens were hidden.
    pub masked: &'static str,
    /// Of what classifies rows.
    pub classified: &'static str,
}

/// Makes a [`BertBatch`] of rows with the labels of a head.
#[derive(Debug)]
pub struct BertBatcher<H> {
    config: BertConfig,
    head: PhantomData<fn() -> H>,
}

impl<H> Clone for BertBatcher<H> {
    fn clone(&self) -> Self {
        Self::new(&self.config)
    }
}

impl<H> BertBatcher<H> {
    /// For models of this shape.
    pub fn new(config: &BertConfig) -> Self {
        Self { config: config.clone(), head: PhantomData }
    }
}

impl<H: BertHead> Batcher<BertItem<H::Label>, BertBatch<H::Labels>> for BertBatcher<H> {
    fn batch(&self, items: Vec<BertItem<H::Label>>, device: &Device) -> BertBatch<H::Labels> {
        BertBatch::new(&items, &self.config, device, |length| H::labels(&items, length, &self.config, device))
    }
}
