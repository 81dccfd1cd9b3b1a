impl ImageClassifierConfig {
    /// The classifier in three segments, each with the parts that it uses.
    pub fn chain(&self, device: &Device) -> epl::Chain<ImageClassifier, Images, Tensor<2>> {
        epl::Chain::of(self.init(device))
            .first(&["conv1", "norm1"], |net: &ImageClassifier, (images, _): &Images| net.edges(images.clone()))
            .then(&["conv2", "norm2"], |net, edges, _| net.features(edges))
            .then(&["hidden", "dropout", "output"], |net, features, _| net.classify(features))
            .mean_loss(|_, logits, (_, classes)| {
                CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes.clone())
            })
    }
}
