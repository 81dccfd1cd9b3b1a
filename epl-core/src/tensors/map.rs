//! Which stored tensor goes where, in the user's words.

use std::ops::Range;

use crate::pattern::Pattern;

/// Which stored tensors fill which parameters, as TensorFlow's assignment maps and EPL's do.
///
/// A path covers itself and all below it; the empty one is the whole model. `*` in a path is any one name, such as the
/// number of a layer, and `**` any number of names, none included: the stored path takes over what the stars of ours are, in
/// their order, or has none and goes to all.
/// Of several assignments that fit a parameter the last one counts; one that fills a part of it only
/// ([`Assignment::putting`]) is laid over what those before it fill.
///
/// What is left over on either side is an error that lists it, unless it is allowed.
///
/// ```
/// use epl_core::tensors::{AssignMap, Assignment};
///
/// let upcycled = AssignMap::identity()
///     // The first stored layer into each of ours.
///     .with("encoder.layers.0", "encoder.layers.*")
///     .allow_unused("encoder.layers")
///     // A dense network into each expert.
///     .with_assignment(Assignment::new("encoder.layers.*.mlp.input.weight", "encoder.layers.*.moe.experts.input").repeated())
///     .allow_missing("encoder.layers.*.moe.router")
///     // The first rows of a larger vocabulary.
///     .with_assignment(Assignment::new("embedding.weight", "embedding.weight").taking(0, 0..32_000));
/// # let _ = upcycled;
/// ```
///
/// TensorFlow: [`tf.compat.v1.train.init_from_checkpoint`](https://www.tensorflow.org/api_docs/python/tf/compat/v1/train/init_from_checkpoint).
/// Experts from a dense network: *Sparse Upcycling*, Komatsuzaki et al., 2022,
/// [arXiv:2212.05055](https://arxiv.org/abs/2212.05055).
#[derive(Clone, Debug, Default)]
pub struct AssignMap {
    pub(super) assignments: Vec<Assignment>,
    pub(super) missing: Vec<Pattern>,
    pub(super) unused: Vec<Pattern>,
}

impl AssignMap {
    /// A map that assigns nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every parameter from the stored tensor of the same name.
    pub fn identity() -> Self {
        Self::new().with("", "")
    }

    /// Fills what is at or below the path `ours` by what is at or below the path `stored`.
    #[must_use]
    pub fn with(self, stored: &str, ours: &str) -> Self {
        self.with_assignment(Assignment::new(stored, ours))
    }

    /// Fills as an assignment says.
    #[must_use]
    pub fn with_assignment(mut self, assignment: Assignment) -> Self {
        self.assignments.push(assignment);
        self
    }

    /// What is at or below a path of ours may keep the values it has, where nothing is stored for it.
    #[must_use]
    pub fn allow_missing(mut self, ours: &str) -> Self {
        self.missing.push(Pattern::new(ours));
        self
    }

    /// What is stored at or below a path may be left unread.
    #[must_use]
    pub fn allow_unused(mut self, stored: &str) -> Self {
        self.unused.push(Pattern::new(stored));
        self
    }
}

/// One line of an [`AssignMap`].
#[derive(Clone, Debug)]
pub struct Assignment {
    pub(super) stored: Pattern,
    pub(super) ours: Pattern,
    /// Of the stored tensor, by dim.
    pub(super) taken: Vec<(usize, Range<usize>)>,
    /// Of ours, by dim.
    pub(super) put: Vec<(usize, Range<usize>)>,
    pub(super) repeated: bool,
}

impl Assignment {
    /// From a stored path to one of ours.
    pub fn new(stored: &str, ours: &str) -> Self {
        let (stored, ours) = (Pattern::new(stored), Pattern::new(ours));
        Self { stored, ours, taken: Vec::new(), put: Vec::new(), repeated: false }
    }

    /// Takes only a range of a dim of the stored tensor, such as the first rows of an embedding.
    #[must_use]
    pub fn taking(mut self, dim: usize, range: Range<usize>) -> Self {
        self.taken.push((dim, range));
        self
    }

    /// Fills only a range of a dim of ours; what is outside of it keeps its values.
    #[must_use]
    pub fn putting(mut self, dim: usize, range: Range<usize>) -> Self {
        self.put.push((dim, range));
        self
    }

    /// Ours has one dim more in front, such as that of the experts, and each of its entries gets the stored tensor.
    #[must_use]
    pub fn repeated(mut self) -> Self {
        self.repeated = true;
        self
    }
}
