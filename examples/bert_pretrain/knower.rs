//! What a reader reaches who knows the rule of the texts, how words are hidden, and where words begin.
//!
//! The words of a row are a chain, and its hours another one: how likely each word is at each place follows from a sum over all
//! chains, forward and backward. Of the two orders of a row's texts both are such chains.

use std::collections::BTreeMap;
use std::ops::Range;

use epl::models::bert::{BertItem, IGNORED, PretrainingLabel};
use epl::models::squad::WordPiece;

use crate::rule::{Drawn, KINDS, hour, word};

/// Shares of right answers, from 0 to 1; none where nothing was asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    pub tokens: Option<f64>,
    pub sentences: Option<f64>,
}

/// Who knows the rule, and how words are hidden.
struct Knower {
    /// Of each kind, hours or words, the pieces of each.
    kinds: Vec<(Drawn, Vec<Vec<i64>>)>,
    goes_on: Vec<bool>,
    end: i64,
    mask: i64,
    share: f64,
}

/// A place of a chain: how likely what is seen is, for each word that may stand there, and its tokens in the row.
struct Slot {
    seen: Vec<f64>,
    tokens: Range<usize>,
    kind: usize,
}

/// What is reached on rows of texts by the rule, whose words are hidden as `hidden` says: the mask, and the share of the tokens.
pub fn reached(
    rows: impl Iterator<Item = BertItem<PretrainingLabel>>,
    pieces: &WordPiece,
    hidden: (i64, f64),
) -> epl::Result<Reached> {
    let knower = Knower::new(pieces, hidden)?;
    let (mut tokens, mut sentences) = (Vec::new(), Vec::new());
    for item in rows {
        let (said, sentence) = knower.said(&item);
        sentences.extend((item.label.sentence != IGNORED).then_some(sentence == item.label.sentence));
        let labels = said.iter().zip(&item.label.tokens).filter(|(_, label)| **label != IGNORED);
        tokens.extend(labels.map(|(said, label)| said == label));
    }
    let share = |right: &[bool]| {
        let count = right.iter().filter(|right| **right).count();
        (!right.is_empty()).then(|| count as f64 / right.len() as f64)
    };
    Ok(Reached { tokens: share(&tokens), sentences: share(&sentences) })
}

impl Knower {
    fn new(pieces: &WordPiece, (mask, share): (i64, f64)) -> epl::Result<Self> {
        let of_word = |text: &str| match pieces.encode(text) {
            Ok(pieces) => Ok(pieces.ids().to_vec()),
            Err(error) => Err(epl::Error::invalid(error.to_string())),
        };
        let of_kind = |drawn: Drawn, text: &dyn Fn(usize) -> String| {
            let pieces = (0..drawn.count()).map(|number| of_word(&text(number))).collect::<epl::Result<_>>();
            pieces.map(|pieces| (drawn, pieces))
        };
        let words = (0..KINDS).map(|kind| of_kind(Drawn::Words, &|number| word(number, kind)));
        let kinds = words.chain([of_kind(Drawn::Hours, &hour)]).collect::<epl::Result<_>>()?;
        Ok(Self { kinds, goes_on: pieces.goes_on(), end: pieces.sep(), mask, share })
    }

    /// The likeliest token at each place of a row, and of its texts: 0 if they are likelier as they stand, otherwise 1.
    fn said(&self, item: &BertItem<PretrainingLabel>) -> (Vec<i64>, i64) {
        let labels = item.ids.iter().zip(&item.label.tokens);
        // What the row is in truth says where words begin; else it is not looked at.
        let shown: Vec<i64> = labels.map(|(id, label)| if *label == IGNORED { *id } else { *label }).collect();
        let texts = self.texts(item, &shown);
        let orders: Vec<[Chain; 2]> = match &texts[..] {
            [first, second] => vec![self.chains(&[first, second]), self.chains(&[second, first])],
            texts => vec![self.chains(&texts.iter().collect::<Vec<_>>())],
        };
        let logs: Vec<f64> = orders.iter().map(|chains| chains.iter().map(|chain| chain.log).sum()).collect();
        // How likely it is that they have changed places.
        let turned = logs.get(1).map_or(0.0, |turned| 1.0 / (1.0 + (logs[0] - turned).exp()));
        let mut likely = vec![Vec::new(); shown.len()];
        for (chains, weight) in orders.iter().zip([1.0 - turned, turned]) {
            for (slot, words) in chains.iter().flat_map(|chain| chain.slots.iter().zip(&chain.words)) {
                let sums = &mut likely[slot.tokens.start];
                sums.resize(words.len(), 0.0);
                sums.iter_mut().zip(words).for_each(|(sum, word)| *sum += weight * word);
            }
        }
        // All else that can be hidden stands in every sentence.
        let mut said = shown;
        for slot in texts.iter().flatten() {
            for (piece, at) in slot.tokens.clone().enumerate() {
                said[at] = self.likeliest(slot, &likely[slot.tokens.start], piece);
            }
        }
        (said, i64::from(turned > 0.5))
    }

