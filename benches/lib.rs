//! What the benches share. They are a package of their own, so that tests wait for none of what only they need.

pub mod moe;
pub mod pairs;
pub mod plain;
pub mod quartiles;
pub mod shaped;
pub mod sleeping;
pub mod speed;
pub mod steps;
