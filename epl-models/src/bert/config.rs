//! The shape of a BERT.

use burn::config::Config;
use epl_core::{Error, Result};
use epl_modules::Activation;

use super::architecture::BertArchitecture;

/// The shape of a BERT. The defaults are those of Hugging Face: BERT-base.
///
/// ```
/// use epl_models::BertConfig;
/// let config = BertConfig::base(30_522).with_dropout(0.0);
/// assert_eq!(BertConfig::preset("large", 30_522)?.layers, 24);
/// # Ok::<(), epl_core::Error>(())
/// ```
///
/// *BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding*, Devlin et al., 2019.
#[derive(Config, Debug, PartialEq)]
pub struct BertConfig {
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
    /// Layers of the encoder.
    #[config(default = 12)]
    pub layers: usize,
    /// Positions, of which each has a vector that is learned: [`longest_row`](Self::longest_row) counts those of a row.
    #[config(default = 512)]
    pub positions: usize,
    /// Types of tokens, such as those of the question and those of the text.
    #[config(default = 2)]
    pub token_types: usize,
    /// The function inside the feed-forward part, and inside the head of a BERT that is a masked language model.
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
    /// Probability with which embeddings and the output of every part are dropped.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Probability with which attention weights are dropped.
    #[config(default = 0.1)]
    pub attention_dropout: f64,
    /// Probability with which a classifier's features are dropped. Default: `dropout`
    pub classifier_dropout: Option<f64>,
    /// Added to the variance inside the norms.
    #[config(default = 1e-12)]
    pub epsilon: f64,
    /// The deviation of the weights' first values; biases start at zero.
    #[config(default = 0.02)]
    pub deviation: f64,
    /// The padding token.
    #[config(default = 0)]
    pub pad: i64,
    /// Which of the encoders it is.
    #[config(default = "BertArchitecture::Bert")]
    pub architecture: BertArchitecture,
    /// The number of classes of a classifier.
    #[config(default = 2)]
    pub classes: usize,
    /// Whether an answer may begin or end in padding: for equality with Hugging Face, where the loss depends on how long
    /// a batch is padded, and with it on the layout.
    #[config(default = false)]
    pub answers_in_padding: bool,
}

/// The names that [`BertConfig::preset`] knows.
const PRESETS: [(&str, fn(usize) -> BertConfig); 5] = [
    ("tiny", BertConfig::tiny),
    ("base", BertConfig::base),
    ("large", BertConfig::large),
    ("roberta-base", BertConfig::roberta_base),
    ("roberta-large", BertConfig::roberta_large),
];

impl BertConfig {
    /// 4 layers of 128 with 4 heads, without dropout: to learn a small text by heart within minutes on two cores.
    pub fn tiny(vocab: usize) -> Self {
        let shape = Self::new(vocab).with_layers(4).with_d_model(128).with_d_ff(512).with_heads(4);
        shape.with_dropout(0.0).with_attention_dropout(0.0)
    }

    /// 12 layers of 768 with 12 heads.
    pub fn base(vocab: usize) -> Self {
        Self::new(vocab)
    }

    /// 24 layers of 1024 with 16 heads.
    pub fn large(vocab: usize) -> Self {
        Self::new(vocab).with_layers(24).with_d_model(1024).with_d_ff(4096).with_heads(16)
    }

    /// A RoBERTa of 12 layers of 768 with 12 heads.
    pub fn roberta_base(vocab: usize) -> Self {
        Self::base(vocab).into_roberta()
    }

    /// A RoBERTa of 24 layers of 1024 with 16 heads.
    pub fn roberta_large(vocab: usize) -> Self {
        Self::large(vocab).into_roberta()
    }

    fn into_roberta(self) -> Self {
        let counted = self.with_architecture(BertArchitecture::Roberta).with_pad(1).with_positions(514);
        counted.with_token_types(1).with_epsilon(1e-5)
    }

    /// The position of a row's first token.
    pub fn first_position(&self) -> usize {
        match self.architecture {
            BertArchitecture::Bert => 0,
            BertArchitecture::Roberta => usize::try_from(self.pad).map_or(0, |pad| pad + 1),
        }
    }

    /// The most tokens that a row can have.
    pub fn longest_row(&self) -> usize {
        self.positions.saturating_sub(self.first_position())
    }

    /// The names that [`preset`](Self::preset) knows.
    pub fn presets() -> Vec<&'static str> {
        PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// A known shape, by name.
    ///
    /// # Errors
    ///
    /// For another name, with those that there are.
    pub fn preset(name: &str, vocab: usize) -> Result<Self> {
        let known = PRESETS.iter().find(|(known, _)| *known == name);
        let unknown = || Error::invalid(format!("there is no BERT `{name}`; there are {}", Self::presets().join(", ")));
        known.map(|(_, config)| config(vocab)).ok_or_else(unknown)
    }

    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid(format!("BERT: {message}")));
        let counts = [
            ("vocab", self.vocab),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
            ("heads", self.heads),
            ("layers", self.layers),
            ("positions", self.positions),
            ("token_types", self.token_types),
            ("classes", self.classes),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is 0; it should be at least 1"));
        }
        if !self.d_model.is_multiple_of(self.heads) {
            let (d_model, heads) = (self.d_model, self.heads);
            return invalid(format!("`d_model` {d_model} does not divide into {heads} `heads`"));
        }
        let shares = [("dropout", Some(self.dropout)), ("attention_dropout", Some(self.attention_dropout))];
        for (name, share) in shares.into_iter().chain([("classifier_dropout", self.classifier_dropout)]) {
            if let Some(share) = share.filter(|share| !(0.0..1.0).contains(share)) {
                return invalid(format!("`{name}` is {share}; it should be at least 0 and below 1"));
            }
        }
        match usize::try_from(self.pad) {
            Ok(pad) if pad < self.vocab && self.longest_row() == 0 => {
                let (positions, first) = (self.positions, self.first_position());
                invalid(format!("`positions` is {positions}; a row begins at position {first}, behind that of padding"))
            }
            Ok(pad) if pad < self.vocab => Ok(()),
            _ => invalid(format!("`pad` is token {}; the tokens are 0 to {}", self.pad, self.vocab - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_possible_and_an_unknown_name_lists_them() {
        for name in BertConfig::presets() {
            assert!(BertConfig::preset(name, 7).unwrap().validate().is_ok(), "{name}");
        }
        let message = BertConfig::preset("small", 7).unwrap_err().to_string();
        assert!(
            message.contains("no BERT `small`; there are tiny, base, large, roberta-base, roberta-large"),
            "{message}"
        );
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let message = |config: BertConfig| config.validate().unwrap_err().to_string();
        assert!(message(BertConfig::new(100).with_layers(0)).contains("`layers` is 0"));
        assert!(message(BertConfig::new(100).with_heads(7)).contains("`d_model` 768 does not divide into 7 `heads`"));
        assert!(message(BertConfig::new(100).with_pad(100)).contains("`pad` is token 100; the tokens are 0 to 99"));
        assert!(message(BertConfig::new(100).with_pad(-1)).contains("`pad` is token -1"));
        let roberta = BertConfig::roberta_base(100);
        assert_eq!((roberta.first_position(), roberta.longest_row()), (2, 512));
        assert!(message(roberta.with_positions(2)).contains("`positions` is 2; a row begins at position 2"));
        let dropped = BertConfig::new(100).with_classifier_dropout(Some(1.0));
        assert!(message(dropped).contains("`classifier_dropout` is 1"));
    }
}
