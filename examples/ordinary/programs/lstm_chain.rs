impl ForecastConfig {
    /// The net in two segments, each with the parts that it uses.
    pub fn chain(&self, device: &Device) -> epl::Chain<Forecast, Curves, Tensor<2>> {
        epl::Chain::of(self.init(device))
            .first(&["lstm"], |net: &Forecast, (sequences, _): &Curves| net.last_state(sequences.clone()))
            .then(&["norm", "dropout", "output"], |net, state, _| net.predict(state))
            .mean_loss(|_, predicted, (_, targets)| MseLoss::new().forward(predicted, targets.clone(), Reduction::Mean))
    }
}
