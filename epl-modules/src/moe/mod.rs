//! Mixture of experts: switch, top-2 and top-k gates by groups, experts divided over the expert axis.
//!
//! ```text
//! x ──┬─ router ── probabilities ── route ── Routing          pure numbers: routing, gate, mask
//!     │                │                        │
//!     │                ├──── auxiliary, z ◄─────┤             balance
//!     │                ▼                        ▼
//!     └──────► dispatch ─ all-to-all ─ experts ─ all-to-all ─ combine ──► hidden
//! ```
//!
//! One sequence is one group, so that no layout changes which tokens are dropped: see [`routing`].

mod arrangement;
mod mask;
pub mod gate;
mod config;
pub mod routing;
mod moving;
mod router;
mod balance;
mod bias;
mod listed;
mod slots;
mod decision;
mod dispatch;
mod grouped;
mod expert;
mod layer;

pub use balance::RouterLosses;
pub use bias::BalanceBias;
pub use config::MoeConfig;
pub use decision::Decision;
pub use expert::Experts;
pub use gate::{Balance, Capacity, Gate};
pub use layer::{Moe, MoeOutput};
pub use mask::TokenMask;
pub use router::{Routed, Router};
pub use routing::{Routing, route};
pub use slots::Slots;
