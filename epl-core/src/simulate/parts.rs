//! Where the time of a step goes.

use std::fmt;

use super::call::Members;
use super::list::{Op, Purpose, RunKind};
use super::program::StepProgram;
use super::timeline::{StepTimeline, TimedOp};
use crate::topology::cluster::Axis;

/// The time of a rank's step, in parts that together are all of it. In seconds, if its costs are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Forwards and backwards of segments, without their collectives.
    pub compute: f64,
    /// Forwards that are run again.
    pub recompute: f64,
    /// Collectives inside segments, such as those of tensor and expert parallelism.
    pub layers: f64,
    /// Waiting for other stages.
    pub stages: f64,
    /// What is not hidden of reducing gradients, and what it takes to start that.
    pub gradients: f64,
    /// What is not hidden of gathering parameters.
    pub parameters: f64,
    /// The optimizer's update.
    pub update: f64,
    /// Sums of weights, losses and norms.
    pub report: f64,
}

impl StepTime {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// What comes so many times behind this one and another one, each part as far on as between the two.
    pub(crate) fn along(&self, other: &Self, times: f64) -> Self {
        let on = |from: f64, to: f64| from + times * (to - from);
        Self {
            compute: on(self.compute, other.compute),
            recompute: on(self.recompute, other.recompute),
            layers: on(self.layers, other.layers),
            stages: on(self.stages, other.stages),
            gradients: on(self.gradients, other.gradients),
            parameters: on(self.parameters, other.parameters),
            update: on(self.update, other.update),
            report: on(self.report, other.report),
        }
    }

    /// Its parts, by what they are called.
    pub fn parts(&self) -> [(&'static str, f64); 8] {
        let Self { compute, recompute, layers, stages, gradients, parameters, update, report } = *self;
        [
            ("compute", compute),
            ("recomputation", recompute),
            ("collectives of layers", layers),
            ("waiting for stages", stages),
            ("gradients", gradients),
            ("parameters", parameters),
            ("update", update),
            ("report", report),
        ]
    }
}

/// `412.0 ms: compute 301.0, waiting for stages 48.0, …`, without what takes none.
impl fmt::Display for StepTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.total() * 1e3)?;
        let parts = self.parts().into_iter().filter(|(_, seconds)| *seconds >= 5e-5);
        for (index, (what, seconds)) in parts.enumerate() {
            write!(f, "{} {what} {:.1}", if index == 0 { ":" } else { "," }, seconds * 1e3)?;
        }
        Ok(())
    }
}

impl StepTimeline {
    /// Where the time of a rank goes that ran this program.
    pub fn parts(&self, rank: usize, program: &StepProgram) -> StepTime {
        let is_link =
            |op: &Op| matches!(op, Op::Call(call) | Op::Start(_, call) if matches!(call.over, Members::Link { .. }));
        let is_staged = program.ops.iter().any(is_link);
        let mut time = StepTime::default();
        for (op, timed) in program.ops.iter().zip(self.ops(rank)) {
            let part = match op {
                Op::Run { kind: RunKind::Recompute, .. } => &mut time.recompute,
                Op::Run { .. } => &mut time.compute,
                Op::Update(_) => &mut time.update,
                Op::Start(purpose, _) => time.of_purpose(*purpose),
                Op::Await(start) => match &program.ops[*start as usize] {
                    Op::Start(purpose, _) => time.of_purpose(*purpose),
                    _ => &mut time.report,
                },
                Op::Call(call) => match &call.over {
                    Members::Link { .. } | Members::Stages => &mut time.stages,
                    // Where all ranks meet, those that are done wait for the others.
                    Members::World | Members::Axis(Axis::Pipeline) if is_staged => &mut time.stages,
                    Members::World | Members::Axis(Axis::Data | Axis::ExpertData | Axis::Pipeline) => &mut time.report,
                    Members::Axis(_) | Members::Other(_) => &mut time.layers,
                    Members::Pool(..) | Members::Tied(_) => &mut time.gradients,
                    Members::Gather(_) => &mut time.parameters,
                },
            };
            *part += timed.end - timed.begin;
        }
        time
    }

    /// The segments of a rank that ran this program, and its segments and updates.
    pub(crate) fn work(&self, rank: usize, program: &StepProgram) -> (Vec<TimedOp>, Vec<TimedOp>) {
        let of = |is_work: fn(&Op) -> bool| {
            program.ops.iter().zip(self.ops(rank)).filter(|(op, _)| is_work(op)).map(|(_, timed)| timed).collect()
        };
        (of(|op| matches!(op, Op::Run { .. })), of(|op| matches!(op, Op::Run { .. } | Op::Update(_))))
    }
}

/// The part of what a rank does in these operations that it does while another rank is in none of its own; both are in order.
pub(crate) fn alone(own: &[TimedOp], other: &[TimedOp]) -> f64 {
    let (mut from, mut together) = (0, 0.0);
    for own in own {
        from += other[from..].iter().take_while(|other| other.end <= own.begin).count();
        let beside = other[from..].iter().take_while(|other| other.begin < own.end);
        together += beside.map(|other| own.end.min(other.end) - own.begin.max(other.begin)).sum::<f64>();
    }
    let all: f64 = own.iter().map(|own| own.end - own.begin).sum();
    if all > 0.0 { 1.0 - together / all } else { 0.0 }
}

impl StepTime {
    fn of_purpose(&mut self, purpose: Purpose) -> &mut f64 {
        match purpose {
            Purpose::Bucket(_) | Purpose::Rows(_) => &mut self.gradients,
            Purpose::Unit(_) => &mut self.parameters,
            Purpose::Parcel => &mut self.stages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beside_that_of_another_rank_is_not_alone() {
        let ops = |times: &[(f64, f64)]| times.iter().map(|&(begin, end)| TimedOp { begin, end }).collect::<Vec<_>>();
        let own = ops(&[(0.0, 4.0), (6.0, 10.0)]);
        assert_eq!(alone(&own, &ops(&[(3.0, 7.0)])), 0.75);
        assert_eq!(alone(&own, &ops(&[(0.0, 1.0), (2.0, 3.0), (5.0, 8.0)])), 0.5);
        assert_eq!(alone(&own, &ops(&[(4.0, 6.0), (10.0, 11.0)])), 1.0);
        assert_eq!(alone(&[], &own), 0.0);
    }
}
