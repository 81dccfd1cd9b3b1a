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

/// One of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Compute,
    Recompute,
    Layers,
    Stages,
    Gradients,
    Parameters,
    Update,
    Report,
}

impl Part {
    /// To which a segment belongs.
    pub fn of_run(kind: RunKind) -> Self {
        match kind {
            RunKind::Recompute => Self::Recompute,
            RunKind::Forward | RunKind::Backward => Self::Compute,
        }
    }

    /// To which a collective belongs that a rank waits for as it makes it, of a step with several stages or not.
    pub fn of_call(over: &Members, is_staged: bool) -> Self {
        match over {
            Members::Link { .. } | Members::Stages => Self::Stages,
            // Where all ranks meet, those that are done wait for the others.
            Members::World | Members::Axis(Axis::Pipeline) if is_staged => Self::Stages,
            Members::World | Members::Axis(Axis::Data | Axis::ExpertData | Axis::Pipeline) => Self::Report,
            Members::Axis(_) | Members::Other(_) => Self::Layers,
            Members::Pool(..) | Members::Tied(_) => Self::Gradients,
            Members::Gather(_) => Self::Parameters,
        }
    }

    /// To which it belongs to start a collective, and to wait for what was started.
    pub fn of_purpose(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Bucket(_) | Purpose::Rows(_) => Self::Gradients,
            Purpose::Unit(_) => Self::Parameters,
            Purpose::Parcel => Self::Stages,
        }
    }
}

impl StepTime {
    /// Its time of a part.
    pub(super) fn part(&mut self, part: Part) -> &mut f64 {
        match part {
            Part::Compute => &mut self.compute,
            Part::Recompute => &mut self.recompute,
            Part::Layers => &mut self.layers,
            Part::Stages => &mut self.stages,
            Part::Gradients => &mut self.gradients,
            Part::Parameters => &mut self.parameters,
            Part::Update => &mut self.update,
            Part::Report => &mut self.report,
        }
    }

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
                Op::Run { kind, .. } => Part::of_run(*kind),
                Op::Norm => Part::Report,
                Op::Update(_) => Part::Update,
                Op::Start(purpose, _) => Part::of_purpose(*purpose),
                Op::Await(start) => match &program.ops[*start as usize] {
                    Op::Start(purpose, _) => Part::of_purpose(*purpose),
                    _ => Part::Report,
                },
                Op::Call(call) => Part::of_call(&call.over, is_staged),
            };
            *time.part(part) += timed.end - timed.begin;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_all_ranks_meet_stages_wait_for_each_other() {
        let of = |over: Members| [false, true].map(|is_staged| Part::of_call(&over, is_staged));
        let (axis, always) = (Members::Axis, |part: Part| [part; 2]);
        assert_eq!([of(Members::World), of(axis(Axis::Pipeline))], [[Part::Report, Part::Stages]; 2]);
        assert_eq!([of(axis(Axis::Data)), of(axis(Axis::ExpertData))], [always(Part::Report); 2]);
        let layers = [axis(Axis::Tensor), axis(Axis::Expert), Members::Other("mine".to_string())];
        assert_eq!(layers.map(of), [always(Part::Layers); 3]);
        assert_eq!([Members::Stages, Members::Link { from: 0, to: 1 }].map(of), [always(Part::Stages); 2]);
        assert_eq!([Members::Pool(Axis::Data, 0), Members::Tied(vec![0, 1])].map(of), [always(Part::Gradients); 2]);
        assert_eq!(of(Members::Gather(Axis::Data)), always(Part::Parameters));
    }

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
