//! What the things of a step take: segments over rows, collectives over bytes. Measured, or of links that are described.
//!
//! - `line`: a function through points.
//! - `network`: collectives.
//! - `devices`: devices that are not alike.
//! - `machine`: clusters that are described.
//! - `step`: what a simulation asks.

mod line;
mod network;
mod devices;
mod machine;
mod step;

pub(crate) use devices::{ClusterDevices, DeviceTraits};
pub use line::Line;
pub(crate) use machine::DeviceClass;
pub use machine::Machine;
pub use network::Network;
pub(crate) use network::{CallKind, MeasuredCalls, NetworkLink, NetworkPlace};
pub(crate) use step::{HostUpdates, LayerSeconds, Rates, SegmentTime, SimulatedRank, StepCosts};
