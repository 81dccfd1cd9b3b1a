//! What the processes tell each other beside the calls, as bytes: the kind of a message, then numbers, texts, errors.

use core::time::Duration;
use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::rank::Rank;

/// A failure: who, why.
pub(super) const FAIL: u64 = 1;
/// A rank has ended: who, and the last numbers it took.
pub(super) const END: u64 = 2;
/// No rank of the process runs any more.
pub(super) const DONE: u64 = 3;
/// What keeps a rank from a call? The number of the question, the rank, the call.
pub(super) const ASK: u64 = 4;
/// The answer.
pub(super) const ANSWER: u64 = 5;

/// Longer texts are cut, and say so: a message of what went wrong must not itself have to be waited for.
const LONGEST: usize = 2000;

/// A text as it is told to other processes.
pub(super) fn told(text: &str) -> Cow<'_, str> {
    let cut = text.floor_char_boundary(LONGEST);
    if cut < text.len() {
        return Cow::Owned(format!("{} [{} bytes more]", &text[..cut], text.len() - cut));
    }
    Cow::Borrowed(text)
}

/// Bytes that grow.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

/// Bytes that are taken from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Writer {
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = usize>) -> &mut Self {
        self.number(numbers.len() as u64);
        numbers.for_each(|number| {
            self.number(number as u64);
        });
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let text = told(text);
        self.number(text.len() as u64).0.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn named(&mut self, ranks: &[(Rank, String)]) -> &mut Self {
        self.number(ranks.len() as u64);
        ranks.iter().for_each(|(rank, text)| {
            self.number(rank.0 as u64).text(text);
        });
        self
    }

    /// One of the errors that are nobody's in particular; nothing for another one.
    pub(super) fn error(&mut self, error: &Error) -> &mut Self {
        match error {
            Error::Mismatch { group, sequence, first, first_call, second, second_call, second_is_odd } => {
                self.number(1).text(group).number(*sequence).number(first.0 as u64).text(first_call);
                self.number(second.0 as u64).text(second_call).number(u64::from(*second_is_odd))
            }
            Error::Deadlock { circle } => self.number(2).named(circle),
            Error::Timeout { call, waited, missing } => {
                self.number(3).text(call).number(waited.as_millis() as u64).named(missing)
            }
            Error::Medium { message } => self.number(4).text(message),
            Error::Invalid { message } => self.number(5).text(message),
            _ => self.number(0),
        }
    }
}

impl Reader<'_> {
    pub(super) fn number(&mut self) -> Result<u64> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(garbled)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    pub(super) fn index(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| garbled())
    }

    pub(super) fn rank(&mut self) -> Result<Rank> {
        self.index().map(Rank)
    }

    pub(super) fn numbers(&mut self) -> Result<Vec<usize>> {
        let count = self.index()?;
        if count > self.0.len() / 8 {
            return Err(garbled());
        }
        (0..count).map(|_| self.index()).collect()
    }

    pub(super) fn text(&mut self) -> Result<String> {
        let len = self.index()?;
        let (text, rest) = self.0.split_at_checked(len).ok_or_else(garbled)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| garbled())
    }

    pub(super) fn named(&mut self) -> Result<Vec<(Rank, String)>> {
        let count = self.index()?;
        (0..count).map(|_| Ok((self.rank()?, self.text()?))).collect()
    }

    pub(super) fn error(&mut self) -> Result<Option<Error>> {
        Ok(Some(match self.number()? {
            0 => return Ok(None),
            1 => Error::Mismatch {
                group: self.text()?,
                sequence: self.number()?,
                first: self.rank()?,
                first_call: self.text()?,
                second: self.rank()?,
                second_call: self.text()?,
                second_is_odd: self.number()? != 0,
            },
            2 => Error::Deadlock { circle: self.named()? },
            3 => Error::Timeout {
                call: self.text()?,
                waited: Duration::from_millis(self.number()?),
                missing: self.named()?,
            },
            4 => Error::Medium { message: self.text()? },
            5 => Error::Invalid { message: self.text()? },
            _ => return Err(garbled()),
        }))
    }
}

/// What has come is nothing that a process of the same program sends.
pub(super) fn garbled() -> Error {
    let message = "a message of another process makes no sense; run the same program in all processes".to_string();
    Error::Medium { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_errors_come_back_and_others_do_not() -> Result<()> {
        let named = || vec![(Rank(3), "whose last call was".to_string()), (Rank(4), String::new())];
        let errors = [
            Error::Deadlock { circle: named() },
            Error::Timeout { call: "barrier".into(), waited: Duration::from_millis(1500), missing: named() },
            Error::Medium { message: "MPI".into() },
            Error::invalid("no"),
        ];
        for error in errors {
            let mut bytes = Writer::default();
            bytes.error(&error);
            assert_eq!(Reader(&bytes.0).error()?, Some(error));
            for len in 0..bytes.0.len() {
                assert!(Reader(&bytes.0[..len]).error().is_err());
            }
        }
        let mut bytes = Writer::default();
        bytes.error(&Error::Staging { message: "no".into() });
        assert_eq!(Reader(&bytes.0).error()?, None);
        Ok(())
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() -> Result<()> {
        let mut bytes = Writer::default();
        bytes.text(&"ö".repeat(1500));
        let text = Reader(&bytes.0).text()?;
        assert!(text.starts_with("öö") && text.ends_with("[1000 bytes more]"), "{text}");
        Ok(())
    }
}
