use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Bool, Int, Tensor};

/// Configuration to create a [`TextClassifier`].
#[derive(Config, Debug)]
pub struct TextClassifierConfig {
    /// The number of tokens that there are.
    pub tokens: usize,
    /// The number of classes.
    pub classes: usize,
    /// The features of a token. Default: 16
    #[config(default = "16")]
    pub width: usize,
    /// The features between the two layers of a feed-forward network. Default: 32
    #[config(default = "32")]
    pub hidden: usize,
    /// The heads of attention. Default: 2
    #[config(default = "2")]
    pub heads: usize,
    /// The layers of the encoder. Default: 2
    #[config(default = "2")]
    pub layers: usize,
    /// The rate of dropout in the encoder. Default: 0.1
    #[config(default = "0.1")]
    pub dropout: f64,
}

/// A transformer over texts of at most 16 tokens.
#[derive(Module, Debug)]
pub struct TextClassifier {
    tokens: Embedding,
    positions: Embedding,
    encoder: TransformerEncoder,
    output: Linear,
}

impl TextClassifierConfig {
    /// Initializes a new classifier.
    pub fn init(&self, device: &Device) -> TextClassifier {
        let encoder = TransformerEncoderConfig::new(self.width, self.hidden, self.heads, self.layers);
        TextClassifier {
            tokens: EmbeddingConfig::new(self.tokens, self.width).init(device),
            positions: EmbeddingConfig::new(16, self.width).init(device),
            encoder: encoder.with_dropout(self.dropout).init(device),
            output: LinearConfig::new(self.width, self.classes).init(device),
        }
    }
}

impl TextClassifier {
    /// - tokens: `[rows, length]`
    /// - output: `[rows, length, width]`
    pub fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let positions = Tensor::arange(0..length as i64, &tokens.device()).unsqueeze::<2>();
        self.tokens.forward(tokens) + self.positions.forward(positions)
    }

    /// - texts: `[rows, length, width]`
    /// - missing: `[rows, length]`, true where a text has ended
    /// - output: `[rows, length, width]`
    pub fn encode(&self, texts: Tensor<3>, missing: Tensor<2, Bool>) -> Tensor<3> {
        self.encoder.forward(TransformerEncoderInput::new(texts).mask_pad(missing))
    }

    /// - texts: `[rows, length, width]`
    /// - output: `[rows, classes]`
    pub fn classify(&self, texts: Tensor<3>) -> Tensor<2> {
        self.output.forward(texts.slice_dim(1, 0..1).squeeze_dim(1))
    }

    /// The cross-entropy of texts and their classes.
    pub fn loss(&self, (tokens, missing, classes): &(Tensor<2, Int>, Tensor<2, Bool>, Tensor<1, Int>)) -> Tensor<1> {
        let logits = self.classify(self.encode(self.embed(tokens.clone()), missing.clone()));
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes.clone())
    }
}
