//! Rows with spans cut out, for T5.

use std::sync::Arc;

use burn::config::Config;
use burn::data::dataset::{Dataset, DatasetError};
use epl_core::{Error, Result, trainer};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::corpus::IndexedCorpus;
use crate::text::TokenPair;

/// Configuration to make [`SpanCorruption`] by the [init function](SpanCorruptionConfig::init).
#[derive(Config, Debug)]
pub struct SpanCorruptionConfig {
    /// Tokens of the corpus that a row is made of.
    pub length: usize,
    /// The token that stands for the first span; the next ones are those below it: `<extra_id_0>`.
    pub sentinel: i64,
    /// The token that each side ends with.
    pub eos: i64,
    /// The share of the tokens to be cut out.
    #[config(default = 0.15)]
    pub share: f64,
    /// The mean length of a span.
    #[config(default = 3.0)]
    pub mean_span: f64,
    /// What is cut out depends on it, and on the number of the row. A run that is resumed should be given the same settings:
    /// [`SpanCorruption::fingerprint`] tells.
    #[config(default = 0)]
    pub seed: u64,
}

/// Rows of which spans are cut out, the last one at the end. The source has a sentinel in the place of each; the target has each
/// behind its sentinel.
///
/// ```text
/// tokens   thank you for inviting me to your party last week
/// source   thank you ⟨0⟩ me to your party ⟨1⟩ ⟨eos⟩
/// target   ⟨0⟩ for inviting ⟨1⟩ last week ⟨eos⟩
/// ```
///
/// ```
/// use std::sync::Arc;
/// use epl_models::indexed::{IndexedCorpus, SpanCorruptionConfig, TokenType, write};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let prefix = folder.path().join("corpus");
/// // One document of one sequence; or a corpus of `epl-corpus`, or of Megatron-LM.
/// write(&prefix, TokenType::for_vocabulary(1000), [Ok(vec![(0..100).collect()])])?;
/// let rows = SpanCorruptionConfig::new(20, 999, 1).init(Arc::new(IndexedCorpus::open(&prefix)?))?;
/// assert_eq!(rows.lengths(), [19, 5]); // 3 of 20 tokens are cut out, in one span
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer*, Raffel et al., 2020.
#[derive(Clone, Debug)]
pub struct SpanCorruption {
    corpus: Arc<IndexedCorpus>,
    config: SpanCorruptionConfig,
    /// Tokens that are cut out of a row, and into how many spans.
    cut: usize,
    spans: usize,
}

impl SpanCorruptionConfig {
    /// Rows of a corpus, whatever its documents.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with the first number that cannot be.
    pub fn init(&self, corpus: Arc<IndexedCorpus>) -> Result<SpanCorruption> {
        let invalid = |reason: String| Err(Error::invalid(format!("span corruption: {reason}")));
        if self.length < 2 || self.length > corpus.tokens() {
            let (length, tokens) = (self.length, corpus.tokens());
            return invalid(format!("rows of {length} tokens: 2 to {tokens}, which the corpus has, are possible"));
        }
        let are_possible = self.share > 0.0 && self.share < 1.0 && self.mean_span >= 1.0 && self.mean_span.is_finite();
        if !are_possible {
            let (share, mean) = (self.share, self.mean_span);
            return invalid(format!(
                "`share` is {share} and `mean_span` {mean}; the first is between 0 and 1, the other at least 1"
            ));
        }
        let cut = ((self.length as f64 * self.share).round() as usize).clamp(1, self.length - 1);
        let spans = ((cut as f64 / self.mean_span).round() as usize).clamp(1, cut);
        // Each span stands behind a token that is left.
        if spans > self.length - cut {
            let left = self.length - cut;
            return invalid(format!(
                "{cut} tokens are cut out in {spans} spans, and {left} are left to stand between them"
            ));
        }
        let last = self.sentinel - (spans as i64 - 1);
        if last < 0 || (last..=self.sentinel).contains(&self.eos) {
            let (sentinel, eos) = (self.sentinel, self.eos);
            return invalid(format!("the sentinels of {spans} spans are {sentinel} down to {last}; `eos` is {eos}"));
        }
        Ok(SpanCorruption { corpus, config: self.clone(), cut, spans })
    }
}

impl SpanCorruption {
    /// What tells the rows from others.
    pub fn fingerprint(&self) -> String {
        trainer::fingerprint([self.config.to_string(), self.corpus.fingerprint()])
    }

    /// Tokens of each source and of each target, ends with them.
    pub fn lengths(&self) -> [usize; 2] {
        [self.config.length - self.cut + self.spans + 1, self.cut + self.spans + 1]
    }
}

/// So many items in so many parts, none empty, each way as likely.
fn parts(items: usize, parts: usize, random: &mut ChaCha8Rng) -> Vec<usize> {
    let mut begins = vec![false; items - 1];
    begins[..parts - 1].fill(true);
    begins.shuffle(random);
    let mut lengths = vec![1];
    for begins in begins {
        match lengths.last_mut() {
            Some(last) if !begins => *last += 1,
            _ => lengths.push(1),
        }
    }
    lengths
}

