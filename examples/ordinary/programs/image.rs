use burn::config::Config;
use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{Int, Tensor};

/// Configuration to create an [`ImageClassifier`].
#[derive(Config, Debug)]
pub struct ImageClassifierConfig {
    /// The number of classes.
    pub classes: usize,
    /// The rate of dropout before the last layer. Default: 0.2
    #[config(default = "0.2")]
    pub dropout: f64,
}

/// Two convolutions with batch norms, and two linear layers, for images of 12 × 12.
#[derive(Module, Debug)]
pub struct ImageClassifier {
    conv1: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    pool: MaxPool2d,
    dropout: Dropout,
    hidden: Linear,
    output: Linear,
}

impl ImageClassifierConfig {
    /// Initializes a new classifier.
    pub fn init(&self, device: &Device) -> ImageClassifier {
        ImageClassifier {
            conv1: Conv2dConfig::new([1, 6], [3, 3]).with_padding(PaddingConfig2d::Same).init(device),
            norm1: BatchNormConfig::new(6).init(device),
            conv2: Conv2dConfig::new([6, 8], [3, 3]).with_padding(PaddingConfig2d::Same).init(device),
            norm2: BatchNormConfig::new(8).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(self.dropout).init(),
            hidden: LinearConfig::new(8 * 3 * 3, 24).init(device),
            output: LinearConfig::new(24, self.classes).init(device),
        }
    }
}

impl ImageClassifier {
    /// - images: `[rows, 1, 12, 12]`
    /// - output: `[rows, 6, 6, 6]`
    pub fn edges(&self, images: Tensor<4>) -> Tensor<4> {
        self.pool.forward(relu(self.norm1.forward(self.conv1.forward(images))))
    }

    /// - edges: `[rows, 6, 6, 6]`
    /// - output: `[rows, features]`
    pub fn features(&self, edges: Tensor<4>) -> Tensor<2> {
        self.pool.forward(relu(self.norm2.forward(self.conv2.forward(edges)))).flatten(1, 3)
    }

    /// - features: `[rows, features]`
    /// - output: `[rows, classes]`
    pub fn classify(&self, features: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.dropout.forward(relu(self.hidden.forward(features))))
    }

    /// The cross-entropy of images and their classes.
    pub fn loss(&self, (images, classes): &(Tensor<4>, Tensor<1, Int>)) -> Tensor<1> {
        let logits = self.classify(self.features(self.edges(images.clone())));
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes.clone())
    }
}
