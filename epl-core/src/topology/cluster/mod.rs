//! The ranks that exist, and the mesh they form.
//!
//! A [`Cluster`] says which workers there are and which devices each drives. A [`Mesh`] numbers the
//! ranks along axes: world = data × pipeline × tensor, and expert divides data; stages of different
//! widths are a block of ranks each. Both are pure values, made from numbers alone.

mod error;
mod axis;
mod workers;
mod sizes;
mod block;
mod part;
mod mesh;
mod routes;
mod placement;
mod display;

pub use crate::config::RankOrder;
pub use axis::{Axis, Coordinate};
pub use error::{ClusterError, Result};
pub use mesh::Mesh;
pub(crate) use mesh::Width;
pub(crate) use part::{BatchPart, device_rows};
pub use placement::Placement;
pub(crate) use routes::{MemberRows, ParcelLabel, Peers, Routes};
pub use sizes::{MeshRequest, MeshSizes};
pub use workers::{Cluster, DeviceSlot};
