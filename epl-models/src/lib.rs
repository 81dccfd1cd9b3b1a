
pub mod text;

pub use text::{
    Bleu, BleuCounts, BpeConfig, ExactMatch, NumberPairs, NumberPairsConfig, Pair, ParallelCorpus, TokenPair,
    TokenPairs, Tokenizer,
};
