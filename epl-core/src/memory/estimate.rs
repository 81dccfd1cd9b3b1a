//! Lines of bytes, and their sums.

use std::fmt;

use super::kind::{FigureSource, MemoryKind, Tier};

/// When bytes are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From step to step.
    Always,
    /// In the whole of a step.
    Step,
    /// In forwards and backwards.
    Passes,
    /// Until the first backward is over.
    Forward,
    /// When a backward is over.
    Backward,
    /// When a backward is over, and in the update.
    FromBackward,
    /// In the update.
    Update,
}

/// A part of a step in which it may need the most.
///
/// ```text
/// activations   ▁▃▅▇▅▃▁ ▁▃▅▇▅▃▁
/// gradients     ▁▁▁▁▁▃▅ ▇▇▇▇▇▇▇ ▇▅▃▁
///               forward backward update
/// ```
///
/// ```
/// # use epl_core::memory::{MemoryInputs, ParamMemory, StepPhase, StoredActivations, Tier};
/// let mut inputs = MemoryInputs::new(vec![ParamMemory::new(1_000)]);
/// let mut most_in = |activations| {
///     inputs.activations = StoredActivations::formula(activations, "as measured");
///     inputs.estimate().moment(Tier::Device)
/// };
/// assert_eq!([most_in(10), most_in(1_000_000)], [StepPhase::Update, StepPhase::Forward]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// Until the first backward is over.
    Forward,
    /// From then on, until the last one is over.
    Backward,
    /// The update of the parameters.
    Update,
}

impl When {
    /// Whether it is needed in this part of a step.
    pub fn is_in(self, moment: StepPhase) -> bool {
        match self {
            Self::Always | Self::Step => true,
            Self::Passes => moment != StepPhase::Update,
            Self::Forward => moment == StepPhase::Forward,
            Self::Backward => moment == StepPhase::Backward,
            Self::FromBackward => moment != StepPhase::Forward,
            Self::Update => moment == StepPhase::Update,
        }
    }
}

impl StepPhase {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Update];
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Always => "always",
            Self::Step => "step",
            Self::Passes => "passes",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::FromBackward => "backward on",
            Self::Update => "update",
        })
    }
}

impl fmt::Display for StepPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "until the first backward is over",
            Self::Backward => "when a backward is over",
            Self::Update => "in the update",
        })
    }
}

/// Some bytes of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// What they are for.
    pub kind: MemoryKind,
    /// Where they lie.
    pub tier: Tier,
    /// How many; none where that is not known.
    pub bytes: Option<u64>,
    /// When.
    pub when: When,
    /// How they are known.
    pub source: FigureSource,
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
    /// The bytes of a kind at a place, in the part of a step in which most are needed there; what is not known is left out.
    pub fn of(&self, kind: MemoryKind, tier: Tier) -> u64 {
        let moment = self.moment(tier);
        self.sum(|line| line.kind == kind && line.tier == tier && line.when.is_in(moment))
    }

    /// The most bytes at a place in a step; what is not known is left out.
    pub fn peak(&self, tier: Tier) -> u64 {
        self.at(tier, self.moment(tier))
    }

    /// In which part of a step most is needed at a place.
    pub fn moment(&self, tier: Tier) -> StepPhase {
        // The first of several.
        StepPhase::ALL.into_iter().rev().max_by_key(|moment| self.at(tier, *moment)).unwrap_or(StepPhase::Forward)
    }

    /// The bytes at a place in a part of a step.
    pub fn at(&self, tier: Tier, moment: StepPhase) -> u64 {
        self.sum(|line| line.tier == tier && line.when.is_in(moment))
    }

    /// The bytes at a place between two steps.
    pub fn between_steps(&self, tier: Tier) -> u64 {
        self.sum(|line| line.tier == tier && line.when == When::Always)
    }

    /// The bytes of parameters, gradients and optimizer state, wherever they lie: what ZeRO's paper calls model states.
    pub fn model_states(&self) -> u64 {
        self.sum(|line| {
            matches!(line.kind, MemoryKind::Parameters | MemoryKind::Gradients | MemoryKind::OptimizerState)
        })
    }

    /// What is not known.
    pub fn unknown(&self) -> impl Iterator<Item = &MemoryLine> {
        self.lines.iter().filter(|line| line.bytes.is_none())
    }

    fn sum(&self, counts: impl Fn(&MemoryLine) -> bool) -> u64 {
        self.lines.iter().filter(|line| counts(line)).filter_map(|line| line.bytes).sum()
    }
}
