//! Rows of one text or two with hidden words, for BERT and RoBERTa.

use std::ops::Range;
use std::sync::Arc;

use burn::config::Config;
use burn::data::dataset::{Dataset, DatasetError};
use epl_core::{Error, Result};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::corpus::IndexedCorpus;
use crate::bert::{BertItem, IGNORED, PretrainingLabel};

/// Configuration to make [`MaskedWords`] by the [init function](MaskedWordsConfig::init).
#[derive(Config, Debug)]
pub struct MaskedWordsConfig {
    /// The most tokens of a row, with those that begin and end texts.
    pub length: usize,
    /// The number of tokens of the vocabulary.
    pub vocab: usize,
    /// The token that a row begins with: `[CLS]`, `<s>`.
    pub begin: i64,
    /// The token that each text ends with: `[SEP]`, `</s>`.
    pub end: i64,
    /// The token in place of a hidden one: `[MASK]`, `<mask>`.
    pub mask: i64,
    /// The share of the tokens to be hidden.
    #[config(default = 0.15)]
    pub share: f64,
    /// Whether a row has two texts, of which the second follows the first in half of the rows; otherwise one, as RoBERTa's.
    #[config(default = true)]
    pub next_sentence: bool,
    /// How often each piece of the corpus comes in a pass over the dataset, each time with other words hidden.
    #[config(default = 1)]
    pub duplicates: usize,
    /// What is hidden depends on it, and on the number of the row.
    #[config(default = 0)]
    pub seed: u64,
}

/// Rows of which words are hidden: 15 % of the tokens, of which 8 of 10 are replaced by the mask, one by any token, and one is
/// left. The labels are the tokens that stood there.
///
/// A row is made of consecutive sentences of one document, as many as fit. With two texts they are cut in two at any border of
/// sentences, and in half of the rows the second is replaced by sentences of another place. It serves both heads:
/// [`Pretraining`](crate::bert::Pretraining) and [`MaskedLanguage`](crate::bert::MaskedLanguage).
///
/// *BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding*, Devlin et al., 2019.
#[derive(Clone, Debug)]
pub struct MaskedWords {
    corpus: Arc<IndexedCorpus>,
    config: MaskedWordsConfig,
    /// Consecutive sentences of one document each.
    pieces: Arc<[Range<usize>]>,
    /// Of each token whether it goes on with a word, where whole words are hidden.
    goes_on: Option<Arc<[bool]>>,
}

impl MaskedWordsConfig {
    /// Rows of a corpus whose sequences are sentences.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with the first number that cannot be.
    pub fn init(&self, corpus: Arc<IndexedCorpus>) -> Result<MaskedWords> {
        let least = self.around() + 2;
        let invalid = |reason: String| Err(Error::invalid(format!("masked words: {reason}")));
        if self.length < least {
            return invalid(format!(
                "rows of {} tokens: at least {least} are needed, begin and ends with them",
                self.length
            ));
        }
        if !(0.0..=1.0).contains(&self.share) {
            return invalid(format!("`share` is {}; it should be 0 to 1", self.share));
        }
        if self.duplicates == 0 {
            return invalid("`duplicates` is 0; it should be at least 1".into());
        }
        for (name, token) in [("begin", self.begin), ("end", self.end), ("mask", self.mask)] {
            if !crate::rows::is_token(token, self.vocab) {
                return invalid(format!(
                    "`{name}` is token {token}; the tokens are 0 to {}",
                    self.vocab.saturating_sub(1)
                ));
            }
        }
        let pieces =
            (0..corpus.documents()).flat_map(|document| pieces(&corpus, document, self.length - self.around()));
        let pieces = pieces.collect();
        Ok(MaskedWords { corpus, config: self.clone(), pieces, goes_on: None })
    }

    /// Tokens of a row that belong to no text.
    fn around(&self) -> usize {
        if self.next_sentence { 3 } else { 2 }
    }
}

