//! The model as a chain of segments, with its loss.

use epl_core::{Incremental, Loss, LossWeights, Model};
use epl_modules::{RouterLosses, SplitCrossEntropyConfig, TransformerCache, TransformerInput, TransformerOutput};

use super::batch::T5Batch;
use super::carry::T5Carry;
use super::model::T5;
use crate::rows::IGNORED;

/// The loss of the targets.
const CROSS_ENTROPY: &str = "cross_entropy";
/// The load balancing loss.
const AUXILIARY: &str = "auxiliary";
/// The router's z loss.
const Z: &str = "z";

/// What a segment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum T5Segment {
    Encoder(usize),
    Decoder(usize),
    Head,
}

impl T5 {
    fn part(&self, segment: usize) -> T5Segment {
        let (encoder, decoder) = (self.encoder.blocks.len(), self.decoder.blocks.len());
        match segment {
            index if index < encoder => T5Segment::Encoder(index),
            index if index < encoder + decoder => T5Segment::Decoder(index - encoder),
            _ => T5Segment::Head,
        }
    }

    /// The carry that enters the first encoder block.
    pub(super) fn start(&self, batch: &T5Batch) -> T5Carry {
        let length = batch.source.dims()[1];
        T5Carry {
            hidden: self.encoder.enter(self.embed(&batch.source)),
            bias: Some(self.encoder.bias.forward(length, length, 0)),
            memory: None,
            losses: None,
        }
    }

    /// One encoder block; behind the last one the norm.
    fn encode(&self, index: usize, carry: T5Carry, batch: &T5Batch) -> T5Carry {
        let T5Carry { hidden, bias, memory, losses } = carry;
        let bias = bias.expect("the first block of the stack made it");
        let input = TransformerInput::new(hidden)
            .with_padding(batch.source_padding.clone())
            .with_bias(bias.clone())
            .with_tokens(batch.source_real.clone());
        let TransformerOutput { hidden, losses: more, .. } = self.encoder.blocks[index].forward(input);
        let losses = RouterLosses::add(losses, more);
        if index + 1 < self.encoder.blocks.len() {
            return T5Carry { hidden, bias: Some(bias), memory, losses };
        }
        T5Carry { hidden: self.encoder.leave(hidden), bias: None, memory, losses }
    }

    /// The carry that enters the first decoder block, from the one that left the encoder; none in later steps. `before`
    /// positions were decoded in earlier ones.
    fn turn(&self, carry: Option<T5Carry>, batch: &T5Batch, before: usize) -> T5Carry {
        let length = batch.decoder_input.dims()[1];
        let (memory, losses) = carry.map(|carry| (carry.hidden, carry.losses)).unzip();
        T5Carry {
            hidden: self.decoder.enter(self.embed(&batch.decoder_input)),
            bias: Some(self.decoder.bias.forward(length, before + length, before)),
            memory,
            losses: losses.flatten(),
        }
    }

    /// One decoder block, with the keys and values of earlier steps, if there are steps.
    fn decode(&self, index: usize, carry: T5Carry, batch: &T5Batch, cache: Option<&mut TransformerCache>) -> T5Carry {
        let T5Carry { hidden, bias, memory, losses } = carry;
        let bias = bias.expect("the first block of the stack made it");
        // In later steps the cache has the keys and values of the memory, and what is given for it is not looked at.
        let attended = memory.clone().unwrap_or_else(|| hidden.clone());
        // Padding stands behind all real tokens, where no real one looks.
        let input = TransformerInput::new(hidden)
            .causal()
            .with_bias(bias.clone())
            .with_memory(attended, Some(batch.source_padding.clone()))
            .with_tokens(batch.target_real.clone());
        let block = &self.decoder.blocks[index];
        let TransformerOutput { hidden, losses: more, .. } = match cache {
            Some(cache) => block.forward_cache(input, cache),
            None => block.forward(input),
        };
        let losses = RouterLosses::add(losses, more);
        match index + 1 < self.decoder.blocks.len() {
            true => T5Carry { hidden, bias: Some(bias), memory, losses },
            false => T5Carry { hidden, bias: None, memory: None, losses },
        }
    }

