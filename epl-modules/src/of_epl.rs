//! What tells a layer from Burn's of the same name.

use burn::module::Module;

/// A field `of_epl` behind the others: the plan knows layers by their names, and Burn's need care that this one does not.
#[derive(Module, Debug)]
pub(crate) struct OfEpl;
