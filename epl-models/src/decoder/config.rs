//! The shape of a decoder.

use burn::config::Config;
use epl_core::{Error, Result};
use epl_modules::{Activation, NormKind, RotaryConfig};

use super::experts::DecoderExpertsConfig;
use crate::rows::is_token;

/// The shape of a decoder. The defaults are those of the smallest GPT-2; [`DecoderConfig::preset`] knows others.
///
/// | | positions | norm | feed-forward | biases | heads of keys | norms of queries and keys |
/// |---|---|---|---|---|---|---|
/// | GPT-2 | learned | LayerNorm | GELU by tanh | everywhere | as of queries | no |
/// | Llama 2, 3 | rotary, scaled from 3.1 on | RMSNorm | SiLU, gated | none | fewer in the larger ones | no |
/// | Qwen3 | rotary | RMSNorm | SiLU, gated | none | fewer | yes |
/// | Mixtral | rotary | RMSNorm | two of several experts, each SiLU, gated | none | fewer | no |
/// | Qwen3-MoE | rotary | RMSNorm | some of many experts, each SiLU, gated | none | fewer | yes |
/// | Gemma 2 | rotary | RMSNorm before and behind each part, gamma around zero | GELU by tanh, gated | none | fewer | no |
///
/// A Gemma 2 also scales its embeddings, limits its scores and logits, and has a window in every other layer.
///
/// ```
/// use epl_models::DecoderConfig;
/// use epl_modules::RotaryConfig;
/// let config = DecoderConfig::preset("qwen3-0.6b")?.with_layers(4).with_rotary(Some(RotaryConfig::new()));
/// assert_eq!((config.heads, config.key_heads()), (16, 8));
/// # Ok::<(), epl_core::Error>(())
/// ```
///
/// *Language Models are Unsupervised Multitask Learners*, Radford et al., 2019; *Llama 2*, Touvron et al., 2023
/// ([arXiv:2307.09288](https://arxiv.org/abs/2307.09288)); *The Llama 3 Herd of Models*, Llama Team, 2024
/// ([arXiv:2407.21783](https://arxiv.org/abs/2407.21783)); *Qwen3 Technical Report*, Qwen Team, 2025
/// ([arXiv:2505.09388](https://arxiv.org/abs/2505.09388)); *Mixtral of Experts*, Jiang et al., 2024
/// ([arXiv:2401.04088](https://arxiv.org/abs/2401.04088)); *Gemma 2*, Gemma Team, 2024
/// ([arXiv:2408.00118](https://arxiv.org/abs/2408.00118)).
#[derive(Config, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The number of tokens.
    pub vocab: usize,
    /// The width of the hidden states.
    #[config(default = 768)]
    pub d_model: usize,
    /// The width inside the feed-forward part.
    #[config(default = 3072)]
    pub d_ff: usize,
    /// Attention heads.
    #[config(default = 12)]
    pub heads: usize,
    /// Heads of keys and values, of which each is shared by as many heads of queries. Default: `heads`
    pub kv_heads: Option<usize>,
    /// The width of one head. Default: `d_model / heads`
    pub head_dim: Option<usize>,
    /// Layers.
    #[config(default = 12)]
    pub layers: usize,
    /// Tokens of the longest row.
    #[config(default = 1024)]
    pub positions: usize,
    /// How positions turn queries and keys. Default: each position has a vector that is learned, which is added to the token's
    pub rotary: Option<RotaryConfig>,
    /// Whether the vectors of the tokens are multiplied by √`d_model`, as their type has that number.
    #[config(default = false)]
    pub scaled_embeddings: bool,
    /// How many positions a layer sees, its own the last of them, or that it sees all before it: by layer, in turn, so that two
    /// entries are those of every other layer. Default: all layers see all
    #[config(default = "Vec::new()")]
    pub windows: Vec<Option<usize>>,
    /// Scores are divided by the square root of this. Default: the width of a head
    pub query_pre_attn_scalar: Option<usize>,
    /// The limit that scores come near and do not pass: see [`softcap()`](epl_modules::softcap()). Default: none
    pub attention_softcap: Option<f64>,
    /// The same of the logits. Default: none
    pub logit_softcap: Option<f64>,
    /// The formula of the norms.
    #[config(default = "NormKind::LayerNorm")]
    pub norm: NormKind,
    /// Added to the variance, or to the mean square, inside the norms.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether the norms' scales are one and `gamma`: see
    /// [`RmsNormConfig::zero_centered_gamma`](epl_modules::RmsNormConfig::zero_centered_gamma).
    #[config(default = false)]
    pub zero_centered_gamma: bool,
    /// Whether what each part adds to the hidden states has a norm, too: see [`NormOrder::Sandwich`](epl_modules::NormOrder).
    #[config(default = false)]
    pub sandwich_norm: bool,
    /// Whether each head's query and key have an RMS norm.
    #[config(default = false)]
    pub qk_norm: bool,
    /// The function inside the feed-forward part.
    #[config(default = "Activation::GeluNew")]
    pub activation: Activation,
    /// Whether the activation is multiplied by a second product of the input.
    #[config(default = false)]
    pub gated: bool,
    /// Experts in place of the feed-forward part. Default: none
    pub experts: Option<DecoderExpertsConfig>,
    /// Whether the linear layers of attention have biases.
    #[config(default = true)]
    pub attention_bias: bool,
    /// Whether the linear layers of the feed-forward part have biases.
    #[config(default = true)]
    pub feed_forward_bias: bool,
    /// Whether the head is the table of the tokens; otherwise it has a weight of its own.
    #[config(default = true)]
    pub tied_head: bool,
    /// Probability with which embeddings are dropped.
    #[config(default = 0.1)]
    pub embedding_dropout: f64,
    /// Probability with which the output of every part is dropped.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Probability with which attention weights are dropped.
    #[config(default = 0.1)]
    pub attention_dropout: f64,
    /// The deviation of the weights' first values; biases start at zero.
    #[config(default = 0.02)]
    pub deviation: f64,
    /// Whether the last weight of every part starts with that deviation divided by √(2 · `layers`), as GPT-2's.
    #[config(default = true)]
    pub scaled_output: bool,
    /// The padding token. Default: none; rows are filled up with token 0, which nothing reads
    pub pad: Option<i64>,
    /// Tokens that end a text. Default: none
    #[config(default = "Vec::new()")]
    pub ends: Vec<i64>,
}

