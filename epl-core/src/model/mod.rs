//! What a model says of itself, and what its layers ask.
//!
//! - `flat`: numbers that a device still has.
//! - `output`: what a model hands out beside its loss.
//! - `context`: what a layer reads at run time, and what it declares while its model is built.
//! - `decay`: how parameters that are moving averages move.
//! - `place`: where a part of a model goes.
//! - `carry`: what goes from segment to segment.
//! - `cast`: casts between f32 and 16 bits; `precision`: where they are made.
//! - `generator`: Burn's generator, held and seeded.
//! - `batch`: what a model reads, which has casts too.
//! - `graph`: the ends of a segment's graph.
//! - `stateful`: layers of Burn that remember that they ran, or would mix types in 16 bits.
//! - `average`: a part of a model that is a moving average of another part.
//! - `whole_layers`: what to use in place of layers that are whole where something is to be cut.
//! - `rerun`: a part of a model whose forward is run again in backward.
//! - `loss`: sums and weights.
//! - `segment`: what the engine asks of a model.
//! - `whole`, `chain`: a model of one segment, and an ordinary model as a chain of them; `chain_carry`: what these hand on.

pub(crate) mod flat;
pub mod output;
pub(crate) mod decay;
pub(crate) mod context;
pub(crate) mod place;
pub(crate) mod carry;
mod cast;
pub mod precision;
pub(crate) mod generator;
pub mod batch;
pub(crate) mod graph;
pub(crate) mod stateful;
mod average;
pub(crate) mod whole_layers;
pub(crate) mod rerun;
pub(crate) mod loss;
pub(crate) mod segment;
pub(crate) mod whole;
pub(crate) mod chain;
pub(crate) mod chain_carry;
