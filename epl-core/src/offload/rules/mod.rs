//! What one step does to one element, an optimizer a file.
//!
//! The arithmetic is that of the device's optimizer, operation by operation: a constant that Burn computes in f32 is computed in
//! f32 here, and a scalar is rounded to the element type before it is used, as Flex does. No two operations are fused into one.

mod rule;
mod adam;
mod adamw;
mod bert_adam;
mod lion;
mod rmsprop;
mod sgd;

pub(super) use adam::Adam;
pub(super) use adamw::AdamW;
pub(super) use bert_adam::BertAdam;
pub(super) use lion::Lion;
pub(super) use rmsprop::RmsProp;
pub(super) use rule::Rule;
pub(super) use sgd::{Momentum, Sgd};

/// An optimizer that updates in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum HostRule {
    Adam(Adam),
    AdamW(AdamW),
    BertAdam(BertAdam),
    Lion(Lion),
    RmsProp(RmsProp),
    Sgd(Sgd),
}

impl HostRule {
    /// The tensors of state, by their names in Burn's record.
    pub(super) fn fields(&self) -> &'static [&'static str] {
        match self {
            Self::Adam(_) | Self::AdamW(_) | Self::BertAdam(_) => &["momentum.moment_1", "momentum.moment_2"],
            Self::Lion(_) => &["momentum"],
            Self::RmsProp(rule) => rule.fields(),
            Self::Sgd(Sgd { momentum: Some(_), .. }) => &["momentum.velocity"],
            Self::Sgd(_) => &[],
        }
    }

    /// Under what name Burn's record counts a parameter's steps, if it does.
    pub(super) fn time(&self) -> Option<&'static str> {
        matches!(self, Self::Adam(_) | Self::AdamW(_) | Self::BertAdam(_)).then_some("momentum.time")
    }

    /// Whether another rule keeps the same state, of the same kind of rule.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other) && self.fields() == other.fields()
    }
}

/// A rule of one kind.
pub(super) trait OfKind: Sized {
    /// The rule, if it is of this kind.
    fn of_kind(rule: &HostRule) -> Option<&Self>;
}

macro_rules! of_kind {
    ($($kind:ident),+) => {$(
        impl OfKind for $kind {
            fn of_kind(rule: &HostRule) -> Option<&Self> {
                match rule {
                    HostRule::$kind(rule) => Some(rule),
                    _ => None,
                }
            }
        }
    )+};
}
of_kind!(Adam, AdamW, BertAdam, Lion, RmsProp, Sgd);
