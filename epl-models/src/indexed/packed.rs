//! Blocks of tokens for decoders.

use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use epl_core::{Error, Result};

use super::corpus::IndexedCorpus;
use crate::decoder::DecoderItem;

/// A corpus cut into blocks of equal length, whatever its documents: no padding, and every token but the first is written once.
///
/// Neighbouring blocks share a token, which one ends with and the other begins with. What is left behind the last block is not
/// read. Documents should end with a token of their own, as a block may hold the end of one and the begin of another.
#[derive(Clone, Debug)]
pub struct PackedBlocks {
    corpus: Arc<IndexedCorpus>,
    length: usize,
}

impl PackedBlocks {
    /// Blocks of so many tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for less than two tokens, or more than the corpus has.
    pub fn new(corpus: Arc<IndexedCorpus>, length: usize) -> Result<Self> {
        let tokens = corpus.tokens();
        if length < 2 || length > tokens {
            return Err(Error::invalid(format!(
                "blocks of {length} tokens: 2 to {tokens}, which the corpus has, are possible"
            )));
        }
        Ok(Self { corpus, length })
    }

    /// Tokens of a block.
    pub fn block_length(&self) -> usize {
        self.length
    }
}

impl Dataset<DecoderItem> for PackedBlocks {
    fn get(&self, index: usize) -> Result<DecoderItem, DatasetError> {
        let first = index * (self.length - 1);
        Ok(DecoderItem::new(self.corpus.stream(first..first + self.length)))
    }

    fn len(&self) -> usize {
        (self.corpus.tokens() - 1) / (self.length - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::token_type::TokenType;
    use super::super::write::write;
    use super::*;

    #[test]
    fn every_token_but_the_first_is_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        write(&prefix, TokenType::U16, [Ok(vec![(0..7).collect()]), Ok(vec![(7..12).collect()])]).unwrap();
        let corpus = Arc::new(IndexedCorpus::open(&prefix).unwrap());
        let blocks = PackedBlocks::new(corpus.clone(), 4).unwrap();
        let rows: Vec<Vec<i64>> = (0..blocks.len()).map(|index| blocks.get(index).unwrap().ids).collect();
        assert_eq!(rows, [vec![0, 1, 2, 3], vec![3, 4, 5, 6], vec![6, 7, 8, 9]], "10 and 11 are no whole block");
        assert_eq!(PackedBlocks::new(corpus.clone(), 12).unwrap().len(), 1);
        for length in [0, 1, 13] {
            let error = PackedBlocks::new(corpus.clone(), length).unwrap_err().to_string();
            assert!(error.contains(&format!("blocks of {length} tokens: 2 to 12")), "{error}");
        }
    }
}
