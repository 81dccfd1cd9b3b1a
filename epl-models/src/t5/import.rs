//! A T5 from a folder of Hugging Face.

use std::path::Path;

use epl_core::ParamRecord;
use epl_modules::moe::{Capacity, Gate};

use super::config::{T5Config, T5FeedForward, T5MoeConfig};
use super::model::T5;
use super::names::T5Names;
use crate::huggingface::{self, Folder, JsonConfig, Reference, Result};
use crate::text::TokenPair;

/// The token that ends a sequence where a folder does not say.
const EOS: i64 = 1;

/// The architectures read here, as `model_type` names them.
const SUPPORTED: &str = "t5, switch_transformers";

impl T5Config {
    /// The shape that a folder's `config.json` and its weights describe.
    ///
    /// `tie_word_embeddings` decides whether the head is tied. Newer versions of `transformers` write `true` there for
    /// every T5, store a head only when it is not the embedding, and keep whether the head is scaled in
    /// `scale_decoder_outputs`; older ones, and Switch, scale when the head is tied.
    ///
    /// The tokens that end a text are [`Folder::end_tokens`]; [`eos`](Self::eos) is the first one that `config.json` has.
    ///
    /// The router's losses have the stored coefficients only when `output_router_logits` is set: without it
    /// `transformers` leaves them out of the loss.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture, [`Error::Config`](huggingface::Error::Config) for a value that this T5 has not, or that
    /// the weights contradict, [`Error::Contradiction`](huggingface::Error::Contradiction) for copies of the embedding that differ.
    pub fn from_huggingface(folder: &Folder) -> Result<Self> {
        let json = folder.config();
        match folder.model_type()? {
            "t5" => read_shape(json, folder)?.check(json),
            "switch_transformers" => {
                let shape = read_shape(json, folder)?;
                let moe = read_experts(json, &shape)?;
                shape.with_moe(Some(moe)).check(json)
            }
            other => Err(folder.unsupported(other, SUPPORTED)),
        }
    }

    fn check(self, json: &JsonConfig) -> Result<Self> {
        let checked = self.validate();
        json.checked(self, checked)
    }
}

fn read_shape(json: &JsonConfig, folder: &Folder) -> Result<T5Config> {
    let layers = json.count("num_layers")?;
    let pad = json.token_or("pad_token_id", 0)?;
    let eos = json.tokens("eos_token_id")?.first().copied().unwrap_or(EOS);
    let ends = folder.end_tokens(&[EOS])?;
    let scaled = match json.has("scale_decoder_outputs") {
        true => json.flag_or("scale_decoder_outputs", true)?,
        false => json.flag_or("tie_word_embeddings", true)?,
    };
    Ok(T5Config::new(json.count("vocab_size")?)
        .with_d_model(json.count("d_model")?)
        .with_d_kv(json.count("d_kv")?)
        .with_d_ff(json.count("d_ff")?)
        .with_heads(json.count("num_heads")?)
        .with_encoder_layers(layers)
        .with_decoder_layers(json.count_or("num_decoder_layers", layers)?)
        .with_relative_buckets(json.count_or("relative_attention_num_buckets", 32)?)
        .with_relative_max_distance(json.count_or("relative_attention_max_distance", 128)?)
        .with_dropout(json.number_or("dropout_rate", 0.1)?)
        .with_epsilon(json.number_or("layer_norm_epsilon", 1e-6)?)
        .with_feed_forward(read_feed_forward(json)?)
        .with_tied_head(!T5Names::new(folder)?.has_own_head())
        .with_scaled_head(scaled)
        .with_pad(pad)
        .with_eos(eos)
        .with_ends((ends != [eos]).then_some(ends))
        .with_decoder_start(json.token_or("decoder_start_token_id", pad)?))
}

