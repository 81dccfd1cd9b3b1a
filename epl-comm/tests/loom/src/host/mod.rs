//! What the board needs of the work on host memory.

#[path = "../../../../src/host/mismatch.rs"]
pub(crate) mod mismatch;

pub(crate) mod arena {
    #[derive(Debug, Default)]
    pub(crate) struct Arena;
}

pub(crate) mod fit {
    use crate::operation::Call;

    pub(crate) fn describe(group: &str, call: &Call) -> String {
        format!("{call}, call {} of group `{group}`", call.whole().sequence)
    }

    pub(crate) fn left(call: &str) -> String {
        format!("it returned without taking part in {call}")
    }
}

pub(crate) mod number {
    /// Element types, of which there is one.
    pub(crate) trait Number: Sized {
        fn of(numbers: &[u64]) -> &[Self];
    }

    impl Number for u64 {
        fn of(numbers: &[u64]) -> &[Self] {
            numbers
        }
    }
}

pub(crate) mod watchdog {
    use crate::rank::Rank;

    pub(crate) trait ControlPlane {
        fn fail(&self, rank: Rank, cause: String);
    }
}
