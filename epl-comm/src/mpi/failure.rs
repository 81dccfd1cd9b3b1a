//! The first failure of a run, as every process knows it.

use super::wire::{Reader, Writer, told};
use crate::error::{Error, Result};
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

    pub(super) fn write(&self, bytes: &mut Writer) {
        bytes.number(self.rank.0 as u64);
        match &self.cause {
            Cause::Own(cause) => bytes.number(0).text(cause),
            Cause::Odd(error) => bytes.number(1).error(error),
            Cause::Shared(error) => bytes.number(2).error(error),
        };
    }

    pub(super) fn read(bytes: &mut Reader<'_>) -> Result<Self> {
        let (rank, kind) = (bytes.rank()?, bytes.number()?);
        if kind == 0 {
            return Ok(Self { rank, cause: Cause::Own(bytes.text()?) });
        }
        let cause = match bytes.error()? {
            Some(error) if kind == 1 => Cause::Odd(error),
            Some(error) => Cause::Shared(error),
            None => Cause::Own("it failed in a way that cannot be told between processes".to_string()),
        };
        Ok(Self { rank, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut bytes = Writer::default();
        Failure { rank: Rank(1), cause: Cause::Odd(mismatch) }.write(&mut bytes);
        let failure = Failure::read(&mut Reader(&bytes.0))?;
        let error = |group: &str, sequence| failure.to_error_in("barrier".into(), group, sequence);
        assert!(matches!(error(&group, 3), Error::Mismatch { .. }));
        for other in [error(&group, 4), error("g", 3)] {
            assert!(matches!(other, Error::Peer { rank: Rank(1), .. }), "{other}");
        }
        Ok(())
    }

    #[test]
    fn it_is_the_same_in_another_process() -> Result<()> {
        let causes = [
            Cause::Own("out of luck".into()),
            Cause::Shared(Error::Deadlock { circle: vec![(Rank(0), "barrier".into())] }),
            Cause::Odd(Error::invalid("no")),
        ];
        for cause in causes {
            let failure = Failure { rank: Rank(7), cause };
            let mut bytes = Writer::default();
            failure.write(&mut bytes);
            assert_eq!(Failure::read(&mut Reader(&bytes.0))?, failure);
        }
        Ok(())
    }
}
