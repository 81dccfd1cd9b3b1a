//! Rows of one text or two with hidden words, for BERT and RoBERTa.

use std::ops::Range;
use std::sync::Arc;

use burn::config::Config;
use burn::data::dataset::{Dataset, DatasetError};
use epl_core::{Error, Result, trainer};
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
    /// Whether a row has two texts, which are in their order in half of the rows; otherwise one, as RoBERTa's.
    #[config(default = true)]
    pub next_sentence: bool,
    /// The probability that a row is a shorter one: then it has at most 2 to `length` tokens, each number alike likely, beside those
    /// that begin and end texts, but no less than one sentence. BERT's is 0.1: most texts that it is used for later are short.
    #[config(default = 0.0)]
    pub short: f64,
    /// How often each piece of the corpus comes in a pass over the dataset, each time with other words hidden.
    #[config(default = 1)]
    pub duplicates: usize,
    /// Tokens that never take the place of a hidden one, beside those that begin, end and hide, such as padding.
    #[config(default = "Vec::new()")]
    pub never: Vec<i64>,
    /// What is hidden depends on it, and on the number of the row. A run that is resumed should be given the same settings:
    /// [`MaskedWords::fingerprint`] tells.
    #[config(default = 0)]
    pub seed: u64,
}

/// Rows of which words are hidden: 15 % of the tokens, of which 8 of 10 are replaced by the mask, one by any token, and one is
/// left. The labels are the tokens that stood there. Words are hidden as they come in a random order, and one that would be too
/// much is passed over: in a short row a long word is seldom hidden.
///
/// A row is made of consecutive sentences of one document, as many as fit; of a longer sentence each row has a part. With two
/// texts they are cut in two at any border of sentences, and in half of the rows the two change places: neither the length of a
/// row nor what it is about tells which. What is one sentence is one text, whose order does not count. It serves both heads:
/// [`Pretraining`](crate::bert::Pretraining) and [`MaskedLanguage`](crate::bert::MaskedLanguage).
///
/// ```
/// use std::sync::Arc;
/// use burn::data::dataset::Dataset;
/// use epl_models::bert::{BertItem, IGNORED, PretrainingLabel};
/// use epl_models::indexed::{IndexedCorpus, MaskedWordsConfig, TokenType, write};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let prefix = folder.path().join("corpus");
/// // One document of two sentences; 1 begins a row, 2 ends a text, 3 hides a token.
/// write(&prefix, TokenType::for_vocabulary(50), [Ok(vec![(10..18).collect(), (20..27).collect()])])?;
/// let rows = MaskedWordsConfig::new(18, 50, 1, 2, 3).with_share(0.2).init(Arc::new(IndexedCorpus::open(&prefix)?))?;
/// let row: BertItem<PretrainingLabel> = rows.get(0).expect("there is one");
/// let hidden = row.label.tokens.iter().filter(|token| **token != IGNORED).count();
/// assert_eq!((row.ids.len(), hidden), (8 + 7 + 3, 3)); // a fifth of the 15 tokens of the texts
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// *BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding*, Devlin et al., 2019; texts that change places
/// as in *Megatron-LM*, where BERT takes the second one from elsewhere.
#[derive(Clone)]
pub struct MaskedWords {
    corpus: Arc<IndexedCorpus>,
    config: MaskedWordsConfig,
    pieces: Arc<[Piece]>,
    /// Of each token whether it goes on with a word, where whole words are hidden.
    goes_on: Option<Arc<[bool]>>,
}

/// Consecutive sentences of one document, or a part of one that is longer than a row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    sentences: Range<usize>,
    /// The tokens of that one.
    part: Option<Range<usize>>,
}

