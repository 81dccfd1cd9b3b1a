
pub mod text;
pub mod huggingface;
pub mod t5;

pub use text::{
    Bleu, BleuCounts, BpeConfig, ExactMatch, NumberPairs, NumberPairsConfig, Pair, ParallelCorpus, TokenPair,
    TokenPairs, Tokenizer,
};
