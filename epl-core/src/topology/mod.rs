//! Who exists and who runs what: ranks, their mesh, and the scopes of a model resolved to it. No tensors.
//!
//! - `cluster`: workers and devices, and the mesh that their ranks form.
//! - `layout`: EPL's `replicate` and `split`, resolved to a mesh.
//! - `scopes`: those that were opened while a model was built.

pub mod cluster;
pub mod layout;
pub(crate) mod scopes;