/// The sentences of a document, together as many as have `most` tokens; a longer one is alone.
fn pieces(corpus: &IndexedCorpus, document: usize, most: usize) -> Vec<Range<usize>> {
    let (mut pieces, mut tokens) = (Vec::<Range<usize>>::new(), 0);
    for sentence in corpus.document(document) {
        tokens += corpus.length(sentence);
        match pieces.last_mut() {
            Some(piece) if tokens <= most => piece.end = sentence + 1,
            _ => {
                pieces.push(sentence..sentence + 1);
                tokens = corpus.length(sentence);
            }
        }
    }
    pieces
}

impl MaskedWords {
    /// Hides whole words: `goes_on` says of each token of the vocabulary whether it goes on with the word of the token before, as
    /// those that WordPiece writes with `##`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when it is not one for each token.
    pub fn with_whole_words(self, goes_on: Vec<bool>) -> Result<Self> {
        if goes_on.len() != self.config.vocab {
            let (said, vocab) = (goes_on.len(), self.config.vocab);
            return Err(Error::invalid(format!("masked words: {said} tokens of {vocab} are said to go on or not")));
        }
        Ok(Self { goes_on: Some(goes_on.into()), ..self })
    }

    fn row(&self, index: usize) -> BertItem<PretrainingLabel> {
        let mut random = ChaCha8Rng::seed_from_u64(self.config.seed);
        random.set_stream(index as u64);
        let piece = self.pieces[index % self.pieces.len()].clone();
        let room = self.config.length - self.config.around();
        let (texts, sentence) = if self.config.next_sentence {
            let ([first, second], is_next) = self.pair(piece, room, &mut random);
            (vec![first, second], i64::from(!is_next))
        } else {
            let mut text = self.text(piece);
            text.truncate(room);
            (vec![text], IGNORED)
        };
        let (mut ids, mut token_types) = (vec![self.config.begin], vec![0]);
        for (number, text) in texts.into_iter().enumerate() {
            token_types.extend(vec![number as i64; text.len() + 1]);
            ids.extend(text);
            ids.push(self.config.end);
        }
        let tokens = self.hide(&mut ids, &mut random);
        BertItem::new(ids, token_types, PretrainingLabel { tokens, sentence })
    }

    fn text(&self, sentences: Range<usize>) -> Vec<i64> {
        sentences.flat_map(|sentence| self.corpus.sequence(sentence)).collect()
    }

    /// Two texts that together fit, and whether the second follows the first.
    fn pair(&self, piece: Range<usize>, room: usize, random: &mut ChaCha8Rng) -> ([Vec<i64>; 2], bool) {
        let cut = if piece.len() > 1 { random.random_range(piece.start + 1..piece.end) } else { piece.end };
        let first = self.text(piece.start..cut);
        // What follows a single sentence is not in the piece.
        let is_next = cut < piece.end && random.random_bool(0.5);
        let second = match is_next {
            true => self.text(cut..piece.end),
            false => {
                let other = self.pieces[random.random_range(0..self.pieces.len())].clone();
                let start = random.random_range(other.clone());
                self.text(start..other.end)
            }
        };
        let mut texts = [first, second];
        while texts[0].len() + texts[1].len() > room {
            let longer = usize::from(texts[1].len() > texts[0].len());
            // From either end, so that no place of a text is preferred.
            match random.random_bool(0.5) {
                true => drop(texts[longer].pop()),
                false => drop(texts[longer].remove(0)),
            }
        }
        (texts, is_next)
    }

    /// Hides words; gives back the tokens that stood there, and what is ignored elsewhere.
    fn hide(&self, ids: &mut [i64], random: &mut ChaCha8Rng) -> Vec<i64> {
        let MaskedWordsConfig { begin, end, mask, vocab, share, .. } = self.config;
        let goes_on = |token: i64| match (&self.goes_on, usize::try_from(token)) {
            (Some(goes_on), Ok(token)) => goes_on.get(token).copied().unwrap_or(false),
            _ => false,
        };
        let mut words: Vec<Vec<usize>> = Vec::new();
        let texts = ids.iter().enumerate().filter(|(at, token)| *at > 0 && **token != begin && **token != end);
        for (at, token) in texts {
            match words.last_mut() {
                Some(word) if goes_on(*token) && word.last() == Some(&(at - 1)) => word.push(at),
                _ => words.push(vec![at]),
            }
        }
        let tokens: usize = words.iter().map(Vec::len).sum();
        let wanted = ((share * tokens as f64).round() as usize).max(usize::from(share > 0.0));
        words.shuffle(random);
        let (mut labels, mut hidden) = (vec![IGNORED; ids.len()], 0);
        for word in words {
            // A word that would be too much is passed over for a shorter one.
            if hidden + word.len() > wanted {
                continue;
            }
            hidden += word.len();
            for at in word {
                labels[at] = ids[at];
                match random.random_range(0..10) {
                    0..8 => ids[at] = mask,
                    8 => ids[at] = random.random_range(0..vocab) as i64,
                    _ => {}
                }
            }
        }
        labels
    }
}