impl Dataset<TokenPair> for SpanCorruption {
    fn get(&self, index: usize) -> Result<TokenPair, DatasetError> {
        let SpanCorruptionConfig { length, sentinel, eos, seed, .. } = self.config;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(index as u64);
        let tokens = self.corpus.stream(index * length..(index + 1) * length);
        let sentinels = sentinel - (self.spans as i64 - 1)..=sentinel;
        if let Some(token) = tokens.iter().find(|token| sentinels.contains(token)) {
            let reason = format!("row {index} has token {token}, which is one of the sentinels {sentinels:?}");
            return Err(DatasetError::new(Error::invalid(reason)));
        }
        let cut = parts(self.cut, self.spans, &mut random);
        let left = parts(length - self.cut, self.spans, &mut random);
        let [mut source, mut target] = self.lengths().map(Vec::with_capacity);
        let mut rest = &tokens[..];
        for (number, (left, cut)) in left.into_iter().zip(cut).enumerate() {
            let (shown, behind) = rest.split_at(left);
            let (hidden, behind) = behind.split_at(cut);
            let sentinel = sentinel - number as i64;
            source.extend_from_slice(shown);
            source.push(sentinel);
            target.push(sentinel);
            target.extend_from_slice(hidden);
            rest = behind;
        }
        source.push(eos);
        target.push(eos);
        Ok(TokenPair { source, target })
    }

    fn len(&self) -> usize {
        self.corpus.tokens() / self.config.length
    }
}

#[cfg(test)]
mod tests {
    use super::super::token_type::TokenType;
    use super::super::write::write;
    use super::*;

    fn corpus(folder: &std::path::Path, tokens: i64) -> Arc<IndexedCorpus> {
        let prefix = folder.join("corpus");
        write(&prefix, TokenType::I32, [Ok(vec![(2..tokens + 2).collect()])]).unwrap();
        Arc::new(IndexedCorpus::open(&prefix).unwrap())
    }

    /// The tokens of a row again, each span put in the place of its sentinel.
    fn joined(pair: &TokenPair, first: i64) -> Vec<i64> {
        let spans: Vec<&[i64]> = pair.target.split(|token| *token > first - 100).skip(1).collect();
        let place = |token: &i64| match first - token {
            number @ 0..100 => spans[number as usize].to_vec(),
            _ => vec![*token],
        };
        pair.source.iter().flat_map(place).filter(|token| *token != 1).collect()
    }

    #[test]
    fn source_and_target_together_are_the_row() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path(), 6407);
        let spans = SpanCorruptionConfig::new(64, 9999, 1).init(corpus.clone()).unwrap();
        assert_eq!((spans.len(), spans.lengths()), (100, [64 - 10 + 3 + 1, 10 + 3 + 1]));
        let mut starts = [0; 64];
        for index in 0..spans.len() {
            let pair = spans.get(index).unwrap();
            assert_eq!([pair.source.len(), pair.target.len()], spans.lengths());
            assert_eq!((pair.source.last(), pair.target.last()), (Some(&1), Some(&1)));
            let sentinels: Vec<i64> = pair.source.iter().copied().filter(|token| *token > 9000).collect();
            assert_eq!(sentinels, [9999, 9998, 9997]);
            assert_eq!(joined(&pair, 9999), corpus.stream(index * 64..(index + 1) * 64), "row {index}");
            starts[pair.source.iter().position(|token| *token == 9999).unwrap()] += 1;
            assert_eq!(spans.get(index).unwrap(), pair);
        }
        assert!(starts.iter().filter(|count| **count > 0).count() > 20, "spans begin everywhere: {starts:?}");
    }

    #[test]
    fn small_rows_and_impossible_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path(), 10);
        let config = |length: usize| SpanCorruptionConfig::new(length, 999, 1);
        let pair = config(2).init(corpus.clone()).unwrap().get(4).unwrap();
        assert_eq!((pair.source, pair.target), (vec![10, 999, 1], vec![999, 11, 1]));
        // Half of a row in spans of one: every second token.
        let every = config(10).with_share(0.5).with_mean_span(1.0).init(corpus.clone()).unwrap();
        assert_eq!(every.get(0).unwrap().source, [2, 999, 4, 998, 6, 997, 8, 996, 10, 995, 1]);
        let refused = |config: SpanCorruptionConfig| config.init(corpus.clone()).unwrap_err().to_string();
        assert!(refused(config(11)).contains("rows of 11 tokens: 2 to 10"));
        assert!(refused(config(2).with_share(1.0)).contains("`share` is 1 and `mean_span` 3"));
        assert!(refused(config(2).with_mean_span(0.5)).contains("`mean_span` 0.5"));
        let few = SpanCorruptionConfig { sentinel: 3, ..config(10).with_share(0.5).with_mean_span(1.0) };
        assert!(refused(few).contains("the sentinels of 5 spans are 3 down to -1; `eos` is 1"));
        let dense = config(10).with_share(0.9).with_mean_span(1.0);
        assert!(refused(dense).contains("9 tokens are cut out in 9 spans, and 1 are left"));
        let meets = SpanCorruptionConfig { sentinel: 5, ..config(2) }.init(corpus.clone()).unwrap();
        let error = meets.get(1).unwrap_err().to_string();
        assert!(error.contains("row 1 has token 5, which is one of the sentinels"), "{error}");
    }
}
