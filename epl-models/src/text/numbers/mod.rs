//! Number words: a translation task that needs no download and has no end of unseen sentences.
//!
//! [`english`] and [`german`] spell every number below [`LIMIT`] by rule. [`NumberPairsConfig`] splits the numbers,
//! by seed, into held-out ones and training ones.
//!
//! The task is small but not trivial: German turns units and tens around (forty-two: *zweiundvierzig*), inflects
//! the one (*eins*, *ein*), changes stems (*sechzehn*, *siebzig*, *dreißig*) and writes all of it as one word.

mod english;
mod german;
mod pairs;

pub use english::english;
pub use german::german;
pub use pairs::{NumberPairs, NumberPairsConfig, NumberSplit};

/// Numbers are below this.
pub const LIMIT: u32 = 1_000_000;

#[cfg(test)]
mod tests;
