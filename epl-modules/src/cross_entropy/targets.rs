//! What the logits of rows are judged by: a class each, or two.

use burn::tensor::{Int, Tensor};

/// The classes of rows.
#[derive(Clone, Debug)]
pub struct Targets {
    /// The class of each row. Shape `[rows]`
    pub classes: Tensor<1, Int>,
    /// A second class of each row, as of images that are mixed.
    pub mixed: Option<MixedTargets>,
}

/// The second classes of rows.
#[derive(Clone, Debug)]
pub struct MixedTargets {
    /// The second class of each row, perhaps the first one again. Shape `[rows]`
    pub others: Tensor<1, Int>,
    /// The share of the first class of each row, from 0 to 1; what is left is the second one's. Shape `[rows]`
    pub shares: Tensor<1>,
}

impl From<Tensor<1, Int>> for Targets {
    fn from(classes: Tensor<1, Int>) -> Self {
        Self { classes, mixed: None }
    }
}

impl Targets {
    /// Without a graph.
    pub(crate) fn inner(self) -> Self {
        let of = |mixed: MixedTargets| MixedTargets { others: mixed.others.inner(), shares: mixed.shares.inner() };
        Self { classes: self.classes.inner(), mixed: self.mixed.map(of) }
    }

    /// The first of its numbers of rows that is not `rows`.
    pub(crate) fn other_than(&self, rows: usize) -> Option<usize> {
        let mixed = self.mixed.iter().flat_map(|mixed| [mixed.others.dims()[0], mixed.shares.dims()[0]]);
        [self.classes.dims()[0]].into_iter().chain(mixed).find(|given| *given != rows)
    }
}
