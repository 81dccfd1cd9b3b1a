//! The beginning of a run: all processes come together.

use core::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::keeper::{close, open};
use super::library::{Comm, Place, Request, hosts, start};
use super::tags::Tags;
use super::world::MpiWorld;
use crate::error::{Error, Result};
use crate::host::watchdog::Options;
use crate::pending::check_lanes;

/// Between two looks.
const PACE: Duration = Duration::from_micros(200);

/// Joins the world of all processes, with so many ranks in each; `per_host` of them are taken for one host's, otherwise those
/// that share its memory.
///
/// # Errors
///
/// [`Error::Medium`] when the library fails, does not allow several threads, or not all processes come within the time
/// limit; [`Error::Invalid`] when they do not all have as many ranks, or so many that there are no tags for their
/// messages.
pub(super) fn join(threads: usize, per_host: Option<usize>, options: Options) -> Result<Arc<MpiWorld>> {
    let place = start()?;
    if threads == 0 {
        return Err(Error::invalid("a process of 0 ranks; run at least 1"));
    }
    if per_host == Some(0) {
        return Err(Error::invalid("hosts of 0 processes; give each at least 1"));
    }
    check_lanes(options.lanes)?;
    let limit = options.time_limit;
    open();
    let data = duplicate(place, limit)?;
    let control = duplicate(place, limit)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let lanes = options.lanes.unwrap_or((cores / (place.locals * threads)).max(1));
    let all = gather(place, control, [threads as u64, lanes as u64], limit)?;
    if let Some(other) = all.iter().position(|[theirs, _]| *theirs != threads as u64) {
        close();
        return Err(Error::invalid(format!(
            "process {} has {threads} ranks, but process {other} has {}; give all processes as many",
            place.process, all[other][0]
        )));
    }
    // The same on all ranks.
    let lanes = all.iter().map(|[_, lanes]| *lanes as usize).min().unwrap_or(lanes);
    let hosts = match per_host {
        Some(several) => (0..place.processes).map(|process| process / several).collect(),
        None => hosts()?,
    };
    // The same in all processes.
    let tags = Tags::new(threads, data.tag_limit()?).inspect_err(|_| close())?;
    Ok(MpiWorld::new((place, hosts), threads, lanes, [data, control], tags, options))
}

/// A space of messages for this run.
fn duplicate(place: Place, limit: Option<Duration>) -> Result<Comm> {
    let mut comm = ManuallyDrop::new(Box::new(Comm::none()));
    let request = Comm::begin(&mut comm)?;
    wait(place, request, limit)?;
    Ok(*ManuallyDrop::into_inner(comm))
}

/// The numbers of all processes.
fn gather(place: Place, comm: Comm, own: [u64; 2], limit: Option<Duration>) -> Result<Vec<[u64; 2]>> {
    let own = ManuallyDrop::new(Box::new(own));
    let mut all = ManuallyDrop::new(vec![[0_u64; 2]; place.processes]);
    // SAFETY: both stay where they are when the wait fails; there are two numbers for every process.
    let request = unsafe { comm.gather(&**own, all.as_mut_ptr().cast()) }?;
    wait(place, request, limit)?;
    drop(ManuallyDrop::into_inner(own));
    Ok(ManuallyDrop::into_inner(all))
}

fn wait(place: Place, mut request: Request, limit: Option<Duration>) -> Result<()> {
    let begun = Instant::now();
    while !request.test()? {
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return Err(Error::Medium {
                message: format!(
                    "process {} has waited {:.1} s for the other {} to begin the run; see what they do, and set a longer \
                     time limit if they only take that long",
                    place.process,
                    begun.elapsed().as_secs_f64(),
                    place.processes - 1
                ),
            });
        }
        thread::sleep(PACE);
    }
    Ok(())
}
