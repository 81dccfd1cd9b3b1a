//! Which layout trains a model fastest, by simulation: no tensors, no ranks.
//!
//! ```text
//! what is given ─▶ layouts (data × stages × tensor × expert, micro-batches, chunks, schedule)     by their lower bounds
//!                    │  while the bound is below the best
//!                    ▼
//!                  cuts and recomputation that fit ─▶ Plan ─▶ StepProgram ─▶ simulate_step        of one rank a stage and kind of replica
//!                    │
//!                    ▼  moves of cuts by one segment, until none helps
//!                  Found: the best, the next ones, what each loses
//! ```
//!
//! Every layout is a configuration ([`Choice::config`]): what is judged is what an engine would run.
//!
//! - `candidate`: a layout, and the options that say it.
//! - `column`: a model whose layers are divided in one way, with its costs.
//! - `cuts`: where stages are cut and what is run again, for a bottleneck and a budget.
//! - `rows`: how replicas of unequal speed divide a batch.
//! - `judge`: a configuration, simulated.
//! - `kept`: what no layout may change.
//! - `space`: the layouts that may be, with bounds.
//! - `draft`: a layout that is cut, with what it takes by formula.
//! - `moves`: layouts next to one.
//! - `run`: the search.
//! - `found`: what it found, in words.
//! - `on_paper`: models and clusters that are described.

mod candidate;
mod column;
mod cuts;
mod rows;
mod judge;
mod kept;
mod space;
mod draft;
mod moves;
mod run;
mod found;
mod on_paper;
#[cfg(test)]
mod tests;

pub(crate) use candidate::{CHOSEN, SEARCH, is_fixed, reset};
pub(crate) use column::{Column, Columns, SegmentCost, seconds_of_calls};
pub use found::{Choice, Found};
pub(crate) use judge::Judge;
pub use on_paper::{PaperParam, PaperSegment, PaperTask, search_on_paper};
pub(crate) use run::{check_described, check_search, explain, search};
pub(crate) use space::{divisions, put_away};
