impl TextClassifierConfig {
    /// The classifier in three segments, each with the parts that it uses.
    pub fn chain(&self, device: &Device) -> epl::Chain<TextClassifier, Texts, Tensor<2>> {
        epl::Chain::of(self.init(device))
            .first(&["tokens", "positions"], |net: &TextClassifier, (tokens, ..): &Texts| net.embed(tokens.clone()))
            .then(&["encoder"], |net, texts, (_, missing, _)| net.encode(texts, missing.clone()))
            .then(&["output"], |net, texts, _| net.classify(texts))
            .mean_loss(|_, logits, (.., classes)| {
                CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes.clone())
            })
    }
}
