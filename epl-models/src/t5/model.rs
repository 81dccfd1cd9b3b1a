//! The whole model.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};
use epl_comm::{Error, Split, unwind};
use epl_core::model::precision::in_wide;
use epl_core::{Context, Model, Place};
use epl_modules::{SplitEmbedding, SplitEmbeddingConfig, SplitLinear, SplitLinearConfig};

use super::batch::T5Batch;
use super::carry::T5Carry;
use super::config::T5Config;
use super::stack::Stack;

/// A T5: reads a sequence of tokens and writes another one.
///
/// Attention, feed-forward networks, experts and vocabulary are split over the tensor axis, experts also over the
/// expert axis. Made by [`T5Config::init`].
#[derive(Module, Debug)]
pub struct T5 {
    /// The embedding of both sides, and the head when it is tied.
    pub embedding: SplitEmbedding,
    /// The encoder.
    pub encoder: Stack,
    /// The decoder.
    pub decoder: Stack,
    /// The head when it is not tied.
    pub head: Option<SplitLinear>,
    #[module(skip)]
    config: T5Config,
    #[module(skip)]
    context: Context,
}

impl T5Config {
    /// Lays out the model; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as heads that the tensor
    /// axis does not divide.
    pub fn init(&self, place: &Place) -> T5 {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        let normal = Initializer::Normal { mean: 0.0, std: (self.d_model as f64).powf(-0.5) };
        let head = SplitLinearConfig::new(self.d_model, self.vocab).with_bias(false).with_initializer(normal);
        T5 {
            embedding: SplitEmbeddingConfig::new(self.vocab, self.d_model).init(&place.child("embedding")),
            encoder: Stack::encoder(self, &place.child("encoder")),
            decoder: Stack::decoder(self, &place.child("decoder")),
            head: (!self.tied_head).then(|| head.init(&place.child("head"))),
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl T5 {
    /// The shape.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.embedding.weight.lazy_device()
    }

    /// The logits of every position. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, target length, vocab]`
    pub fn forward(&self, batch: &T5Batch) -> Tensor<3> {
        self.logits_of(self.forward_all(batch))
    }

    /// The logits of every position, from what the last segment returned. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, target length, vocab]`
    pub fn logits_of(&self, carry: T5Carry) -> Tensor<3> {
        self.split(carry.hidden).all_gather()
    }

    /// The vectors of tokens.
    ///
    /// # Shapes
    ///
    /// - tokens: `[rows, positions]`
    /// - output: `[rows, positions, d_model]`
    pub(super) fn embed(&self, tokens: &Tensor<2, Int>) -> Tensor<3> {
        self.embedding.forward(tokens.clone())
    }

    /// The logits of this rank's classes, from what the last decoder block returned.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, positions, d_model]`
    /// - output: split along the last dim of `[rows, positions, vocab]`
    pub(super) fn logits(&self, hidden: Tensor<3>) -> Split<3> {
        let hidden = self.decoder.leave(hidden);
        let hidden = match self.config.scaled_head {
            true => in_wide(hidden, |hidden| hidden * (self.config.d_model as f64).powf(-0.5)),
            false => hidden,
        };
        match &self.head {
            Some(head) => head.forward(hidden),
            None => self.embedding.logits(hidden),
        }
    }

    /// This rank's classes as what they are.
    pub(super) fn split<const D: usize>(&self, logits: Tensor<D>) -> Split<D> {
        Split::from_local(logits, D - 1, self.config.vocab, self.context.tensor())
    }
}