impl DecoderConfig {
    /// Heads of keys and values.
    pub fn key_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// The width of one head.
    pub fn head_width(&self) -> usize {
        self.head_dim.unwrap_or(self.d_model / self.heads.max(1))
    }

    /// How many positions a layer sees, if not all before it.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let turn = layer.checked_rem(self.windows.len())?;
        self.windows[turn]
    }

    /// The experts of a layer, if it has any.
    pub fn experts_of(&self, layer: usize) -> Option<&DecoderExpertsConfig> {
        self.experts.as_ref().filter(|experts| experts.are_in(layer))
    }

    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid(format!("decoder: {message}")));
        let counts = [
            ("vocab", self.vocab),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
            ("heads", self.heads),
            ("kv_heads", self.key_heads()),
            ("head_dim", self.head_dim.unwrap_or(1)),
            ("layers", self.layers),
            ("positions", self.positions),
            ("windows", self.windows.iter().flatten().copied().min().unwrap_or(1)),
            ("query_pre_attn_scalar", self.query_pre_attn_scalar.unwrap_or(1)),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is 0; it should be at least 1"));
        }
        if self.head_dim.is_none() && !self.d_model.is_multiple_of(self.heads) {
            let (d_model, heads) = (self.d_model, self.heads);
            return invalid(format!("`d_model` {d_model} does not divide into {heads} `heads`; give `head_dim`"));
        }
        if !self.heads.is_multiple_of(self.key_heads()) {
            let (heads, of_keys) = (self.heads, self.key_heads());
            return invalid(format!("{heads} `heads` do not divide into groups for {of_keys} `kv_heads`"));
        }
        let shares = [
            ("embedding_dropout", self.embedding_dropout),
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
        ];
        if let Some((name, share)) = shares.iter().find(|(_, share)| !(0.0..1.0).contains(share)) {
            return invalid(format!("`{name}` is {share}; it should be at least 0 and below 1"));
        }
        let caps = [("attention_softcap", self.attention_softcap), ("logit_softcap", self.logit_softcap)];
        let wrong = |cap: &f64| !cap.is_finite() || *cap <= 0.0;
        if let Some((name, cap)) = caps.iter().find_map(|(name, cap)| Some((name, cap.filter(wrong)?))) {
            return invalid(format!("`{name}` is {cap}; it should be finite and positive"));
        }
        if self.windows.len() > self.layers {
            let (windows, layers) = (self.windows.len(), self.layers);
            return invalid(format!("`windows` has {windows} entries for {layers} layers; give as many at most"));
        }
        if let Some(fault) = self.experts.as_ref().and_then(|experts| experts.fault(self.layers)) {
            return invalid(fault);
        }
        if self.experts.is_some() && self.feed_forward_bias {
            return invalid("`feed_forward_bias` is true, and experts have no biases: set it to false".into());
        }
        match self.pad.filter(|pad| !is_token(*pad, self.vocab)) {
            Some(pad) => invalid(format!("`pad` is token {pad}; the tokens are 0 to {}", self.vocab - 1)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let message = |config: DecoderConfig| config.validate().unwrap_err().to_string();
        let config = || DecoderConfig::new(100);
        assert!(config().validate().is_ok());
        assert!(message(config().with_layers(0)).contains("`layers` is 0"));
        assert!(message(config().with_kv_heads(Some(0))).contains("`kv_heads` is 0"));
        assert!(message(config().with_heads(7)).contains("`d_model` 768 does not divide into 7 `heads`"));
        assert!(config().with_heads(7).with_head_dim(Some(64)).validate().is_ok());
        assert!(message(config().with_kv_heads(Some(5))).contains("12 `heads` do not divide into groups for 5"));
        let experts = |experts: DecoderExpertsConfig| message(config().with_experts(Some(experts)));
        let two = || DecoderExpertsConfig::new(2);
        assert!(experts(two()).contains("`feed_forward_bias` is true, and experts have no biases"));
        assert!(experts(two().with_auxiliary(-1.0)).contains("`experts.auxiliary` is -1; it should be at least 0"));
        assert!(experts(two().with_dense_layers(vec![3, 12])).contains("has 12; the layers are 0 to 11"));
        assert!(experts(two().with_dense_layers((0..12).collect())).contains("has all 12 layers; leave `experts` out"));
        assert!(message(config().with_windows(vec![Some(4), Some(0)])).contains("`windows` is 0"));
        assert!(message(config().with_windows(vec![None; 13])).contains("`windows` has 13 entries for 12 layers"));
        assert!(message(config().with_query_pre_attn_scalar(Some(0))).contains("`query_pre_attn_scalar` is 0"));
        assert!(
            message(config().with_logit_softcap(Some(-1.0))).contains("`logit_softcap` is -1; it should be finite")
        );
        assert!(message(config().with_attention_softcap(Some(f64::NAN))).contains("`attention_softcap` is NaN"));
        assert!(message(config().with_dropout(1.0)).contains("`dropout` is 1"));
        assert!(message(config().with_pad(Some(100))).contains("`pad` is token 100; the tokens are 0 to 99"));
    }

    #[test]
    fn windows_are_those_of_layers_in_turn() {
        let windows = |windows: &[Option<usize>]| {
            let config = DecoderConfig::new(9).with_windows(windows.to_vec());
            (0..5).map(|layer| config.window_of(layer)).collect::<Vec<_>>()
        };
        assert_eq!(windows(&[]), [None; 5]);
        assert_eq!(windows(&[Some(4)]), [Some(4); 5]);
        assert_eq!(windows(&[Some(4), Some(2), None]), [Some(4), Some(2), None, Some(4), Some(2)]);
    }
}