    /// One segment, with the state of earlier steps, if there are steps.
    fn run(
        &self,
        index: usize,
        carry: Option<T5Carry>,
        batch: &T5Batch,
        cache: Option<&mut TransformerCache>,
    ) -> T5Carry {
        let entered = |carry: Option<T5Carry>| carry.expect("a segment that begins no step gets a carry");
        match self.part(index) {
            T5Segment::Encoder(block) => self.encode(block, carry.unwrap_or_else(|| self.start(batch)), batch),
            T5Segment::Decoder(0) => {
                let before = cache.as_ref().map_or(0, |cache| cache.len());
                self.decode(0, self.turn(carry, batch, before), batch, cache)
            }
            T5Segment::Decoder(block) => self.decode(block, entered(carry), batch, cache),
            T5Segment::Head => {
                let carry = entered(carry);
                T5Carry { hidden: self.logits(carry.hidden).local(), ..carry }
            }
        }
    }
}

impl Model for T5 {
    type Batch = T5Batch;
    type Carry = T5Carry;

    fn segments(&self) -> usize {
        self.encoder.blocks.len() + self.decoder.blocks.len() + 1
    }

    fn segment_name(&self, index: usize) -> String {
        match self.part(index) {
            T5Segment::Encoder(block) => format!("encoder.blocks.{block}"),
            T5Segment::Decoder(block) => format!("decoder.blocks.{block}"),
            T5Segment::Head => "head".to_string(),
        }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let (encoder, decoder) = (self.encoder.blocks.len(), self.decoder.blocks.len());
        let (turn, head) = (encoder, encoder + decoder);
        let block = |rest: &str| rest.split('.').next().and_then(|index| index.parse::<usize>().ok());
        match path.split_once('.') {
            Some(("embedding", _)) if self.head.is_none() => vec![0, turn, head],
            Some(("embedding", _)) => vec![0, turn],
            Some(("head", _)) => vec![head],
            Some(("encoder", rest)) => match rest.split_once('.') {
                Some(("bias", _)) => vec![0],
                Some(("blocks", rest)) => block(rest).into_iter().collect(),
                _ => vec![turn - 1],
            },
            Some(("decoder", rest)) => match rest.split_once('.') {
                Some(("bias", _)) => vec![turn],
                Some(("blocks", rest)) => block(rest).map(|index| turn + index).into_iter().collect(),
                _ => vec![head],
            },
            _ => Vec::new(),
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<T5Carry>, batch: &T5Batch) -> T5Carry {
        self.run(index, carry, batch, None)
    }

    fn weights(&self, batch: &T5Batch) -> LossWeights {
        let weights = LossWeights::new().with(CROSS_ENTROPY, batch.tokens as f64);
        match self.config().has_experts() {
            // One sequence is one routing group.
            true => weights.with(AUXILIARY, batch.rows as f64).with(Z, batch.rows as f64),
            false => weights,
        }
    }

    fn loss(&self, carry: T5Carry, batch: &T5Batch) -> Loss {
        let config = self.config();
        let [rows, length, classes] = carry.hidden.dims();
        let logits = self.split(carry.hidden.reshape([rows * length, classes]));
        // Smoothing is a means of training; what is evaluated is the likelihood.
        let smoothing = if self.context().is_training() { config.label_smoothing } else { 0.0 };
        let criterion = SplitCrossEntropyConfig::new()
            .with_label_smoothing(smoothing)
            .with_ignore_index(IGNORED)
            .init(self.context());
        let sum = criterion.forward(logits, batch.targets.clone().reshape([rows * length]));
        let loss = Loss::new().with(CROSS_ENTROPY, sum, 1.0);
        match (carry.losses, &config.moe) {
            (Some(losses), Some(moe)) => loss.with(AUXILIARY, losses.auxiliary, moe.auxiliary).with(Z, losses.z, moe.z),
            _ => loss,
        }
    }
}

impl Incremental for T5 {
    type State = TransformerCache;

    /// Where the decoder begins: the encoder runs once.
    fn first_of_step(&self) -> usize {
        self.encoder.blocks.len()
    }

    fn forward_step(
        &self,
        index: usize,
        carry: Option<T5Carry>,
        batch: &T5Batch,
        state: &mut TransformerCache,
    ) -> T5Carry {
        self.run(index, carry, batch, Some(state))
    }
}
