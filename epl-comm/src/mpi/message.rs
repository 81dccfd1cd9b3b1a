//! What the processes tell each other beside the calls.

use core::iter::once;
use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::waits::{Answer, CallKey, Channel};
use crate::error::{Error, Result};
use crate::host::failure::{Cause, Failure};
use crate::rank::Rank;

/// Longer texts are cut, and say so: a message of what went wrong must not itself have to be waited for.
const LONGEST: usize = 2000;

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Control {
    /// A rank has failed.
    Fail(Failure),
    /// A rank has ended, with the last number that it took in each of its groups.
    End { rank: Rank, counts: Vec<(Channel, u64)> },
    /// No rank of the process runs any more.
    Done,
    /// What keeps a rank from a call?
    Ask { question: u64, rank: Rank, at: CallKey },
    /// What is said to a question.
    Answer { question: u64, answer: Answer },
}

impl Control {
    /// As it is sent.
    pub(super) fn encode(mut self) -> Vec<u8> {
        self.texts().into_iter().for_each(|text| {
            if let Cow::Owned(cut) = told(text) {
                *text = cut;
            }
        });
        postcard::to_stdvec(&self).unwrap_or_else(|_| match self {
            // An error of a kind that does not travel is told by its text.
            Self::Fail(failure) => Self::Fail(Failure::own(failure.rank, failure.text())).encode(),
            _ => Vec::new(),
        })
    }

    /// # Errors
    ///
    /// [`Error::Medium`] when the bytes are none that [`encode`](Self::encode) makes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        match postcard::take_from_bytes(bytes) {
            Ok((control, [])) => Ok(control),
            _ => Err(garbled()),
        }
    }

    fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::Fail(Failure { cause: Cause::Own(cause), .. }) => vec![cause],
            Self::Fail(Failure { cause: Cause::Odd(error) | Cause::Shared(error), .. }) => texts(error),
            Self::Answer { answer: Answer { last, wait }, .. } => {
                once(last).chain(wait.as_mut().map(|wait| &mut wait.call)).collect()
            }
            Self::End { .. } | Self::Done | Self::Ask { .. } => Vec::new(),
        }
    }
}

fn texts(error: &mut Error) -> Vec<&mut String> {
    match error {
        Error::Mismatch { group, first_call, second_call, .. } => vec![group, first_call, second_call],
        Error::Deadlock { circle } => circle.iter_mut().map(|(_, call)| call).collect(),
        Error::Timeout { call, missing, .. } => once(call).chain(missing.iter_mut().map(|(_, last)| last)).collect(),
        Error::Order { first_call, second_call, .. } => vec![first_call, second_call],
        Error::Peer { operation, cause, .. } => vec![operation, cause],
        Error::Engine { message }
        | Error::Panic { message }
        | Error::Invalid { message }
        | Error::Staging { message }
        | Error::Medium { message } => vec![message],
        Error::Launch(_) => Vec::new(),
    }
}

/// A text as it is told to other processes.
pub(super) fn told(text: &str) -> Cow<'_, str> {
    let cut = text.floor_char_boundary(LONGEST);
    if cut < text.len() {
        return Cow::Owned(format!("{} [{} bytes more]", &text[..cut], text.len() - cut));
    }
    Cow::Borrowed(text)
}

/// What has come is nothing that a process of the same program sends.
pub(super) fn garbled() -> Error {
    let message = "a message of another process makes no sense; run the same program in all processes".to_string();
    Error::Medium { message }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::waits::Wait;
    use super::*;
    use crate::error::LaunchError;

    fn shared(error: Error) -> Control {
        Control::Fail(Failure { rank: Rank(7), cause: Cause::Shared(error) })
    }

    /// It comes back, and is none where the end is missing, or more follows.
    fn comes_back(control: Control) -> Result<()> {
        let mut bytes = control.clone().encode();
        assert_eq!(Control::decode(&bytes)?, control);
        for len in 0..bytes.len() {
            assert!(Control::decode(&bytes[..len]).is_err());
        }
        bytes.push(0);
        assert!(Control::decode(&bytes).is_err());
        Ok(())
    }

    #[test]
    fn shared_errors_come_back_and_others_do_not() -> Result<()> {
        let named = || vec![(Rank(3), "whose last call was".to_string()), (Rank(4), String::new())];
        let errors = [
            Error::Deadlock { circle: named() },
            Error::Timeout { call: "barrier".into(), waited: Duration::from_millis(1500), missing: named() },
            Error::Medium { message: "MPI".into() },
            Error::invalid("no"),
            Error::Staging { message: "no".into() },
        ];
        errors.into_iter().try_for_each(|error| comes_back(shared(error)))?;
        let error = Error::Launch(LaunchError::Joining { message: "no".into() });
        let (other, told) = (shared(error.clone()).encode(), Cause::Own(error.to_string()));
        assert_eq!(Control::decode(&other)?, Control::Fail(Failure { rank: Rank(7), cause: told }));
        Ok(())
    }

    #[test]
    fn it_is_the_same_in_another_process() -> Result<()> {
        let causes = [
            Cause::Own("out of luck".into()),
            Cause::Shared(Error::Deadlock { circle: vec![(Rank(0), "barrier".into())] }),
            Cause::Odd(Error::invalid("no")),
        ];
        causes.into_iter().try_for_each(|cause| comes_back(Control::Fail(Failure { rank: Rank(7), cause })))
    }

    #[test]
    fn an_answer_is_the_same_in_another_process() -> Result<()> {
        let missing = vec![Rank(3), Rank(4)];
        let at = CallKey { channel: Channel { number: 5, link: Some([Rank(3), Rank(4)]) }, sequence: 2 };
        let wait = Wait { at, call: "barrier, call 2 of group `5`".into(), missing, is_sure: true };
        for wait in [None, Some(wait)] {
            let answer = Answer { last: "which has made no call".into(), wait };
            comes_back(Control::Answer { question: 3, answer })?;
        }
        Ok(())
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() -> Result<()> {
        let bytes = shared(Error::invalid("ö".repeat(1500))).encode();
        let control = Control::decode(&bytes)?;
        let Control::Fail(Failure { cause: Cause::Shared(Error::Invalid { message: text }), .. }) = control else {
            panic!("{control:?}");
        };
        assert!(text.starts_with("öö") && text.ends_with("[1000 bytes more]"), "{text}");
        Ok(())
    }

    #[test]
    fn what_no_process_sends_is_an_error() {
        // A message of no kind, and lengths of more than there is.
        let long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        for begin in [&[9][..], &[0, 7, 0], &[0, 7, 2, 1], &[1, 7], &[4, 0]] {
            assert!(Control::decode(&[begin, &long].concat()).is_err(), "{begin:?}");
        }
    }
}
