//! A T5 into a folder of Hugging Face.

use std::path::Path;

use epl_core::tensors::WholeTensors;
use epl_modules::moe::{Capacity, Gate};
use serde_json::{Map, Value, json};

use super::config::{T5Config, T5FeedForward, T5MoeConfig};
use super::names::T5Names;
use super::tying::EMBEDDINGS;
use crate::huggingface::{Error, Exported, Result, export, written_tokens};

/// Writes a folder that `T5ForConditionalGeneration` loads, or `SwitchTransformersForConditionalGeneration` where there
/// are experts. `tensors` are the whole parameters by path: an engine's [`parameters`](epl_core::Engine::parameters), or those
/// of a [model](epl_core::LaidOutModel::parameters) that was not trained.
///
/// ```
/// use epl_core::{Config, launch};
/// use epl_models::t5::{self, T5Config};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let shape = T5Config::new(20).with_d_model(8).with_d_kv(4).with_d_ff(16).with_heads(2);
/// # let shape = shape.with_encoder_layers(1).with_decoder_layers(1);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let parameters = epl.build(|at| shape.init(at))?.parameters()?;
///     t5::export(&shape, &parameters, &folder)?;
///
///     let (stored, found) = t5::open(&folder)?;
///     assert_eq!(stored.read("shared.weight")?, parameters["embedding.weight"]); // as `transformers` calls it
///     let built = epl.build(|at| found.init(at))?;
///     let built = built.try_map(|model, plan| Ok(t5::load(model, plan.records(), &stored)?))?;
///     assert_eq!(built.parameters()?, parameters);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`T5Config::to_huggingface`] and [`export::save`].
pub fn export(config: &T5Config, tensors: &impl WholeTensors, folder: impl AsRef<Path>) -> Result<()> {
    // A Switch whose head is not tied has no tied embeddings either, in `transformers` 5 and newer; a T5 always has.
    let untied = config.has_experts() && !config.tied_head;
    let copies = EMBEDDINGS[1..].iter().filter(|_| untied).map(|name| (name.to_string(), "embedding.weight".into()));
    let exported = Exported {
        config: config.to_huggingface()?,
        names: &T5Names::written(config),
        parameters: export::parameters(|place| config.init(place))?,
        copies: copies.collect(),
        constants: Vec::new(),
    };
    export::save(folder, exported, tensors)
}

impl T5Config {
    /// The keys of a `config.json`: what [`from_huggingface`](Self::from_huggingface) reads.
    ///
    /// Left out is what only training reads and `transformers` has not: `label_smoothing`, and in a model without experts
    /// nothing else; and of a model with [`ends`](Self::ends) of their own `eos`, as the key that both have says what ends a
    /// text. An untied head that is not scaled, as in T5 1.1, is written as `tie_word_embeddings: false`, which all versions
    /// of `transformers` understand; a tied head that is not scaled, and an untied one that is, only those do that have
    /// `scale_decoder_outputs` (5.0 and newer).
    ///
    /// # Errors
    ///
    /// [`Error::Export`] with the field that `transformers` cannot express: of a Switch Transformer a gate other than
    /// [`Gate::Switch`], a capacity other than [`Capacity::Fixed`], a gated network, blocks with experts other than every
    /// so many, or a head that is scaled but not tied, or tied but not scaled.
    pub fn to_huggingface(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        let mut keys = match self.moe.as_ref().filter(|_| self.has_experts()) {
            None => self.dense_keys(),
            Some(moe) => self.switch_keys(moe)?,
        };
        keys.append(&mut object(json!({
            "is_encoder_decoder": true,
            "vocab_size": self.vocab,
            "d_model": self.d_model,
            "d_kv": self.d_kv,
            "d_ff": self.d_ff,
            "num_layers": self.encoder_layers,
            "num_decoder_layers": self.decoder_layers,
            "num_heads": self.heads,
            "relative_attention_num_buckets": self.relative_buckets,
            "relative_attention_max_distance": self.relative_max_distance,
            "dropout_rate": self.dropout,
            "layer_norm_epsilon": self.epsilon,
            "pad_token_id": self.pad,
            "eos_token_id": written_tokens(&self.end_tokens()),
            "decoder_start_token_id": self.decoder_start,
        })));
        Ok(keys)
    }

    fn dense_keys(&self) -> Map<String, Value> {
        let (projection, activation) = match self.feed_forward {
            T5FeedForward::Relu => ("relu", "relu"),
            T5FeedForward::GatedGelu => ("gated-gelu", "gelu_new"),
        };
        object(json!({
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "feed_forward_proj": projection,
            "dense_act_fn": activation,
            "is_gated_act": self.feed_forward == T5FeedForward::GatedGelu,
            // Versions that have no other key scale where this is true.
            "tie_word_embeddings": self.tied_head || self.scaled_head,
            "scale_decoder_outputs": self.scaled_head,
        }))
    }