impl std::fmt::Debug for MaskedWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pieces of {:?}, {:?}", self.pieces.len(), self.corpus, self.config)
    }
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
        for (name, probability) in [("share", self.share), ("short", self.short)] {
            if !(0.0..=1.0).contains(&probability) {
                return invalid(format!("`{name}` is {probability}; it should be 0 to 1"));
            }
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
        let is_free = |token: i64| ![self.begin, self.end, self.mask].contains(&token) && !self.never.contains(&token);
        if !(0..self.vocab as i64).any(is_free) {
            return invalid("no token is left to take the place of another one".into());
        }
        let pieces: Arc<[Piece]> =
            (0..corpus.documents()).flat_map(|document| self.pieces(&corpus, document)).collect();
        if pieces.is_empty() {
            return invalid("the corpus has no document".into());
        }
        if self.next_sentence && pieces.iter().all(|piece| piece.sentences.len() < 2) {
            let remedy = "write each document as its sentences, or set `next_sentence` to false";
            return invalid(format!("no two sentences of a document fit into a row of {}: {remedy}", self.length));
        }
        Ok(MaskedWords { corpus, config: self.clone(), pieces, goes_on: None })
    }

    /// Tokens of a row that belong to no text.
    fn around(&self) -> usize {
        if self.next_sentence { 3 } else { 2 }
    }

    /// The sentences of a document, together as many as fit into a row; of one that does not fit, parts that do.
    fn pieces(&self, corpus: &IndexedCorpus, document: usize) -> Vec<Piece> {
        let most = self.length - self.around();
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        // Not the streams of the rows.
        random.set_stream(u64::MAX - document as u64);
        let mut room =
            || if self.short > 0.0 && random.random_bool(self.short) { random.random_range(2..=most) } else { most };
        let (mut pieces, mut tokens, mut fit) = (Vec::<Piece>::new(), 0, 0);
        for sentence in corpus.document(document) {
            let length = corpus.length(sentence);
            tokens += length;
            match pieces.last_mut() {
                Some(Piece { sentences, part: None }) if tokens <= fit => sentences.end = sentence + 1,
                _ if length <= most => {
                    pieces.push(Piece { sentences: sentence..sentence + 1, part: None });
                    (tokens, fit) = (length, room());
                }
                _ => {
                    let part = |start: usize| Some(start..(start + most).min(length));
                    let parts = (0..length).step_by(most).map(part);
                    pieces.extend(parts.map(|part| Piece { sentences: sentence..sentence + 1, part }));
                }
            }
        }
        pieces
    }
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

    /// What tells the rows from others.
    pub fn fingerprint(&self) -> String {
        let goes_on: Vec<u8> =
            self.goes_on.iter().flat_map(|all| all.iter().map(|goes_on| u8::from(*goes_on))).collect();
        let parts = [self.config.to_string().into_bytes(), goes_on, self.corpus.fingerprint().into_bytes()];
        trainer::fingerprint(parts)
    }

    fn row(&self, index: usize) -> BertItem<PretrainingLabel> {
        let mut random = ChaCha8Rng::seed_from_u64(self.config.seed);
        random.set_stream(index as u64);
        let (texts, sentence) = self.texts(&self.pieces[index % self.pieces.len()], &mut random);
        let (mut ids, mut token_types) = (vec![self.config.begin], vec![0]);
        for (number, text) in texts.into_iter().enumerate() {
            token_types.extend(vec![number as i64; text.len() + 1]);
            ids.extend(text);
            ids.push(self.config.end);
        }
        let tokens = self.hide(&mut ids, &mut random);
        BertItem::new(ids, token_types, PretrainingLabel { tokens, sentence })
    }

    /// One text or two, and whether the second follows the first: 0 for yes, 1 for no.
    fn texts(&self, piece: &Piece, random: &mut ChaCha8Rng) -> (Vec<Vec<i64>>, i64) {
        let text = |sentences: Range<usize>| sentences.flat_map(|sentence| self.corpus.sequence(sentence)).collect();
        let Piece { sentences, part } = piece;
        if let Some(part) = part {
            return (vec![self.corpus.sequence(sentences.start)[part.clone()].to_vec()], IGNORED);
        }
        if !self.config.next_sentence || sentences.len() < 2 {
            return (vec![text(sentences.clone())], IGNORED);
        }
        let cut = random.random_range(sentences.start + 1..sentences.end);
        let mut texts = vec![text(sentences.start..cut), text(cut..sentences.end)];
        let change_places = random.random_bool(0.5);
        if change_places {
            texts.reverse();
        }
        (texts, i64::from(change_places))
    }

    /// Any token that may take the place of another one.
    fn any(&self, random: &mut ChaCha8Rng) -> i64 {
        let MaskedWordsConfig { begin, end, mask, vocab, never, .. } = &self.config;
        loop {
            let token = random.random_range(0..*vocab) as i64;
            if ![*begin, *end, *mask].contains(&token) && !never.contains(&token) {
                return token;
            }
        }
    }

    /// Hides words; gives back the tokens that stood there, and what is ignored elsewhere.
    fn hide(&self, ids: &mut [i64], random: &mut ChaCha8Rng) -> Vec<i64> {
        let MaskedWordsConfig { begin, end, mask, share, .. } = self.config;
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
                    8 => ids[at] = self.any(random),
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

    fn rows(words: &MaskedWords) -> Vec<BertItem<PretrainingLabel>> {
        (0..Dataset::<BertItem<PretrainingLabel>>::len(words)).map(|index| words.row(index)).collect()
    }

    #[test]
    fn a_share_of_each_row_is_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let words = config().with_duplicates(50).with_never(vec![0]).init(corpus(folder.path())).unwrap();
        let (mut kinds, mut counts) = ([0; 3], [0; 2]);
        for item in rows(&words) {
            assert!(item.ids.len() <= 32 && item.ids.len() == item.token_types.len());
            let shown = shown(&item);
            let texts = shown.iter().filter(|token| **token == 2).count();
            assert_eq!((shown[0], shown.last(), texts), (1, Some(&2), if item.label.sentence < 0 { 1 } else { 2 }));
            let border = shown.iter().position(|token| *token == 2).unwrap();
            assert!(item.token_types[..=border].iter().all(|kind| *kind == 0));
            assert!(item.token_types[border + 1..].iter().all(|kind| *kind == 1));
            let hidden = item.label.tokens.iter().filter(|label| **label != IGNORED).count();
            let tokens = shown.len() - 1 - texts;
            assert_eq!(hidden, ((0.15 * tokens as f64).round() as usize).max(1));
            counts = [counts[0] + hidden, counts[1] + tokens];
            for (id, label) in item.ids.iter().zip(&item.label.tokens).filter(|(_, label)| **label != IGNORED) {
                assert!(*label >= 10, "begin and end are never hidden");
                assert!(![0, 1, 2].contains(id), "{id} takes no other's place");
                kinds[if *id == 3 { 0 } else { usize::from(id == label) + 1 }] += 1;
            }
        }
        let share = |part: usize, whole: usize| part as f64 / whole as f64;
        let hidden = counts[0];
        assert!((share(hidden, counts[1]) - 0.15).abs() < 0.03, "{counts:?}");
        assert!((share(kinds[0], hidden) - 0.8).abs() < 0.02, "{kinds:?}");
        assert!(
            (share(kinds[1], hidden) - 0.1).abs() < 0.02 && (share(kinds[2], hidden) - 0.1).abs() < 0.02,
            "{kinds:?}"
        );
    }

    #[test]
    fn texts_are_in_their_order_or_change_places() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path());
        let words = of_length(60).with_duplicates(40).init(corpus.clone()).unwrap();
        let whole = corpus.stream(0..corpus.tokens());
        let stands = |tokens: &[i64]| whole.windows(tokens.len()).any(|window| window == tokens);
        let (mut seen, mut lengths) = ([0; 2], [0; 2]);
        for (index, item) in rows(&words).iter().enumerate() {
            let shown = shown(item);
            let texts: Vec<&[i64]> = shown[1..].split(|token| *token == 2).collect();
            match item.label.sentence {
                0 => assert!(stands(&texts[..2].concat()), "row {index}"),
                1 => assert!(stands(&[texts[1], texts[0]].concat()) && !stands(&texts[..2].concat()), "row {index}"),
                _ => assert!(stands(texts[0])),
            }
            if let Ok(which) = usize::try_from(item.label.sentence) {
                (seen[which], lengths[which]) = (seen[which] + 1, lengths[which] + shown.len());
            }
        }
        let mean = |which: usize| lengths[which] as f64 / f64::from(seen[which]);
        assert!((f64::from(seen[0]) / f64::from(seen[0] + seen[1]) - 0.5).abs() < 0.05, "{seen:?}");
        assert!((mean(0) / mean(1) - 1.0).abs() < 0.05, "a row's length tells nothing: {} {}", mean(0), mean(1));
    }

    #[test]
    fn of_a_sentence_longer_than_a_row_each_row_has_a_part() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("long");
        let document = vec![(10..310).collect(), vec![400, 401], vec![402]];
        write(&prefix, TokenType::U16, [Ok(document)]).unwrap();
        let corpus = Arc::new(IndexedCorpus::open(&prefix).unwrap());
        for next_sentence in [false, true] {
            let words = config().with_next_sentence(next_sentence).init(corpus.clone()).unwrap();
            let mut seen: Vec<i64> = rows(&words).iter().flat_map(shown).filter(|token| *token >= 10).collect();
            seen.sort_unstable();
            assert_eq!(seen, (10..310).chain(400..403).collect::<Vec<i64>>(), "each token once");
        }
    }

    /// Sentences of 3 tokens: a row has as many as fit, of its own document alone, and a share of the rows has fewer.
    #[test]
    fn some_rows_are_shorter_and_no_two_documents_share_one() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        let sentence = |document: usize, at: usize| vec![10 + (document % 900) as i64, 10 + (at % 900) as i64, 10];
        // Of some documents the last is shorter than a row, and some are shorter altogether.
        let sentences = |document: usize| if document.is_multiple_of(4) { 3 } else { 103 };
        let document = |document: usize| Ok((0..sentences(document)).map(|at| sentence(document, at)).collect());
        write(&prefix, TokenType::U16, (0..200).map(document)).unwrap();
        let corpus = Arc::new(IndexedCorpus::open(&prefix).unwrap());
        let lengths = |short: f64| -> Vec<usize> {
            let words = of_length(33).with_short(short).with_share(0.0).init(corpus.clone()).unwrap();
            let mut sentences = 0;
            for piece in words.pieces.iter() {
                assert_eq!(piece.sentences.start, sentences, "every sentence once");
                sentences = piece.sentences.end;
            }
            assert_eq!(sentences, corpus.sequences());
            for row in rows(&words) {
                let documents: Vec<i64> = row.ids.iter().copied().filter(|token| *token > 3).step_by(3).collect();
                assert!(documents.iter().all(|document| *document == documents[0]), "{documents:?}");
            }
            // What is left of a document is no matter of chance.
            let ends: Vec<usize> = (0..corpus.documents()).map(|document| corpus.document(document).end).collect();
            let others = words.pieces.iter().filter(|piece| !ends.contains(&piece.sentences.end));
            others.map(|piece| piece.sentences.len()).collect()
        };
        let (whole, some) = (lengths(0.0), lengths(0.3));
        assert!(whole.len() == 1500 && whole.iter().all(|sentences| *sentences == 10), "{whole:?}");
        // A shorter row has room for 2 to 30 tokens: for less than ten sentences in 28 of 29 cases.
        let shorter = some.iter().filter(|sentences| **sentences < 10).count() as f64;
        let expected = 0.3 * 28.0 / 29.0 * some.len() as f64;
        assert!((shorter / expected - 1.0).abs() < 0.1, "{shorter} rows, and {expected} are expected");
        assert!((1..=10).all(|sentences| some.contains(&sentences)), "{some:?}");
        assert_eq!(some, lengths(0.3));
    }

    #[test]
    fn a_row_depends_on_its_number_and_the_seed_alone() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(folder.path());
        let of = |config: MaskedWordsConfig| {
            let words = config.init(corpus.clone()).unwrap();
            ((0..20).rev().map(|index| words.row(index)).collect::<Vec<_>>(), words.fingerprint())
        };
        assert_eq!(of(config()), of(config()));
        let (ours, other) = (of(config()), of(config().with_seed(1)));
        assert!(ours.0 != other.0 && ours.1 != other.1);
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
        let mut hidden = 0;
        for (index, item) in rows(&words).into_iter().enumerate() {
            hidden += item.label.tokens.iter().filter(|label| **label != IGNORED).count();
            assert_eq!((item.label.sentence, item.token_types.iter().sum::<i64>()), (IGNORED, 0));
            let (shown, labels) = (shown(&item), &item.label.tokens);
            for at in 2..shown.len() - 1 {
                if goes_on[shown[at] as usize] {
                    assert_eq!(labels[at] == IGNORED, labels[at - 1] == IGNORED, "row {index}: a word is cut at {at}");
                }
            }
        }
        assert!(hidden > corpus.tokens() / 5, "{hidden} of {}", corpus.tokens());
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
        assert!(refused(config().with_short(-0.1)).contains("`short` is -0.1"));
        assert!(refused(config().with_never((0..1000).collect())).contains("no token is left"));
        let prefix = folder.path().join("single");
        write(&prefix, TokenType::U16, [Ok(vec![vec![10, 11]]), Ok(vec![vec![12]])]).unwrap();
        let single = Arc::new(IndexedCorpus::open(&prefix).unwrap());
        let error = config().init(single.clone()).unwrap_err().to_string();
        assert!(error.contains("no two sentences of a document fit into a row of 32: write each document"), "{error}");
        assert!(config().with_next_sentence(false).init(single).is_ok());
        assert!(refused(config().with_duplicates(0)).contains("`duplicates` is 0"));
        assert!(
            refused(MaskedWordsConfig { mask: 1000, ..config() })
                .contains("`mask` is token 1000; the tokens are 0 to 999")
        );
    }
}
