//! Linear layers: whole on every rank, or split over the tensor axis.
//!
//! A matrix `[d_input, d_output]` can be cut in two ways (Megatron-LM, [arXiv:1909.08053](https://arxiv.org/abs/1909.08053)),
//! and one cut feeds the other without communication between them:
//!
//! ```text
//!            columns                        rows
//! X copied ─ X · W₀ ─> Y split ─ σ ─> Y₀ · V₀ ─┐
//!            X · W₁ ─> Y split ─ σ ─> Y₁ · V₁ ─┴ partial ── all-reduce ──> Z replicated
//! backward: all-reduce of ∂X                                 backward: nothing
//! ```

mod affine;
mod each;
mod operand;
mod replicated;
mod split;

pub use operand::Operand;
pub use replicated::{ReplicatedLinear, ReplicatedLinearConfig};
pub use split::{LinearCut, SplitInput, SplitLinear, SplitLinearConfig};

pub(crate) use affine::{Weight, add_bias, affine, count_affine, weighted};
pub(crate) use each::affine_each;
pub(crate) use replicated::default_initializer;
pub(crate) use split::{Parameters, columns_each, rows};
