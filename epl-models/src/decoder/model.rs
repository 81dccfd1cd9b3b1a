//! The whole model.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_comm::{Error, Split, unwind};
use epl_core::{Context, Model, Place};
use epl_modules::{Norm, NormConfig, SplitLinear, SplitLinearConfig, TransformerLayer, softcap};

use super::batch::DecoderBatch;
use super::carry::DecoderCarry;
use super::config::DecoderConfig;
use super::embeddings::DecoderEmbeddings;
use super::layer::{layer, normal};

/// A causal decoder: at each position it writes the next token.
///
/// Attention, feed-forward networks and the vocabulary are split over the tensor axis. Made by [`DecoderConfig::init`].
///
/// ```
/// use burn::{data::dataloader::batcher::Batcher, optim::AdamWConfig};
/// use epl_core::{Config, Engine, MicroBatch, launch};
/// use epl_models::decoder::{DecoderBatcher, DecoderConfig, DecoderItem};
///
/// let shape = DecoderConfig::new(50).with_d_model(16).with_d_ff(32).with_heads(2).with_layers(2).with_positions(32);
/// launch(&Config::new().with("cluster.ranks", 2)?, |epl| {
///     let mut engine = Engine::build(&epl, |at| shape.init(at), &AdamWConfig::new())?;
///     // A row of its own on each rank. A `Trainer` gives them out by itself, of a `TrainData` with this batcher.
///     let rank = epl.context().world().rank();
///     let row = DecoderItem::new(vec![3, 1, 4, 1, 5 + rank as i64]);
///     let batch = DecoderBatcher::new(&shape).batch(vec![row], epl.place().device());
///     let report = engine.step(vec![MicroBatch::new(batch, [rank as u64])], 1e-3)?;
///     assert!(report.loss.is_finite());
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Decoder {
    /// From tokens to the first hidden states.
    pub embeddings: DecoderEmbeddings,
    /// The layers.
    pub layers: Vec<TransformerLayer>,
    /// Normalises what leaves the last layer.
    pub final_norm: Norm,
    /// The head when it is not tied.
    pub head: Option<SplitLinear>,
    #[module(skip)]
    config: DecoderConfig,
    #[module(skip)]
    context: Context,
}

impl DecoderConfig {
    /// Lays out the model; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as heads of keys that the tensor axis
    /// does not divide.
    pub fn init(&self, place: &Place) -> Decoder {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        let layers = place.child("layers");
        let head = SplitLinearConfig::new(self.d_model, self.vocab).with_bias(false).with_initializer(normal(self));
        Decoder {
            embeddings: DecoderEmbeddings::new(self, &place.child("embeddings")),
            layers: (0..self.layers).map(|index| layer(self, index).init(&layers.child(&index.to_string()))).collect(),
            final_norm: NormConfig::new(self.d_model)
                .with_kind(self.norm)
                .with_epsilon(self.epsilon)
                .with_zero_centered_gamma(self.zero_centered_gamma)
                .init(&place.child("final_norm")),
            head: (!self.tied_head).then(|| head.init(&place.child("head"))),
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl Decoder {
    /// The shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The logits of every position. Collective over the tensor axis. With pipeline stages no rank has the whole model: then
    /// only the engine runs it.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, length, vocab]`
    pub fn forward(&self, batch: &DecoderBatch) -> Tensor<3> {
        self.logits_of(self.forward_all(batch))
    }

    /// The logits of every position, from what the last segment returned. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, length, vocab]`
    pub fn logits_of(&self, carry: DecoderCarry) -> Tensor<3> {
        self.split(carry.hidden).all_gather()
    }

    /// The logits of this rank's classes, from what the last layer returned.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, length, d_model]`
    /// - output: split along the last dim of `[rows, length, vocab]`
    pub(super) fn logits(&self, hidden: Tensor<3>) -> Split<3> {
        let hidden = self.final_norm.forward(hidden);
        let logits = match &self.head {
            Some(head) => head.forward(hidden),
            None => self.embeddings.tokens.logits(hidden),
        };
        match self.config.logit_softcap {
            Some(cap) => self.split(softcap(logits.local(), cap)),
            None => logits,
        }
    }

    /// This rank's classes as what they are.
    pub(super) fn split<const D: usize>(&self, logits: Tensor<D>) -> Split<D> {
        Split::from_local(logits, D - 1, self.config.vocab, self.context.tensor())
    }
}
