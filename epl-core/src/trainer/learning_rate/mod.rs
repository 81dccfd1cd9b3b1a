//! What happens when: values that are functions of a step's number alone.

mod learning_rate;

pub use learning_rate::{Decay, LearningRate};