fn read_feed_forward(json: &JsonConfig) -> Result<T5FeedForward> {
    let key = if json.has("feed_forward_proj") { "feed_forward_proj" } else { "dense_act_fn" };
    match json.text_or(key, "relu")? {
        "relu" => Ok(T5FeedForward::Relu),
        "gated-gelu" => Ok(T5FeedForward::GatedGelu),
        other => Err(json.error(key, format!("is `{other}`; supported are relu and gated-gelu"))),
    }
}

fn read_experts(json: &JsonConfig, shape: &T5Config) -> Result<T5MoeConfig> {
    if json.flag_or("router_bias", false)? {
        return Err(json.error("router_bias", "is true; a router has no bias here"));
    }
    // `transformers` says "0 sparse layers" of what gives the second block experts.
    let step = |layers: usize, key: &str| Ok(layers.checked_div(json.count(key)?).unwrap_or(layers));
    let counted = json.flag_or("output_router_logits", false)?;
    let coefficient = |key: &str| Ok(if counted { json.number_or(key, 0.001)? } else { 0.0 });
    Ok(T5MoeConfig::new(json.count("num_experts")?)
        .with_gate(Gate::Switch)
        .with_encoder_sparse_step(step(shape.encoder_layers, "num_sparse_encoder_layers")?)
        .with_decoder_sparse_step(step(shape.decoder_layers, "num_sparse_decoder_layers")?)
        .with_capacity(Capacity::Fixed(json.count("expert_capacity")?))
        .with_auxiliary(coefficient("router_aux_loss_coef")?)
        .with_z(coefficient("router_z_loss_coef")?)
        .with_jitter(json.number_or("router_jitter_noise", 0.01)?)
        .with_route_padding(!json.flag_or("router_ignore_padding_tokens", false)?))
}

/// Fills a model from a folder: every rank reads what its records say it holds. They are the plan's, of which
/// [`try_map`](epl_core::LaidOutModel::try_map) tells beside the model:
///
/// ```
/// # use epl_core::{Epl, LaidOutModel, Result};
/// # use epl_models::{huggingface::Folder, t5::{self, T5, T5Config}};
/// # fn example(epl: &Epl, shape: &T5Config, folder: &Folder) -> Result<LaidOutModel<T5>> {
/// epl.build(|at| shape.init(at))?.try_map(|model, plan| Ok(t5::load(model, plan.records(), folder)?))
/// # }
/// ```
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load(model: T5, records: &[ParamRecord], folder: &Folder) -> Result<T5> {
    let names = T5Names::new(folder)?;
    huggingface::load(model, records, folder, &names)
}

/// The stored inputs of a T5 as token pairs: the sources without their padding, the labels as targets.
///
/// # Errors
///
/// When an input is missing, or a source is padded elsewhere than at its end.
pub fn reference_pairs(reference: &Reference) -> Result<Vec<TokenPair>> {
    let sources = reference.rows("input_ids")?;
    let masks = reference.rows("attention_mask")?;
    let targets = reference.rows("labels")?;
    if sources.len() != masks.len() || sources.len() != targets.len() {
        let (sources, masks, targets) = (sources.len(), masks.len(), targets.len());
        return Err(reference.error(format!("{sources} sources, {masks} masks and {targets} labels")));
    }
    let pair = |((mut source, mask), target): ((Vec<i64>, Vec<i64>), Vec<i64>)| {
        let length = mask.iter().take_while(|real| **real == 1).count();
        if mask[length..].iter().any(|real| *real != 0) || mask.len() != source.len() {
            return Err(reference.error(format!("`attention_mask` {mask:?} is not ones, then zeros")));
        }
        source.truncate(length);
        Ok(TokenPair { source, target })
    };
    sources.into_iter().zip(masks).zip(targets).map(pair).collect()
}

/// Opens a folder whose architecture is one that is read here.
///
/// # Errors
///
/// As [`Folder::open`] and [`T5Config::from_huggingface`]; the architecture is looked at first.
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, T5Config)> {
    let folder = Folder::open(path)?;
    let config = T5Config::from_huggingface(&folder)?;
    Ok((folder, config))
}