    fn switch_keys(&self, moe: &T5MoeConfig) -> Result<Map<String, Value>> {
        if self.feed_forward != T5FeedForward::Relu {
            return Err(Error::export("feed_forward", "is gated; a Switch Transformer has relu in `transformers`"));
        }
        if self.scaled_head != self.tied_head {
            let (tied, scaled) = (self.tied_head, self.scaled_head);
            let reason = format!("is {scaled} and `tied_head` {tied}; a Switch Transformer scales what it ties");
            return Err(Error::export("scaled_head", reason));
        }
        if moe.gate != Gate::Switch {
            return Err(Error::export("moe.gate", "is not Gate::Switch; `transformers` sends a token to one expert"));
        }
        let Capacity::Fixed(capacity) = moe.capacity else {
            let reason = format!(
                "is {:?}, and `transformers` knows a number of tokens only; export with Capacity::Fixed, of which no \
                 parameter depends",
                moe.capacity
            );
            return Err(Error::export("moe.capacity", reason));
        };
        let sparse = |field, layers, step| {
            let reason =
                || format!("is {step} of {layers} blocks, which no number of sparse layers in `transformers` gives");
            sparse_layers(layers, step).ok_or_else(|| Error::export(field, reason()))
        };
        let mut keys = object(json!({
            "model_type": "switch_transformers",
            "architectures": ["SwitchTransformersForConditionalGeneration"],
            "dense_act_fn": "relu",
            "tie_word_embeddings": self.tied_head,
            "num_experts": moe.experts,
            "expert_capacity": capacity,
            "num_sparse_encoder_layers": sparse("moe.encoder_sparse_step", self.encoder_layers, moe.encoder_sparse_step)?,
            "num_sparse_decoder_layers": sparse("moe.decoder_sparse_step", self.decoder_layers, moe.decoder_sparse_step)?,
            "router_bias": false,
            "router_dtype": "float32",
            "router_jitter_noise": moe.jitter,
            "router_ignore_padding_tokens": !moe.route_padding,
        }));
        // Without these the losses of the routers do not count.
        if moe.auxiliary != 0.0 || moe.z != 0.0 {
            keys.append(&mut object(json!({
                "output_router_logits": true,
                "router_aux_loss_coef": moe.auxiliary,
                "router_z_loss_coef": moe.z,
            })));
        }
        Ok(keys)
    }
}

/// The number of sparse layers from which `transformers` computes that the same blocks have experts, as here.
fn sparse_layers(layers: usize, step: usize) -> Option<usize> {
    let blocks = |step| (0..layers).map(|block| T5Config::is_sparse(block, step)).collect::<Vec<_>>();
    // It divides the layers by the number; more sparse layers than layers give a step of 0.
    let gives = |count: &usize| blocks(layers / count) == blocks(step);
    let own = blocks(step).into_iter().filter(|sparse| *sparse).count();
    (own.max(1)..=layers + 1).chain(1..own).find(gives)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch() -> T5Config {
        let moe = T5MoeConfig::new(4).with_gate(Gate::Switch).with_capacity(Capacity::Fixed(8));
        T5Config::new(50).with_moe(Some(moe))
    }

    #[test]
    fn what_transformers_has_not_is_named() {
        let moe = || switch().moe.unwrap();
        let refused = |config: T5Config| config.to_huggingface().unwrap_err().to_string();
        assert!(switch().to_huggingface().is_ok());
        assert!(refused(switch().with_moe(Some(moe().with_gate(Gate::Top2)))).contains("`moe.gate` is not"));
        let unlimited = moe().with_capacity(Capacity::Unlimited);
        assert!(refused(switch().with_moe(Some(unlimited))).contains("`moe.capacity` is Unlimited"));
        assert!(refused(switch().with_scaled_head(false)).contains("`scaled_head` is false and `tied_head` true"));
        assert!(refused(switch().with_feed_forward(T5FeedForward::GatedGelu)).contains("`feed_forward` is gated"));
        let step = switch().with_encoder_layers(7).with_moe(Some(moe().with_encoder_sparse_step(4)));
        assert!(refused(step).contains("`moe.encoder_sparse_step` is 4 of 7 blocks"));
        assert!(refused(T5Config::new(0)).contains("`vocab` is 0"));
    }

    #[test]
    fn sparse_layers_are_counted_as_transformers_divides() {
        assert_eq!(sparse_layers(2, 2), Some(1));
        assert_eq!(sparse_layers(12, 2), Some(6));
        assert_eq!(sparse_layers(6, 1), Some(6));
        assert_eq!(sparse_layers(6, 0), Some(7));
        // 7 ÷ 2 is 3.
        assert_eq!(sparse_layers(7, 3), Some(2));
        assert_eq!(sparse_layers(7, 4), None);
        // The only block that both have is the second one.
        assert_eq!(sparse_layers(2, 5), Some(1));
    }

    #[test]
    fn a_model_without_a_sparse_block_is_dense() {
        let none = T5MoeConfig::new(4).with_encoder_sparse_step(0).with_decoder_sparse_step(0);
        let keys = T5Config::new(50).with_moe(Some(none)).to_huggingface().unwrap();
        assert_eq!(keys["model_type"], "t5");
    }
}
