//! Runs a closure once per rank, wherever the ranks are, and builds models in it.
//!
//! - `epl`: what a rank knows, and how it builds models.
//! - `elsewhere`: the same rank in another layout, or in a world that is only thought of.
//! - `plan_only`: a program that is run for its plan.
//! - `device`: which device each rank of a worker drives; `fusion`: what Burn may fuse there.
//! - `allocator`: memory that is freed stays with the process.
//! - `joined`: which workers there are, and over what their ranks communicate.
//! - `ranks`: those of this process, over what carries them; `nccl`: ranks with a GPU each.
//! - `record`: the file with what every rank did; `watched`: what it does, for `epl-launch --watch`.

mod epl;
mod plan_only;
mod elsewhere;
mod allocator;
mod device;
mod fusion;
mod joined;
#[cfg(feature = "cuda")]
mod nccl;
mod ranks;
mod record;
mod watched;

use std::sync::Arc;

use burn::tensor::Device;
use epl_comm::dry::Traffic;
use epl_comm::{ProcessGroup, Trace};

pub use epl::{Epl, LaidOutModel};
use joined::Joined;
pub(crate) use joined::leave_workers;
pub(crate) use plan_only::WantedPlan;
pub use plan_only::is_planned;
use record::Record;
use watched::Watched;
pub(crate) use watched::{of_run, step_began, stepped};

use crate::config::Config;
use crate::error::Result;

/// Runs `f` once per rank of this process, each on a thread and in a rayon pool of its own, and returns what each
/// returned.
///
/// The ranks are those of this process alone, as many as the configuration asks for; or, where the process was started by
/// `epl-launch`, `mpirun` or the like, this process's share of the ranks of all workers: the option
/// `communication.transport`.
///
/// ```
/// use epl_core::{Config, launch};
///
/// let config = Config::new().with("cluster.ranks", 3)?;
/// assert_eq!(launch(&config, |epl| Ok(epl.context().world().rank()))?, [0, 1, 2]);
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// Where the environment asks for the program's plan (`epl plan`), `f` is run as one rank of a world that is only thought of, until it
/// builds an engine, and nothing is trained; where stages have different widths, once for each of them.
///
/// # Errors
///
/// What is wrong with the configuration, before any rank starts; then the first failure, with the rank that caused it;
/// the other ranks are released. [`Error::PlanOnly`](crate::Error::PlanOnly) where the plan was asked for, and is made.
pub fn launch<T: Send>(config: &Config, f: impl Fn(Epl) -> Result<T> + Sync) -> Result<Vec<T>> {
    launch_traced(config, None, f)
}

/// Runs `f` as one rank of a world that is only thought of, and returns what that rank would send.
///
/// The other ranks are mirrors of it (see [`epl_comm::dry`]): shapes and bytes are right, numbers are not. It needs
/// the memory of one rank, whatever the size of the world. Nothing is traced.
///
/// ```
/// use epl_core::{Config, launch_dry};
///
/// let config = Config::new().with("dist.data_parallel_size", 500)?;
/// let (shown, _traffic) = launch_dry(&config, 7, |epl| Ok((epl.context().world().rank(), epl.context().replicas())))?;
/// assert_eq!(shown, (7, 500));
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// What is wrong with the configuration, a rank that the mesh does not have, or what `f` returns.
pub fn launch_dry<T>(config: &Config, rank: usize, f: impl FnOnce(Epl) -> Result<T>) -> Result<(T, Traffic)> {
    elsewhere::thought_of(config.clone(), None, rank, |config, (_, mesh), world, trace| {
        f(Epl::new(config, mesh, world, Some(trace))?)
    })
}

/// [`launch`], with a record of what every rank does, which is also written to the file `profile.trace`, if that is
/// given; by the second worker and those behind it to a file of their own beside it. None: there is a record where the
/// file is.
pub fn launch_traced<T: Send>(
    config: &Config,
    trace: Option<Trace>,
    f: impl Fn(Epl) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    config.validate()?;
    let wanted = WantedPlan::of_process()?;
    wanted.as_ref().map_or(Ok(()), |wanted| wanted.check_alone(config))?;
    if let Some(wanted) = wanted.as_ref().filter(|wanted| !wanted.needs_ranks(config)) {
        return Err(wanted.of_ranks(|rank| in_thought(config, wanted, rank, &f).err()));
    }
    if config.cluster.keep_freed_memory {
        // Before there are other threads.
        allocator::keep_freed_memory();
    }
    let joined = Joined::new(config)?;
    let record = Record::open(config, trace, joined.cluster.worker_index())?;
    let watched = Watched::begin(joined.cluster.worker_index());
    let run = |world: ProcessGroup| {
        watched.add(&world);
        f(on_rank(world, config, &joined, &record)?)
    };
    let ran = ranks::run(&joined, config, run).inspect_err(|error| joined.tell(error));
    // Of a run that failed, too: it shows where.
    let written = record.write();
    if let Some(wanted) = wanted {
        return Err(wanted.ended(ran.err()));
    }
    ran.and_then(|values| written.map(|()| values))
}

/// Runs `f` as a rank of the world that a plan is wanted of.
fn in_thought<T>(
    config: &Config,
    wanted: &Arc<WantedPlan>,
    rank: usize,
    f: impl FnOnce(Epl) -> Result<T>,
) -> Result<T> {
    let cluster = wanted.cluster(config)?;
    let ran = elsewhere::thought_of(config.clone(), cluster, rank, |config, (cluster, mesh), world, trace| {
        let at = (cluster, Device::default().autodiff());
        f(Epl::wanting(config, at, mesh, world, Some(trace), Some(wanted.clone()))?)
    });
    ran.map(|(value, _)| value)
}

/// What a rank of this process is given: no part of [`launch_traced`], which is compiled anew for each closure.
fn on_rank(world: ProcessGroup, config: &Config, joined: &Joined, record: &Record) -> Result<Epl> {
    let device = joined.devices.of(world.global(world.rank()).0 - joined.cluster.local_ranks().start);
    let (cluster, mesh) = (joined.cluster.clone(), joined.mesh.clone());
    Epl::on_cluster(config.clone(), (cluster, device), mesh, world, Some(record.of_rank()))
}
