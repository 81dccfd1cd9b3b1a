use burn::config::Config;
use burn::module::Module;
use burn::tensor::Tensor;

/// Configuration to create a [`Regression`].
#[derive(Config, Debug)]
pub struct RegressionConfig {
    /// The numbers of a row.
    pub inputs: usize,
    /// The features between. Default: 32
    #[config(default = "32")]
    pub hidden: usize,
}

/// One number from several.
#[derive(Module, Debug)]
pub struct Regression {
    input: Linear,
    norm: LayerNorm,
    activation: Gelu,
    output: Linear,
}

impl RegressionConfig {
    /// Initializes a new net.
    pub fn init(&self, device: &Device) -> Regression {
        Regression {
            input: LinearConfig::new(self.inputs, self.hidden).init(device),
            norm: LayerNormConfig::new(self.hidden).init(device),
            activation: Gelu::new(),
            output: LinearConfig::new(self.hidden, 1).init(device),
        }
    }
}

impl Regression {
    /// - inputs: `[rows, inputs]`
    /// - output: `[rows, hidden]`
    pub fn features(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.activation.forward(self.norm.forward(self.input.forward(inputs)))
    }

    /// - features: `[rows, hidden]`
    /// - output: `[rows, 1]`
    pub fn predict(&self, features: Tensor<2>) -> Tensor<2> {
        self.output.forward(features)
    }

    /// The mean squared error of points and their targets.
    pub fn loss(&self, (inputs, targets): &(Tensor<2>, Tensor<2>)) -> Tensor<1> {
        let predicted = self.predict(self.features(inputs.clone()));
        MseLoss::new().forward(predicted, targets.clone(), Reduction::Mean)
    }
}
