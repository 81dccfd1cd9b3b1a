//! What collectives take in this world.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use epl_comm::{ProcessGroup, ReduceOp};

use crate::cost::{CallKind, Line, MeasuredCalls, Network};
use crate::error::Result;
use crate::launch::Epl;
use crate::probe::measure::wait;

/// Bytes that each member gives.
const SIZES: [usize; 5] = [256, 1 << 14, 1 << 18, 1 << 21, 1 << 23];
/// How often a collective is timed; the first does not count.
const REPEATS: usize = 9;
/// The same for what ranks compute before it: by as much as that is off, all calls of a group are.
const WORK_REPEATS: usize = 3 * REPEATS;
/// Rows and columns of the product that ranks make before each call: about as much as a segment computes between two.
const WORK: usize = 384;

/// Measures collectives in groups of every size that divides the world: of neighbours, and of ranks as far apart as they can be, where
/// those lie on other hosts. Collective.
pub(super) fn calls(epl: &Epl) -> Result<Vec<MeasuredCalls>> {
    let (world, hosts) = (epl.world(), epl.cluster().hosts_of_ranks());
    let ranks = world.size();
    let device = &epl.place().device().clone().inner();
    let factor = &Tensor::<2>::ones([WORK, WORK], device);
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
            let timer = Timer { world, group: &group, device, factor };
            let work = timer.seconds((1, WORK_REPEATS), &mut |_| Ok(()))?;
            for kind in CallKind::ALL {
                calls.push(MeasuredCalls { kind, shape, seconds: timer.measured(kind, work)? });
            }
        }
    }
    Ok(calls)
}

/// Times what ranks call in a group while all others call it in theirs. Ranks come from work of their own, as in a step: nobody
/// waits awake, and they do not come at the same time, which is part of what a call takes.
struct Timer<'a> {
    world: &'a ProcessGroup,
    group: &'a ProcessGroup,
    device: &'a Device,
    /// Whose product with itself is the work.
    factor: &'a Tensor<2>,
}

impl Timer<'_> {
    /// Seconds of this rank's work and of a call with so many elements of its own, the mean of so many but the first.
    fn seconds(
        &self,
        (elements, repeats): (usize, usize),
        call: &mut dyn FnMut(Tensor<1>) -> Result<()>,
    ) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..repeats {
            // Nobody else's, as in a step.
            let x = Tensor::<1>::ones([elements], self.device);
            self.world.barrier()?;
            wait(self.device)?;
            let begin = Instant::now();
            let _ = self.factor.clone().matmul(self.factor.clone());
            call(x)?;
            wait(self.device)?;
            times.push(begin.elapsed().as_secs_f64());
        }
        Ok(times[1..].iter().sum::<f64>() / (repeats - 1) as f64)
    }

    /// Seconds of a call over bytes, of the slowest group, where the work takes so long by itself.
    fn measured(&self, kind: CallKind, work: f64) -> Result<Line> {
        let mut points = Vec::new();
        for bytes in SIZES {
            // As many for each member; what is gathered is as large as the rest.
            let bytes = if kind == CallKind::AllGather { bytes / self.group.size() } else { bytes };
            let elements = (bytes / 4).max(1).next_multiple_of(self.group.size());
            let both = self.seconds((elements, REPEATS), &mut |x| called(kind, self.group, x))?;
            let own = (both - work).max(0.0);
            points.push((4.0 * elements as f64, self.world.all_reduce_values(&[own], ReduceOp::Max)?[0]));
        }
        Ok(Line::through(points))
    }
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

#[cfg(test)]
mod tests {
    use epl_comm::{EventKind, Operation, Trace};

    use super::*;
    use crate::config::Config;
    use crate::launch_traced;

    #[test]
    fn the_work_between_calls_is_timed_once_for_a_group() {
        let trace = Trace::new();
        let config = Config::new().with("cluster.ranks", 2).unwrap();
        launch_traced(&config, Some(trace.clone()), |epl| calls(&epl).map(drop)).unwrap();
        let is_barrier = |kind: &EventKind| matches!(kind, EventKind::Collective { operation: Operation::Barrier, .. });
        let barriers = trace.events().iter().filter(|event| is_barrier(&event.kind)).count();
        // One before each, of both ranks: there is one group, of two.
        assert_eq!(barriers, 2 * (WORK_REPEATS + REPEATS * CallKind::ALL.len() * SIZES.len()));
    }
}
