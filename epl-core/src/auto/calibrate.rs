//! What collectives take in this world.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use epl_comm::{ProcessGroup, ReduceOp};

use super::rates::{SegmentWork, seconds_of};
use crate::cost::{CallKind, Line, MeasuredCalls, Network};
use crate::error::Result;
use crate::launch::Epl;
use crate::offload::is_host;
use crate::probe::measure::median;

/// Bytes that each member gives; an element for each member at least.
const SIZES: [usize; 5] = [4, 1 << 14, 1 << 18, 1 << 21, 1 << 23];
/// How often collectives are timed; the first does not count.
const REPEATS: usize = 4;
/// So many are timed together.
const IN_A_ROW: usize = 4;
/// Rows of the work that ranks do before each call: about as much as a segment computes between two.
const WORK: usize = 32;

/// Measures collectives in groups of every size that divides the world: of neighbours, and of ranks as far apart as they can be, where
/// those lie on other hosts. Collective.
pub(super) fn calls(epl: &Epl) -> Result<Vec<MeasuredCalls>> {
    let (world, hosts) = (epl.world(), epl.cluster().hosts_of_ranks());
    let ranks = world.size();
    let device = epl.place().device().clone().inner();
    let mut calls: Vec<MeasuredCalls> = Vec::new();
    let empty = Network::measured(hosts, Vec::new());
    for size in (2..=ranks).filter(|size| ranks.is_multiple_of(*size)) {
        let groups = ranks / size;
        for is_near in [true, false] {
            let of = |member: usize| if is_near { member } else { member * groups };
            let shape = empty.shape(&(0..size).map(of).collect::<Vec<_>>());
            if calls.iter().any(|call| call.shape == shape) {
                continue;
            }
            let place = |rank: usize| match is_near {
                true => (rank / size, rank % size),
                false => (rank % groups, rank / groups),
            };
            let group = world.split_by(&format!("calibration of {size}"), place)?;
            for kind in CallKind::ALL {
                calls.push(MeasuredCalls { kind, shape, seconds: measured(kind, world, &group, &device)? });
            }
        }
    }
    Ok(calls)
}

/// Seconds over bytes, of the slowest group: by how much work with calls takes longer than work alone. Ranks come from work of their
/// own, as in a step: nobody waits awake, and they do not come at the same time. Each call waits for the last one, which is another
/// rank each time, and so some in a row are timed: of one alone half of the ranks would not see it. On a host no call takes less than
/// its quickest member was in it.
fn measured(kind: CallKind, world: &ProcessGroup, group: &ProcessGroup, device: &Device) -> Result<Line> {
    let work = SegmentWork::new(WORK, device);
    // A device does by itself what it is asked for, and waiting for it is no part of a call. Who gives and takes nothing need not wait.
    let is_seen = is_host(device)
        && match kind {
            CallKind::Send => group.rank() % 2 == 1,
            CallKind::Broadcast => group.rank() > 0,
            _ => true,
        };
    let mut points = Vec::new();
    for bytes in SIZES {
        // As many for each member; what is gathered is as large as the rest.
        let bytes = if kind == CallKind::AllGather { bytes / group.size() } else { bytes };
        let elements = (bytes / 4).max(1).next_multiple_of(group.size());
        let (mut times, mut least) = (Vec::new(), f64::INFINITY);
        for _ in 0..REPEATS {
            // In turn, so that what slows the machine down slows both. Nobody else's memory, as in a step.
            let given: Vec<_> = (0..IN_A_ROW).map(|_| Tensor::<1>::ones([elements], device)).collect();
            world.barrier()?;
            let alone = seconds_of(device, || (0..IN_A_ROW).try_for_each(|_| work.run(device)))?;
            world.barrier()?;
            let both = seconds_of(device, || {
                given.into_iter().try_for_each(|x| {
                    work.run(device)?;
                    let begin = Instant::now();
                    called(kind, group, x)?;
                    least = least.min(begin.elapsed().as_secs_f64());
                    Ok(())
                })
            })?;
            times.extend([alone, both]);
        }
        let least = if is_seen { least } else { f64::INFINITY };
        let least = world.all_reduce_values(&[least], ReduceOp::Min)?[0];
        let least = if least.is_finite() { least } else { 0.0 };
        // A call is over where it is over for the last rank.
        let slowest = world.all_reduce_values(&times, ReduceOp::Max)?;
        let longer = slowest[2..].chunks(2).map(|pair| (pair[1] - pair[0]) / IN_A_ROW as f64);
        points.push((4.0 * elements as f64, median(longer.collect()).max(least)));
    }
    Ok(Line::through(points))
}

fn called(kind: CallKind, group: &ProcessGroup, x: Tensor<1>) -> Result<()> {
    match kind {
        CallKind::AllReduce => drop(group.all_reduce(x, ReduceOp::Sum)?),
        CallKind::AllGather => drop(group.all_gather(x, 0)?),
        CallKind::Broadcast => drop(group.broadcast(x, 0)?),
        CallKind::ReduceScatter => drop(group.reduce_scatter(x, 0, ReduceOp::Sum)?),
        CallKind::AllToAll => drop(group.all_to_all(x, 0, 0)?),
        // From each to the next, in pairs.
        CallKind::Send => match group.rank() {
            rank if rank % 2 == 1 => drop(group.receive(x, rank - 1)?),
            rank if rank + 1 < group.size() => group.send(x, rank + 1)?,
            _ => {}
        },
    }
    Ok(())
}
