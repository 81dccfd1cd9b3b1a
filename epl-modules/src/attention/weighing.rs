//! How scores become weights, and what is kept of them for backward.

use core::ops::Range;

use burn::tensor::{Bool, Tensor};

use crate::dropout::Mask;
use crate::softcap::Softcap;

/// How the scores of all pairs become weights.
#[derive(Clone, Debug)]
pub(super) struct Weighing {
    /// What scores are multiplied by.
    pub scale: f64,
    /// The limit of what this gives, before a bias is added.
    pub softcap: Option<Softcap>,
    pub sight: Sight,
    /// `[batch_size, keys]`, true where no query sees a key.
    pub padding: Option<Tensor<2, Bool>>,
    /// Dropout of the weights, drawn per (head, query, key).
    pub dropout: Option<Mask>,
}

/// Which keys a query sees, but for padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sight {
    All,
    /// No later ones, where the last query stands at the last key; with a window only so many, the query's own the last of them.
    Causal {
        window: Option<usize>,
    },
}

impl Sight {
    /// The keys that a query of so many sees of so many.
    #[inline(always)]
    pub fn of(self, query: usize, [queries, keys]: [usize; 2]) -> Range<usize> {
        match self {
            Self::All => 0..keys,
            Self::Causal { window } => {
                let end = (query + 1 + keys).saturating_sub(queries).min(keys);
                window.map_or(0, |window| end.saturating_sub(window))..end
            }
        }
    }
}

/// Attention weights, `[batch_size, heads, queries, keys]`.
pub(super) struct Weights {
    /// After dropout: what the values are multiplied by.
    pub kept: Tensor<4>,
    /// What backward needs.
    pub saved: SavedWeights,
}

/// The softmax, and which of its elements are dropped.
pub(super) struct SavedWeights {
    pub softmax: Tensor<4>,
    /// What dropout has multiplied them by.
    pub mask: Option<Tensor<4>>,
    /// The derivatives of the softcap.
    pub slopes: Option<Tensor<4>>,
}
