//! The first failure of a run, as every process knows it.

use super::message::told;
use crate::error::Error;
use crate::host::failure::{Cause, Failure};

impl Failure {
    /// What a rank gets that was released from `operation`, which is, or would be, the call of this number: those in the call
    /// that one member alone did not make all get the same error.
    pub(super) fn to_error_in(&self, operation: String, group: &str, sequence: u64) -> Error {
        let of_this_call = |error: &Error| {
            matches!(error, Error::Mismatch { group: other, sequence: number, .. }
                if *number == sequence && (other == group || *other == told(group)))
        };
        match &self.cause {
            Cause::Odd(error) if of_this_call(error) => error.clone(),
            _ => self.to_error(operation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Control;
    use super::*;
    use crate::error::Result;
    use crate::rank::Rank;

    #[test]
    fn members_of_a_group_with_a_long_name_know_their_call() -> Result<()> {
        let group = "g".repeat(5000);
        let mismatch = Error::Mismatch {
            group: group.clone(),
            sequence: 3,
            first: Rank(0),
            first_call: "barrier".into(),
            second: Rank(1),
            second_call: "split".into(),
            second_is_odd: true,
        };
        let bytes = Control::Fail(Failure { rank: Rank(1), cause: Cause::Odd(mismatch) }).encode();
        let Control::Fail(failure) = Control::decode(&bytes)? else { panic!("another message") };
        let error = |group: &str, sequence| failure.to_error_in("barrier".into(), group, sequence);
        assert!(matches!(error(&group, 3), Error::Mismatch { .. }));
        for other in [error(&group, 4), error("g", 3)] {
            assert!(matches!(other, Error::Peer { rank: Rank(1), .. }), "{other}");
        }
        Ok(())
    }
}