    /// What follows of texts in this order.
    fn chains<'a>(&self, texts: &[&'a Vec<Slot>]) -> [Chain<'a>; 2] {
        [Drawn::Hours, Drawn::Words].map(|drawn| {
            let slots = texts.iter().flat_map(|text| text.iter());
            Chain::infer(drawn, slots.filter(|slot| self.kinds[slot.kind].0 == drawn).collect())
        })
    }

    /// The words of a row's texts, but those that stand in every sentence.
    fn texts(&self, item: &BertItem<PretrainingLabel>, shown: &[i64]) -> Vec<Vec<Slot>> {
        let (mut texts, mut begin) = (Vec::new(), 1);
        for text in shown[1..].split(|token| *token == self.end) {
            let (mut slots, mut at) = (Vec::new(), begin);
            for word in text.chunk_by(|_, next| self.goes_on[*next as usize]) {
                let tokens = at..at + word.len();
                at = tokens.end;
                let kind = self.kinds.iter().position(|(_, words)| words.iter().any(|known| known == word));
                slots.extend(kind.map(|kind| {
                    let seen =
                        self.kinds[kind].1.iter().map(|word| self.seen(word, &item.ids[tokens.clone()])).collect();
                    Slot { seen, tokens, kind }
                }));
            }
            begin = at + 1;
            texts.push(slots);
        }
        texts.retain(|slots| !slots.is_empty());
        texts
    }

    /// The probability of what is seen where a word stands.
    fn seen(&self, word: &[i64], seen: &[i64]) -> f64 {
        if word.len() != seen.len() {
            return 0.0;
        }
        let any = 0.1 / self.goes_on.len() as f64;
        let hidden = |(piece, seen): (&i64, &i64)| {
            let other = if *seen == self.mask { 0.8 } else { any };
            if piece == seen { other + 0.1 } else { other }
        };
        let left = if word == seen { 1.0 - self.share } else { 0.0 };
        left + self.share * word.iter().zip(seen).map(hidden).product::<f64>()
    }

    /// The piece of the most probability among words that have as many.
    fn likeliest(&self, slot: &Slot, likely: &[f64], piece: usize) -> i64 {
        let mut sums = BTreeMap::<i64, f64>::new();
        let words = self.kinds[slot.kind].1.iter().zip(likely);
        for (word, likely) in words.filter(|(word, _)| word.len() == slot.tokens.len()) {
            *sums.entry(word[piece]).or_default() += likely;
        }
        sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(IGNORED, |(piece, _)| piece)
    }
}

/// Words that follow each other.
struct Chain<'a> {
    slots: Vec<&'a Slot>,
    /// Of each slot the probability of each word.
    words: Vec<Vec<f64>>,
    /// The logarithm of the probability of all that is seen.
    log: f64,
}

impl<'a> Chain<'a> {
    fn infer(drawn: Drawn, slots: Vec<&'a Slot>) -> Self {
        let (mut words, mut log) = (Vec::<Vec<f64>>::new(), 0.0);
        let draw = |range: Range<usize>, probability: f64, to: &mut Vec<f64>| {
            let each = probability / range.len() as f64;
            range.for_each(|word| to[word] += each);
        };
        let mut before = vec![0.0; drawn.count()];
        draw(drawn.range(None), 1.0, &mut before);
        for slot in &slots {
            let mut here: Vec<f64> = before.iter().zip(&slot.seen).map(|(before, seen)| before * seen).collect();
            log += normalise(&mut here).ln();
            before.fill(0.0);
            here.iter().enumerate().for_each(|(word, likely)| draw(drawn.range(Some(word)), *likely, &mut before));
            words.push(here);
        }
        let mut behind = vec![1.0; drawn.count()];
        for (here, slot) in words.iter_mut().zip(&slots).rev() {
            here.iter_mut().zip(&behind).for_each(|(here, behind)| *here *= behind);
            normalise(here);
            let seen: Vec<f64> = slot.seen.iter().zip(&behind).map(|(seen, behind)| seen * behind).collect();
            let next = |word| drawn.range(Some(word));
            behind =
                (0..drawn.count()).map(|word| seen[next(word)].iter().sum::<f64>() / next(word).len() as f64).collect();
            normalise(&mut behind);
        }
        Self { slots, words, log }
    }
}

/// Divides by the sum, which is given back. Of an order that cannot be nothing is left, and nothing follows.
fn normalise(values: &mut [f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value = if sum > 0.0 { *value / sum } else { 0.0 });
    sum
}
