//! Ranks that are only thought of: shapes and bytes, for a world of any size, in one process.
//!
//! One rank runs its program; its peers are mirrors of it: each brings what this rank brings, wherever the shapes
//! allow that, and zeros elsewhere. So a program runs through, agrees with its peers on every count, and its results
//! have the right shapes; its numbers mean nothing. What the rank would send is recorded in a [`Traffic`].
//!
//! ```
//! use burn::tensor::{DType, Device, Tensor};
//! use epl_comm::{Rank, ReduceOp, dry};
//!
//! let (group, traffic) = dry::world(4096, 7)?;
//! let x = Tensor::<2>::ones([8, 2], (&Device::flex(), DType::F32));
//! assert_eq!(group.all_gather(x.clone(), 0)?.dims(), [8 * 4096, 2]);
//! group.all_reduce(x, ReduceOp::Sum)?;
//! // A ring: all parts but one of each of the 4095 others; then twice all parts but one of its own 64 bytes.
//! let next = traffic.link(Rank(7), Rank(8));
//! assert_eq!(next, 4095 * 64 + 2 * 64 * 4095 / 4096);
//! println!("{traffic}");
//! # Ok::<_, epl_comm::Error>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `transport` | a rank among mirrors |
//! | `mirror` | the result of a collective among them |
//! | `traffic` | the record, and how many bytes a collective sends on which link |

mod mirror;
mod traffic;
mod transport;

use std::sync::Arc;

pub use traffic::{Entry, Traffic};

use crate::error::{Error, Result};
use crate::process_group::ProcessGroup;
use crate::rank::Rank;
use transport::DryTransport;

/// The group of all of `ranks` ranks as `rank` sees it, and the record of what it sends.
///
/// # Errors
///
/// [`Error::Invalid`] when there is no such rank.
pub fn world(ranks: usize, rank: usize) -> Result<(ProcessGroup, Traffic)> {
    if rank >= ranks {
        return Err(Error::invalid(format!("rank {rank} in a world of {ranks} ranks; ranks are counted from 0")));
    }
    let traffic = Traffic::default();
    let members = (0..ranks).map(Rank).collect();
    let transport = DryTransport::new("world", members, rank, traffic.clone());
    Ok((ProcessGroup::new(Arc::new(transport)), traffic))
}
