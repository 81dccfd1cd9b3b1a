//! Where the parameters of a unit, their gradients and the state of the optimizer lie between their uses.
//!
//! ```text
//!                   parameters          gradients            optimizer
//! replicated        the model           whole, at the end    on the model's tensors
//! ZeRO v0           the model           whole                on flat shards
//! ZeRO v1, v2       the model           shards               on flat shards
//! ZeRO v3           flat shards         shards               on flat shards
//! offloaded         flat, in host memory or in files; whole, or shards under v3
//! ```
//!
//! The plan says it once for each unit; [`ParamStore`](super::store::ParamStore) and the reductions act by it, and nobody else
//! has to know.

use crate::memory::{Tier, Tiers};

/// Where what belongs to a unit lies, and in which parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Where the values of the parameters are.
    pub parameters: Home,
    /// Whether a rank gets the sum of its shard of the gradient alone, and not of all of it.
    pub scatters: bool,
    /// Where reduced gradients wait for the update.
    pub gradients: Tier,
    /// On which form of the parameters the optimizer works.
    pub update: Form,
}

/// Where the values of a unit's parameters are between their uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In the model's own tensors.
    Model,
    /// In one flat array beside the model, from which they are gathered for each segment that uses them.
    Flat {
        /// Where the array lies.
        tier: Tier,
        /// Whether it is a shard, as those of the replicas are, and not the whole.
        is_shard: bool,
    },
}

/// What the optimizer is given of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Its parameters, one by one, in the model.
    Model,
    /// This rank's part of each, flat, where the state lies: of an optimizer that updates each element by itself.
    Shards(Tier),
    /// Those parameters that this rank owns, each in its own shape, where the state lies.
    Owned(Tier),
}

impl Form {
    /// Where flat parts are updated, and whether they are whole parameters that this rank owns; none where the optimizer is
    /// given the model's own.
    pub(crate) fn flat(self) -> Option<(Tier, bool)> {
        match self {
            Self::Model => None,
            Self::Shards(tier) => Some((tier, false)),
            Self::Owned(tier) => Some((tier, true)),
        }
    }
}

impl Residency {
    /// That of a unit of which every rank has all, in the model.
    pub const REPLICATED: Self =
        Self { parameters: Home::Model, scatters: false, gradients: Tier::Device, update: Form::Model };

    /// Where they lie.
    pub(crate) fn tiers(&self) -> Tiers {
        let parameters = match self.parameters {
            Home::Model => Tier::Device,
            Home::Flat { tier, .. } => tier,
        };
        let state = self.update.flat().map_or(Tier::Device, |(tier, _)| tier);
        Tiers { parameters, gradients: self.gradients, state }
    }

    /// Whether the unit's parameters are gathered for the segments that use them.
    pub(crate) fn is_gathered(&self) -> bool {
        self.parameters != Home::Model
    }

    /// Whether a rank has a shard of the unit's parameters, and not the whole.
    pub(crate) fn is_sharded(&self) -> bool {
        matches!(self.parameters, Home::Flat { is_shard: true, .. })
    }
}
