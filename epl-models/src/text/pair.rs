/// A sentence and its translation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// What the encoder reads.
    pub source: String,
    /// What the decoder shall write.
    pub target: String,
}
