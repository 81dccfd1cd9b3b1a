use std::fmt;

use burn::data::dataset::{Dataset, DatasetError};

use crate::text::{Error, Pair, Result, Tokenizer};

/// Pairs that are cut into tokens at a time: enough for all threads, little memory.
const CHUNK: usize = 4096;

/// A pair as tokens, each side with its end token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPair {
    /// What the encoder reads.
    pub source: Vec<i64>,
    /// What the decoder shall write. Its input is this, shifted right, with the decoder's start token first.
    pub target: Vec<i64>,
}

/// Tokens of both sides of a pair, the end token included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lengths {
    /// Tokens of the target: the dearer side, so pairs sort by it first.
    pub target: usize,
    /// Tokens of the source.
    pub source: usize,
}

impl Lengths {
    /// The longer side.
    pub fn longest(&self) -> usize {
        self.source.max(self.target)
    }
}

/// Pairs that were left out of a training set. Its display is the sentence to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Pairs before.
    pub pairs: usize,
    /// Pairs with an empty side.
    pub empty: usize,
    /// Pairs with a side longer than the limit.
    pub too_long: usize,
    /// The limit, in tokens with the end token.
    pub longest: usize,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pairs, empty, too_long, longest } = self;
        let dropped = empty + too_long;
        write!(f, "dropped {dropped} of {pairs} pairs: {empty} with an empty side, ")?;
        write!(f, "{too_long} longer than {longest} tokens")
    }
}

/// A corpus as tokens, held compactly (four bytes a token); a Burn dataset of [`TokenPair`]s.
#[derive(Clone, Debug, Default)]
pub struct TokenPairs {
    source: Rows,
    target: Rows,
}

impl TokenPairs {
    /// Cuts every pair: for evaluation, where none may be missing.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] from a loaded tokenizer; [`Error::Dataset`] from the dataset.
    pub fn all(pairs: &impl Dataset<Pair>, tokenizer: &Tokenizer) -> Result<Self> {
        let mut kept = Self::default();
        for_each(pairs, tokenizer, |_, tokens| kept.push(tokens))?;
        Ok(kept)
    }

    /// Cuts the pairs that can be trained on: both sides non-empty and at most `longest` tokens, the end token
    /// included. Says what was left out.
    ///
    /// # Errors
    /// [`Error::AllDropped`] if no pair is left; otherwise as [`all`](Self::all).
    pub fn up_to(longest: usize, pairs: &impl Dataset<Pair>, tokenizer: &Tokenizer) -> Result<(Self, Dropped)> {
        let mut kept = Self::default();
        let mut dropped = Dropped { pairs: pairs.len(), empty: 0, too_long: 0, longest };
        let mut shortest = usize::MAX;
        for_each(pairs, tokenizer, |pair, tokens| {
            let length = tokens.source.len().max(tokens.target.len());
            if pair.source.trim().is_empty() || pair.target.trim().is_empty() {
                dropped.empty += 1;
            } else if length > longest {
                dropped.too_long += 1;
                shortest = shortest.min(length);
            } else {
                kept.push(tokens);
            }
        })?;
        if kept.is_empty() {
            let Dropped { pairs, empty, too_long, longest } = dropped;
            let shortest = if too_long == 0 { 0 } else { shortest };
            return Err(Error::AllDropped { pairs, empty, too_long, longest, shortest });
        }
        Ok((kept, dropped))
    }

    fn push(&mut self, tokens: &TokenPair) {
        self.source.push(&tokens.source);
        self.target.push(&tokens.target);
    }

    /// What tells these pairs from others, for a run's checkpoints: see `Trainer::with_invariant`.
    pub fn fingerprint(&self) -> String {
        epl_core::trainer::fingerprint(self.source.bytes().chain(self.target.bytes()))
    }

    /// How long a pair is, without building it: for sorting into batches of similar length.
    ///
    /// # Panics
    /// If there are not so many pairs.
    pub fn lengths(&self, index: usize) -> Lengths {
        Lengths { source: self.source.range(index).len(), target: self.target.range(index).len() }
    }
}

impl Dataset<TokenPair> for TokenPairs {
    fn get(&self, index: usize) -> Result<TokenPair, DatasetError> {
        Ok(TokenPair { source: self.source.get(index), target: self.target.get(index) })
    }

    fn len(&self) -> usize {
        self.source.ends.len()
    }
}

/// Rows of tokens, one after the other.
#[derive(Clone, Debug, Default)]
struct Rows {
    tokens: Vec<u32>,
    ends: Vec<usize>,
}

impl Rows {
    fn push(&mut self, row: &[i64]) {
        self.tokens.extend(row.iter().map(|&token| u32::try_from(token).expect("a tokenizer numbers pieces in u32")));
        self.ends.push(self.tokens.len());
    }

    /// The lengths of the rows, then their tokens.
    fn bytes(&self) -> impl Iterator<Item = [u8; 8]> {
        let number = |number: u64| number.to_le_bytes();
        let ends = self.ends.iter().map(move |end| number(*end as u64));
        ends.chain(self.tokens.iter().map(move |token| number(u64::from(*token))))
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        start..self.ends[index]
    }

    fn get(&self, index: usize) -> Vec<i64> {
        self.tokens[self.range(index)].iter().map(|&token| i64::from(token)).collect()
    }
}

/// Every pair with its tokens, in order, chunk by chunk.
fn for_each(pairs: &impl Dataset<Pair>, tokenizer: &Tokenizer, mut visit: impl FnMut(&Pair, &TokenPair)) -> Result<()> {
    for start in (0..pairs.len()).step_by(CHUNK) {
        let end = (start + CHUNK).min(pairs.len());
        let chunk = (start..end).map(|index| pairs.get(index)).collect::<Result<Vec<Pair>, _>>();
        let chunk = chunk.map_err(|cause| Error::Dataset { cause })?;
        let source = tokenizer.encode_batch(chunk.iter().map(|pair| pair.source.clone()).collect())?;
        let target = tokenizer.encode_batch(chunk.iter().map(|pair| pair.target.clone()).collect())?;
        for (pair, (source, target)) in chunk.iter().zip(source.into_iter().zip(target)) {
            visit(pair, &TokenPair { source, target });
        }
    }
    Ok(())
}