impl Dataset<BertItem<PretrainingLabel>> for MaskedWords {
    fn get(&self, index: usize) -> Result<BertItem<PretrainingLabel>, DatasetError> {
        Ok(self.row(index))
    }

    fn len(&self) -> usize {
        self.pieces.len() * self.config.duplicates
    }
}

impl Dataset<BertItem<Vec<i64>>> for MaskedWords {
    fn get(&self, index: usize) -> Result<BertItem<Vec<i64>>, DatasetError> {
        let BertItem { ids, token_types, tokens, label } = self.row(index);
        Ok(BertItem { ids, token_types, tokens, label: label.tokens })
    }

    fn len(&self) -> usize {
        Dataset::<BertItem<PretrainingLabel>>::len(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::token_type::TokenType;
    use super::super::write::write;
    use super::*;

    const VOCAB: usize = 1000;

    /// 40 documents of 1 to 9 sentences of 3 to 13 tokens; a token says where it is from.
    fn corpus(folder: &std::path::Path) -> Arc<IndexedCorpus> {
        let sentence = |document: usize, at: usize| -> Vec<i64> {
            (0..3 + (document * 7 + at * 5) % 11)
                .map(|token| (10 + (document * 97 + at * 13 + token) % 900) as i64)
                .collect()
        };
        let document = |document: usize| Ok((0..1 + document % 9).map(|at| sentence(document, at)).collect());
        let prefix = folder.join("corpus");
        write(&prefix, TokenType::U16, (0..40).map(document)).unwrap();
        Arc::new(IndexedCorpus::open(&prefix).unwrap())
    }

    fn config() -> MaskedWordsConfig {
        of_length(32)
    }

    fn of_length(length: usize) -> MaskedWordsConfig {
        MaskedWordsConfig::new(length, VOCAB, 1, 2, 3)
    }

    /// The row before anything was hidden.
    fn shown(item: &BertItem<PretrainingLabel>) -> Vec<i64> {
        let labels = item.label.tokens.iter();
        item.ids.iter().zip(labels).map(|(id, label)| if *label == IGNORED { *id } else { *label }).collect()
    }

    #[test]
    fn a_row_is_two_texts_of_which_a_share_is_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let words = config().with_duplicates(50).init(corpus(folder.path())).unwrap();
        let (mut kinds, mut counts, mut next) = ([0; 3], [0; 2], 0);
        let rows = Dataset::<BertItem<PretrainingLabel>>::len(&words);
        for index in 0..rows {
            let item = words.row(index);
            assert!(item.ids.len() <= 32 && item.ids.len() == item.token_types.len());
            let shown = shown(&item);
            assert_eq!((shown[0], shown.iter().filter(|token| **token == 2).count()), (1, 2), "begin and two ends");
            let border = shown.iter().position(|token| *token == 2).unwrap();
            assert!(item.token_types[..=border].iter().all(|kind| *kind == 0));
            assert!(item.token_types[border + 1..].iter().all(|kind| *kind == 1));
            let hidden = item.label.tokens.iter().filter(|label| **label != IGNORED).count();
            assert_eq!(hidden, ((0.15 * (shown.len() - 3) as f64).round() as usize).max(1));
            counts = [counts[0] + hidden, counts[1] + shown.len() - 3];
            next += 1 - item.label.sentence;
            for (id, label) in item.ids.iter().zip(&item.label.tokens).filter(|(_, label)| **label != IGNORED) {
                assert!(*label >= 10, "begin and end are never hidden");
                kinds[if *id == 3 { 0 } else { usize::from(id == label) + 1 }] += 1;
            }
        }
        let share = |part: usize, whole: usize| part as f64 / whole as f64;
        let hidden = counts[0];
        assert!((share(hidden, counts[1]) - 0.15).abs() < 0.02);
        assert!((share(kinds[0], hidden) - 0.8).abs() < 0.02, "{kinds:?}");
        assert!(
            (share(kinds[1], hidden) - 0.1).abs() < 0.02 && (share(kinds[2], hidden) - 0.1).abs() < 0.02,
            "{kinds:?}"
        );
        // Pieces of one sentence have nothing that follows.
        assert!((0.3..0.5).contains(&share(next as usize, rows)), "{next} of {rows}");
    }

    #[test]
    fn a_text_that_follows_is_what_stands_behind() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path());
        let words = of_length(200).init(corpus.clone()).unwrap();
        let whole = corpus.stream(0..corpus.tokens());
        let stands = |tokens: &[i64]| whole.windows(tokens.len()).any(|window| window == tokens);
        let mut seen = [0; 2];
        for index in 0..Dataset::<BertItem<PretrainingLabel>>::len(&words) {
            let item = words.row(index);
            let shown = shown(&item);
            let texts: Vec<&[i64]> = shown[1..].split(|token| *token == 2).collect();
            assert!(stands(texts[0]) && stands(texts[1]));
            seen[item.label.sentence as usize] += 1;
            if item.label.sentence == 0 {
                assert!(stands(&texts[..2].concat()), "row {index}");
            }
        }
        assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
    }

    #[test]
    fn a_row_depends_on_its_number_and_the_seed_alone() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path());
        let rows = |config: MaskedWordsConfig| {
            let words = config.init(corpus.clone()).unwrap();
            (0..20).rev().map(|index| words.row(index)).collect::<Vec<_>>()
        };
        assert_eq!(rows(config()), rows(config()));
        assert_ne!(rows(config()), rows(config().with_seed(1)));
        let words = config().with_duplicates(2).init(corpus.clone()).unwrap();
        let pieces = words.pieces.len();
        let again = [0, 1].map(|time| words.row(3 + time * pieces));
        assert_ne!(again[0], again[1], "the same piece with other words hidden");
    }

    #[test]
    fn one_text_and_whole_words() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path());
        // Every token but each third goes on with a word.
        let goes_on: Vec<bool> = (0..VOCAB).map(|token| token % 3 != 0).collect();
        let words = config().with_next_sentence(false).with_share(0.4).init(corpus.clone()).unwrap();
        let words = words.with_whole_words(goes_on.clone()).unwrap();
        for index in 0..Dataset::<BertItem<Vec<i64>>>::len(&words) {
            let item = words.row(index);
            assert_eq!((item.label.sentence, item.token_types.iter().sum::<i64>()), (IGNORED, 0));
            let (shown, labels) = (shown(&item), &item.label.tokens);
            for at in 2..shown.len() - 1 {
                if goes_on[shown[at] as usize] {
                    assert_eq!(labels[at] == IGNORED, labels[at - 1] == IGNORED, "row {index}: a word is cut at {at}");
                }
            }
        }
        let error = words.with_whole_words(vec![true; 3]).unwrap_err().to_string();
        assert!(error.contains("3 tokens of 1000 are said to go on or not"), "{error}");
    }

    #[test]
    fn impossible_numbers_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path());
        let refused = |config: MaskedWordsConfig| config.init(corpus.clone()).unwrap_err().to_string();
        assert!(refused(of_length(4)).contains("rows of 4 tokens: at least 5 are needed"));
        assert!(refused(config().with_share(1.5)).contains("`share` is 1.5"));
        assert!(refused(config().with_duplicates(0)).contains("`duplicates` is 0"));
        assert!(
            refused(MaskedWordsConfig { mask: 1000, ..config() })
                .contains("`mask` is token 1000; the tokens are 0 to 999")
        );
    }
}
