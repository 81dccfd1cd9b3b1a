use burn::config::Config;
use burn::module::Module;
use burn::tensor::Tensor;

/// Configuration to create a [`Forecast`].
#[derive(Config, Debug)]
pub struct ForecastConfig {
    /// The numbers at each time.
    pub inputs: usize,
    /// The features of the state. Default: 16
    #[config(default = "16")]
    pub hidden: usize,
    /// The rate of dropout on the last state. Default: 0.1
    #[config(default = "0.1")]
    pub dropout: f64,
}

/// How a sequence goes on.
#[derive(Module, Debug)]
pub struct Forecast {
    lstm: Lstm,
    norm: LayerNorm,
    dropout: Dropout,
    output: Linear,
}

impl ForecastConfig {
    /// Initializes a new net.
    pub fn init(&self, device: &Device) -> Forecast {
        Forecast {
            lstm: LstmConfig::new(self.inputs, self.hidden, true).init(device),
            norm: LayerNormConfig::new(self.hidden).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
            output: LinearConfig::new(self.hidden, self.inputs).init(device),
        }
    }
}

impl Forecast {
    /// - sequences: `[rows, length, inputs]`
    /// - output: `[rows, hidden]`
    pub fn last_state(&self, sequences: Tensor<3>) -> Tensor<2> {
        let (_, state) = self.lstm.forward(sequences, None);
        state.hidden
    }

    /// - state: `[rows, hidden]`
    /// - output: `[rows, inputs]`
    pub fn predict(&self, state: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.dropout.forward(self.norm.forward(state)))
    }

    /// The mean squared error of what comes next.
    pub fn loss(&self, (sequences, targets): &(Tensor<3>, Tensor<2>)) -> Tensor<1> {
        let predicted = self.predict(self.last_state(sequences.clone()));
        MseLoss::new().forward(predicted, targets.clone(), Reduction::Mean)
    }
}
