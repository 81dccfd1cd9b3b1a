//! Lines of bytes, and their sums.

use super::kind::{Kind, Source, Tier};

/// From when to when bytes are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// From step to step.
    Always,
    /// Inside a step.
    InStep,
}

/// Some bytes of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// What they are for.
    pub kind: Kind,
    /// Where they lie.
    pub tier: Tier,
    /// How many; none where that is not known.
    pub bytes: Option<u64>,
    /// From when to when.
    pub lasts: Lasts,
    /// How they are known.
    pub source: Source,
    /// Why they are needed, in a few words.
    pub why: String,
}

/// What one rank needs. Printed, it is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// By kind, then by place.
    pub lines: Vec<MemoryLine>,
}

impl MemoryEstimate {
    /// The bytes of a kind at a place, at the peak of a step; what is not known is left out.
    pub fn of(&self, kind: Kind, tier: Tier) -> u64 {
        self.sum(|line| line.kind == kind && line.tier == tier)
    }

    /// The bytes at a place at the peak of a step; what is not known is left out.
    pub fn peak(&self, tier: Tier) -> u64 {
        self.sum(|line| line.tier == tier)
    }

    /// The bytes at a place between two steps.
    pub fn between_steps(&self, tier: Tier) -> u64 {
        self.sum(|line| line.tier == tier && line.lasts == Lasts::Always)
    }

    /// The bytes of parameters, gradients and optimizer state, wherever they lie: what ZeRO's paper calls model states.
    pub fn model_states(&self) -> u64 {
        self.sum(|line| matches!(line.kind, Kind::Parameters | Kind::Gradients | Kind::OptimizerState))
    }

    /// What is not known.
    pub fn unknown(&self) -> impl Iterator<Item = &MemoryLine> {
        self.lines.iter().filter(|line| line.bytes.is_none())
    }

    fn sum(&self, counts: impl Fn(&MemoryLine) -> bool) -> u64 {
        self.lines.iter().filter(|line| counts(line)).filter_map(|line| line.bytes).sum()
    }
}
