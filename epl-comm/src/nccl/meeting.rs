//! Members that meet on the host before they make a call, by values of a store.
//!
//! ```text
//! member 1   call ───▶ ┐            ┌ ───▶ verdict, forget the call
//! member 2   call ───▶ ├ member 0 ──┤
//! member 3   call ───▶ ┘  judges    └ ───▶ verdict, forget the call
//! ```
//!
//! Two requests to the store for a member, and as many as there are members for the first one.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::communicator::GoOn;
use super::store_plane::StorePlane;
use crate::error::{Error, Result};
use crate::host::mismatch::MismatchPair;
use crate::host::wire::{decode, digest, encode};
use crate::operation::Call;
use crate::rank::Rank;

/// One member's place where those of a group meet.
#[derive(Debug, Default)]
pub(super) struct MeetingPlace {
    /// The last meeting whose verdict was given here: all have read it when they come to the next.
    last: AtomicU64,
}

/// Who meets.
pub(super) struct Members<'a> {
    pub(super) plane: &'a StorePlane,
    pub(super) group: &'a str,
    pub(super) path: &'a str,
    pub(super) members: &'a [Rank],
    pub(super) member: usize,
}

impl MeetingPlace {
    /// Waits until all members have come to this call, and compares them; gives the two numbers that each has brought.
    pub(super) fn meet(
        &self,
        members: &Members<'_>,
        call: &Call,
        own: [u64; 2],
        go_on: &GoOn<'_>,
    ) -> Result<Vec<[u64; 2]>> {
        let sequence = call.sequence;
        let code = words(&[&[digest(call), own[0], own[1]], &encode(call)?[..]].concat());
        let verdict = if members.member == 0 {
            let verdict = members.judge(call, code, go_on)?;
            let last = self.last.swap(sequence, Ordering::Relaxed);
            if last > 0 {
                members.plane.forget(&members.met(last))?;
            }
            members.plane.set_long(&members.met(sequence), &verdict.encode())?;
            verdict
        } else {
            let key = members.called(sequence, members.member);
            members.plane.set_long(&key, &code)?;
            let verdict = Verdict::decode(&members.plane.wait_long(&members.met(sequence), go_on)?);
            members.plane.forget(&key)?;
            verdict.ok_or_else(|| members.not_a_call(call))?
        };
        match verdict {
            Verdict::Same(brought) if brought.len() == members.members.len() => Ok(brought),
            Verdict::Other { first, second, texts: [first_call, second_call], second_is_odd }
                if first.max(second) < members.members.len() =>
            {
                Err(Error::Mismatch {
                    group: members.group.to_string(),
                    sequence,
                    first: members.members[first],
                    first_call,
                    second: members.members[second],
                    second_call,
                    second_is_odd,
                })
            }
            _ => Err(members.not_a_call(call)),
        }
    }
}

impl Members<'_> {
    fn met(&self, sequence: u64) -> String {
        format!("nccl/met/{}/{sequence}", self.path)
    }

    fn called(&self, sequence: u64, member: usize) -> String {
        format!("nccl/call/{}/{sequence}/{member}", self.path)
    }

    /// Member 0's part.
    fn judge(&self, call: &Call, own: Vec<u8>, go_on: &GoOn<'_>) -> Result<Verdict> {
        let mut codes = vec![numbers(&own)];
        for member in 1..self.members.len() {
            codes.push(numbers(&self.plane.wait_long(&self.called(call.sequence, member), go_on)?));
        }
        let codes: Option<Vec<Vec<u64>>> = codes.into_iter().collect();
        let codes = codes.filter(|codes| codes.iter().all(|code| code.len() >= 3)).unwrap_or_default();
        let brought = || Verdict::Same(codes.iter().map(|code| [code[1], code[2]]).collect());
        if codes.first().is_some_and(|own| own[0] != 0 && codes.iter().all(|code| code[0] == own[0])) {
            return Ok(brought());
        }
        let calls: Option<Vec<Call>> = codes.iter().map(|code| decode(&code[3..])).collect();
        let Some(calls) = calls.filter(|calls| !calls.is_empty()) else { return Ok(Verdict::None) };
        let Some(MismatchPair { first, second, second_is_odd }) =
            MismatchPair::among(calls.len(), |member| &calls[member])
        else {
            return Ok(brought());
        };
        let texts = [calls[first].to_string(), calls[second].to_string()];
        Ok(Verdict::Other { first, second, texts, second_is_odd })
    }

    fn not_a_call(&self, call: &Call) -> Error {
        Error::Engine {
            message: format!(
                "what other ranks said in {call}, call {} of group `{}`, is no call; all processes must run the same \
                 program",
                call.sequence, self.group
            ),
        }
    }
}

/// What member 0 says of the calls.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Verdict {
    /// They fit together; the numbers of each member.
    Same(Vec<[u64; 2]>),
    /// Those of two members do not.
    Other { first: usize, second: usize, texts: [String; 2], second_is_odd: bool },
    /// They are no calls.
    None,
}

impl Verdict {
    fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match postcard::take_from_bytes(bytes) {
            Ok((verdict, [])) => Some(verdict),
            _ => None,
        }
    }
}

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Option<Vec<u64>> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_comes_out_as_it_went_in_and_nothing_else_does() {
        let texts = ["all_reduce of ä".to_string(), String::new()];
        let verdicts = [
            Verdict::Same(vec![[1, 2], [3, u64::MAX]]),
            Verdict::Other { first: 0, second: 7, texts, second_is_odd: true },
            Verdict::None,
        ];
        for verdict in verdicts {
            let code = verdict.encode();
            assert_eq!(Verdict::decode(&code), Some(verdict));
        }
        let long = [words(&[1, 0, 1, 0, 99]), b"short".to_vec()].concat();
        for bad in [&[][..], &[0; 7], &words(&[0, 1]), &words(&[3]), &words(&[1, 2]), &long] {
            assert_eq!(Verdict::decode(bad), None, "{bad:?}");
        }
    }
}
