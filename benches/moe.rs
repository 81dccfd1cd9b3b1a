//! The mixture-of-experts T5 of which the benches measure a step, and rows for it.

use std::ops::Range;

use burn::data::dataloader::batcher::Batcher;
use epl::Epl;
use epl::models::t5::{T5Batch, T5Batcher, T5Config, T5MoeConfig};
use epl::models::text::TokenPair;

/// Eight experts in every second block: 24 million parameters.
pub fn model() -> T5Config {
    let moe = T5MoeConfig::new(8).with_encoder_sparse_step(2).with_decoder_sparse_step(2);
    T5Config::new(8000)
        .with_d_model(256)
        .with_d_kv(32)
        .with_d_ff(1024)
        .with_encoder_layers(4)
        .with_decoder_layers(4)
        .with_moe(Some(moe))
}

/// These rows, each of 64 tokens.
pub fn batch(epl: &Epl, rows: Range<usize>) -> T5Batch {
    let token = |at: usize| 2 + (at * 7919 % 7000) as i64;
    let sentence = |from: usize| (from..from + 63).map(token).chain([1]).collect::<Vec<_>>();
    let pairs = rows.map(|n| TokenPair { source: sentence(n * 64), target: sentence(n * 64 + 31) }).collect();
    T5Batcher::new(&model()).batch(pairs, epl.place().device())
}
