impl RegressionConfig {
    /// The net in two segments, each with the parts that it uses.
    pub fn chain(&self, device: &Device) -> epl::Chain<Regression, Points, Tensor<2>> {
        epl::Chain::of(self.init(device))
            .first(&["input", "norm"], |net: &Regression, (inputs, _): &Points| net.features(inputs.clone()))
            .then(&["output"], |net, features, _| net.predict(features))
            .mean_loss(|_, predicted, (_, targets)| MseLoss::new().forward(predicted, targets.clone(), Reduction::Mean))
    }
}
