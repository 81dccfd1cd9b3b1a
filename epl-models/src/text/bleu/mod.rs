//! Corpus BLEU (Papineni et al., 2002) by the definition of sacreBLEU (Post, 2018), so that scores can be compared
//! with published ones.
//!
//! Signature: `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp`. Tokens by `mteval-v13a`, n-grams up to four, clipped
//! counts summed over the corpus, exponential smoothing of empty orders, brevity penalty over the corpus.
//! `fixtures/bleu/pairs.json` holds sacreBLEU's own scores; they agree to 1e-9.
//!
//! [`BleuCounts`] is what is summed, over sentences and over ranks; [`Bleu`] is computed from the sum once. BLEU is
//! not a mean over sentences.

mod counts;
mod score;
mod tokenize;

pub use counts::BleuCounts;
pub use score::Bleu;
pub use tokenize::tokenize_13a;

/// The longest n-gram.
pub const ORDER: usize = 4;

#[cfg(test)]
mod tests;
