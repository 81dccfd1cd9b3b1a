//! Which experts a token asks for, and how many tokens an expert takes: the user's choices.

use burn::config::Config;

/// How many experts a token is sent to.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum Gate {
    /// The most probable expert; its output is multiplied by its probability.
    ///
    /// Switch Transformers (Fedus, Zoph and Shazeer, 2021).
    Switch,
    /// The two most probable experts. The second is the most probable once the first is masked; all first
    /// choices of a group are placed before its second choices. Their outputs are weighted by their
    /// probabilities, renormalised over those of the two that were not dropped.
    ///
    /// GShard (Lepikhin et al., 2020), in the form EPL's top-2 gate gives it. The GShard paper and later Mesh
    /// TensorFlow renormalise *before* dropping, so that a token that lost one expert is scaled down; EPL
    /// renormalises *after*, so that the other expert then has weight 1. We do as EPL does. EPL's random second
    /// expert (policy "random") is not done.
    Top2,
    /// The `experts` most probable ones; first choices are placed before second ones, and so on. The load-balancing loss
    /// counts all choices, that of [`Top2`](Self::Top2) the first ones only.
    ///
    /// Mixtral (Jiang et al., 2024) and Qwen3-MoE renormalise.
    TopK {
        /// How many experts a token is sent to: k.
        experts: usize,
        /// Whether outputs are weighted by probabilities that are renormalised over the experts that take the token;
        /// otherwise by the probabilities themselves.
        renormalise: bool,
    },
}

impl Gate {
    /// How many experts a token asks for: k.
    pub fn choices(self) -> usize {
        match self {
            Self::Switch => 1,
            Self::Top2 => 2,
            Self::TopK { experts, .. } => experts,
        }
    }

    /// How many of a token's choices the load-balancing loss counts.
    pub(super) fn balanced(self) -> usize {
        match self {
            Self::Switch | Self::Top2 => 1,
            Self::TopK { experts, .. } => experts,
        }
    }

    /// Whether the weights of a token's experts are renormalised over those that take it.
    pub(super) fn renormalises(self) -> bool {
        match self {
            Self::Switch => false,
            Self::Top2 => true,
            Self::TopK { renormalise, .. } => renormalise,
        }
    }
}

/// Over which tokens the load-balancing loss takes its means.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Balance {
    /// Over each sequence: the loss is a sum over sequences, which no layout changes.
    Sequences,
    /// Over all tokens that are run together, a micro-batch of all replicas, and over all layers: experts need be busy
    /// alike in a batch, and may be unlike in a sequence. Which rows run together changes what is computed: how many
    /// micro-batches there are, and with several of them how many replicas.
    ///
    /// The loss of Mixtral in Hugging Face; *Demons in the Detail: On Implementing Load Balancing Loss for Training
    /// Specialized Mixture-of-Expert Models*, Qiu et al., 2025 ([arXiv:2501.11873](https://arxiv.org/abs/2501.11873)).
    Batch,
}

/// How many tokens of one group an expert takes. What comes over it is dropped.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum Capacity {
    /// ceil(factor × k × real tokens of the group ÷ experts), at least [`Capacity::LEAST`].
    Factor {
        /// The factor in training.
        train: f64,
        /// The factor in evaluation.
        eval: f64,
    },
    /// This many, whatever the group: what Hugging Face calls `expert_capacity`.
    Fixed(usize),
    /// As many as come; nothing is dropped.
    Unlimited,
}

impl Capacity {
    /// The least capacity that [`Capacity::Factor`] gives.
    pub const LEAST: usize = 4;

    /// How many of a group's `tokens` one of `experts` takes.
    pub(super) fn of_group(self, tokens: usize, experts: usize, gate: Gate, training: bool) -> usize {
        match self {
            Self::Factor { train, eval } => {
                let factor = if training { train } else { eval };
                let share = factor * (gate.choices() * tokens) as f64 / experts as f64;
                // A product such as 1.1 · 10 comes out a rounding error above 11, which is not a reason for 12.
                ((share * (1.0 - 1e-12)).ceil() as usize).max(Self::LEAST)
            }
            Self::Fixed(capacity) => capacity,
            Self::Unlimited => usize::MAX,
        }
    }

    /// What is wrong with it, if anything.
    pub(super) fn fault(self) -> Option<String> {
        let positive = |factor: f64| factor.is_finite() && factor > 0.0;
        match self {
            Self::Factor { train, eval } if !positive(train) || !positive(eval) => Some(format!(
                "the capacity factors are {train} in training and {eval} in evaluation; both must be above 0"
            )),
            Self::Fixed(0) => Some("a fixed capacity of 0 drops every token; give at least 1".to_string()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_rounded_up_and_at_least_four() {
        let factor = Capacity::Factor { train: 1.25, eval: 2.0 };
        for (tokens, experts, gate, training, expected) in [
            (64, 8, Gate::Switch, true, 10),
            (65, 8, Gate::Switch, true, 11),
            (64, 8, Gate::Switch, false, 16),
            (64, 8, Gate::Top2, true, 20),
            (12, 4, Gate::Switch, true, 4),
            (0, 4, Gate::Top2, true, 4),
        ] {
            assert_eq!(factor.of_group(tokens, experts, gate, training), expected, "{tokens} tokens, {gate:?}");
        }
        assert_eq!(Capacity::Factor { train: 1.1, eval: 1.1 }.of_group(10, 1, Gate::Switch, true), 11);
        assert_eq!(Capacity::Fixed(3).of_group(1000, 2, Gate::Top2, true), 3);
        assert_eq!(Capacity::Unlimited.of_group(1000, 2, Gate::Top2, true), usize::MAX);
    }

    #[test]
    fn senseless_capacities_are_refused() {
        assert!(Capacity::Fixed(0).fault().is_some());
        assert!(Capacity::Factor { train: 1.0, eval: f64::NAN }.fault().is_some());
        assert!(Capacity::Factor { train: 0.0, eval: 1.0 }.fault().is_some());
        assert_eq!(Capacity::Factor { train: 0.5, eval: 1.0 }.fault(), None);
        assert_eq!(Capacity::Unlimited.fault(), None);
    }
}
