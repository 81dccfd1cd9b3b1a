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
//! | `hosts` | ranks of several hosts: collectives go through one rank of each |

mod mirror;
mod traffic;
mod transport;
mod hosts;

use std::sync::Arc;

pub use traffic::{Entry, Traffic};

use crate::error::{Error, Result};
use crate::hierarchy::{self, Medium};
use crate::process_group::ProcessGroup;
use crate::rank::Rank;
use hosts::DryHosts;
use transport::DryTransport;

/// The group of all of `ranks` ranks as `rank` sees it, and the record of what it sends.
///
/// # Errors
///
/// [`Error::Invalid`] when there is no such rank.
pub fn world(ranks: usize, rank: usize) -> Result<(ProcessGroup, Traffic)> {
    check(ranks, rank)?;
    let traffic = Traffic::default();
    let members = (0..ranks).map(Rank).collect();
    let transport = DryTransport::new(WORLD, members, rank, traffic.clone());
    Ok((ProcessGroup::new(Arc::new(transport)), traffic))
}

/// [`world`] where so many neighbouring ranks make a host: collectives over several hosts go through one rank of each, as
/// between workers that have several ranks.
///
/// An uneven all-to-all over several hosts is a mismatch here: what one rank has for another is not what that one, its
/// mirror, expects.
///
/// # Errors
///
/// [`Error::Invalid`] when there is no such rank, or hosts have none.
pub fn world_of_hosts(ranks: usize, per_host: usize, rank: usize) -> Result<(ProcessGroup, Traffic)> {
    check(ranks, rank)?;
    if per_host == 0 {
        return Err(Error::invalid("hosts of 0 ranks; give each at least 1"));
    }
    let traffic = Traffic::default();
    let medium: Arc<dyn Medium> = Arc::new(DryHosts { per_host, traffic: traffic.clone() });
    let members = (0..ranks).map(Rank).collect();
    let transport = hierarchy::group(&medium, WORLD, WORLD, members, Rank(rank))?;
    Ok((ProcessGroup::new(transport), traffic))
}

/// The name of the group of all ranks.
const WORLD: &str = "world";

fn check(ranks: usize, rank: usize) -> Result<()> {
    if rank >= ranks {
        return Err(Error::invalid(format!("rank {rank} in a world of {ranks} ranks; ranks are counted from 0")));
    }
    Ok(())
}
