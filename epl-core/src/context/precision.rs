//! The parameters that mixed precision leaves as they are.

use burn::module::ParamId;

use super::Context;

impl Context {
    /// Declares that mixed precision leaves a parameter as it is: its layer computes with it in f32, as a norm with its
    /// scale. To be called where the layer is made; see [`Place::full_precision`](crate::Place::full_precision).
    pub fn keep_full_precision(&self, id: ParamId) {
        self.state().full_precision.insert(id);
    }

    /// Whether a parameter was declared so, by the identifier with which its layer was made. A plan gives parameters
    /// other ones.
    pub fn is_full_precision(&self, id: ParamId) -> bool {
        self.state().full_precision.contains(&id)
    }
}
