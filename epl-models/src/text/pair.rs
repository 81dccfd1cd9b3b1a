use burn::data::dataloader::batcher::Batcher;
use burn::tensor::Device;

/// A sentence and its translation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// What the encoder reads.
    pub source: String,
    /// What the decoder shall write.
    pub target: String,
}

/// Hands pairs on as text, for an evaluation in which the model writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairBatcher;

impl Batcher<Pair, Vec<Pair>> for PairBatcher {
    fn batch(&self, items: Vec<Pair>, _device: &Device) -> Vec<Pair> {
        items
    }
}
