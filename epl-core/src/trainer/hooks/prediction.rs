//! Holds a predicted step against those of the run, part by part.

use std::ops::Range;

use epl_comm::ReduceOp;

use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::search::Choice;
use crate::simulate::StepTime;
use crate::topology::cluster::Axis;
use crate::trainer::hook::Hook;
use crate::trainer::record::StepRecord;
use crate::trainer::run::Run;

/// Steps that do not count: caches, pools and helper threads are made in them.
const WARM_UP: u64 = 10;
/// Steps that do.
const COUNTED: usize = 10;
/// Those, from the first of the run.
const STEPS: Range<u64> = WARM_UP..WARM_UP + COUNTED as u64;
/// A prediction that is further off is told, as a part of it.
const FAR: f64 = 0.1;
/// How many parts a step has.
const PARTS: usize = 8;

/// Warns, once, where steps of a layout take something else than predicted: where the step is 10 % off, or one of its parts by 10
/// % of the step, such as what is computed or what stages wait for ([`StepTime`]). Ten steps behind the first ten are measured,
/// without waiting for data, on the rank that was [predicted](Choice::rank); on a device that has memory of its own only whole
/// steps.
///
/// To be given to the trainers of all ranks: what one has measured all are told.
#[derive(Clone, Debug)]
pub struct CheckPrediction {
    predicted: Predicted,
    /// The rank that is measured.
    rank: usize,
    /// The sizes of its mesh.
    sizes: [usize; 4],
    took: Vec<Took>,
}

/// A step as predicted.
#[derive(Clone, Copy, Debug)]
struct Predicted {
    seconds: f64,
    time: StepTime,
}

/// What a step took; its parts where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Took {
    seconds: f64,
    parts: Option<[f64; PARTS]>,
}

impl CheckPrediction {
    /// Of the layout that the run has.
    pub fn new(choice: &Choice) -> Self {
        let predicted = Predicted { seconds: choice.seconds(), time: *choice.time() };
        Self { predicted, rank: choice.rank(), sizes: choice.sizes(), took: Vec::new() }
    }
}

impl Took {
    fn new(record: &StepRecord, time: Option<&StepTime>) -> Self {
        let seconds = (record.time - record.data_wait.min(record.time)).as_secs_f64();
        Self { seconds, parts: time.map(|time| time.parts().map(|(_, seconds)| seconds)) }
    }

    /// The median of each number of some steps; of parts, where they are known of all.
    fn median(all: &[Self]) -> Self {
        let of = |number: &dyn Fn(&Self) -> f64| {
            let mut sorted: Vec<f64> = all.iter().map(number).collect();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied().unwrap_or_default()
        };
        let is_known = all.iter().all(|step| step.parts.is_some());
        let part = |part: usize| of(&|step| step.parts.map_or(0.0, |parts| parts[part]));
        Self { seconds: of(&|step| step.seconds), parts: is_known.then(|| std::array::from_fn(part)) }
    }

    /// What the one rank that measures says, on all. Collective.
    fn share<M: Model>(own: Option<Self>, run: &Run<M>) -> Result<Self> {
        let world = run.context().world();
        let Self { seconds, parts } = own.unwrap_or_default();
        let mut values = vec![seconds, f64::from(u8::from(parts.is_some()))];
        values.extend(parts.unwrap_or_default());
        let values = if world.size() > 1 { world.all_reduce_values(&values, ReduceOp::Sum)? } else { values };
        let parts = (values[1] > 0.0).then(|| std::array::from_fn(|part| values[2 + part]));
        Ok(Self { seconds: values[0], parts })
    }
}

impl Predicted {
    /// What is to be told of steps that took so long on a rank, if anything is: the parts that are off the most first.
    fn refuted(&self, took: &Took, rank: usize) -> Option<String> {
        let off = took.seconds / self.seconds - 1.0;
        let beside = |parts: [f64; PARTS]| self.time.parts().into_iter().zip(parts);
        let parts = took.parts.into_iter().flat_map(beside).map(|((what, predicted), took)| (what, predicted, took));
        let is_far = |(_, predicted, took): &(&str, f64, f64)| (took - predicted).abs() > FAR * self.seconds;
        let mut far: Vec<(&str, f64, f64)> = parts.filter(is_far).collect();
        if off.abs() <= FAR && far.is_empty() {
            return None;
        }
        let by = |(_, predicted, took): &(&str, f64, f64)| (took - predicted).abs();
        far.sort_by(|one, other| by(other).total_cmp(&by(one)));
        let far = far.into_iter().enumerate().map(|(index, (what, predicted, took))| {
            let (took, predicted) = (took * 1e3, predicted * 1e3);
            match index {
                0 => format!("; of it, on rank {rank}, {what} {took:.1} ms, and {predicted:.1} ms were predicted"),
                _ => format!(", {what} {took:.1} ms for {predicted:.1}"),
            }
        });
        Some(format!(
            "a step takes {:.1} ms (the median of {COUNTED}), and {:.1} ms were predicted, {:+.0} %{}: what was measured may be \
             out of date, if auto.calibration names a file; auto.measure = 3 runs the best layouts before it chooses",
            took.seconds * 1e3,
            self.seconds * 1e3,
            off * 100.0,
            far.collect::<String>()
        ))
    }
}

/// How many steps the run has made since it began.
fn made<M: Model>(run: &Run<M>) -> u64 {
    run.step() - run.begun_at()
}

impl<M: Model> Hook<M> for CheckPrediction {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        let axes = [Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Expert];
        let own = axes.map(|axis| run.context().mesh().size(axis));
        match self.sizes == own {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "the prediction is of {:?} ranks along {:?}, and this run has {own:?}; give `CheckPrediction` the layout that this run has",
                self.sizes,
                axes.map(Axis::name)
            ))),
        }
    }

    fn before_step(&mut self, run: &mut Run<M>) -> Result<()> {
        if STEPS.contains(&made(run)) && run.context().world().rank() == self.rank {
            run.engine_mut().measure_step();
        }
        Ok(())
    }

    fn after_step(&mut self, run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        // The numbers are those that `before_step` saw.
        let Some(number) = made(run).checked_sub(1).filter(|number| STEPS.contains(number)) else { return Ok(()) };
        let is_measured = run.context().world().rank() == self.rank;
        if is_measured {
            self.took.push(Took::new(record, run.engine().step_time()));
        }
        if number + 1 == STEPS.end {
            let took = Took::share(is_measured.then(|| Took::median(&self.took)), run)?;
            let told = self.predicted.refuted(&took, self.rank);
            run.forgive(told.map_or(Ok(()), |told| Err(Error::invalid(told))));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREDICTED: StepTime = StepTime {
        compute: 0.030,
        recompute: 0.0,
        layers: 0.0,
        stages: 0.010,
        gradients: 0.005,
        parameters: 0.0,
        update: 0.004,
        report: 0.001,
    };

    fn told(seconds: f64, time: Option<StepTime>) -> Option<String> {
        let predicted = Predicted { seconds: 0.05, time: PREDICTED };
        predicted.refuted(&Took { seconds, parts: time.map(|time| time.parts().map(|(_, seconds)| seconds)) }, 3)
    }

    #[test]
    fn a_step_that_is_far_off_is_told() {
        assert_eq!([told(0.054, None), told(0.046, Some(PREDICTED))], [None, None]);
        let text = told(0.07, None).unwrap();
        assert!(
            text.starts_with("a step takes 70.0 ms (the median of 10), and 50.0 ms were predicted, +40 %: "),
            "{text}"
        );
        assert!(told(0.025, None).unwrap().contains("-50 %: what"));
        // Where no part of it alone is off by much.
        assert!(!told(0.07, Some(PREDICTED)).unwrap().contains("rank"));
    }

    #[test]
    fn parts_that_are_far_off_are_told_from_the_farthest_on() {
        // Three times what was predicted, and of no consequence for the step.
        assert_eq!(told(0.052, Some(StepTime { report: 0.003, ..PREDICTED })), None);
        let time = StepTime { compute: 0.0241, stages: 0.0201, update: 0.0, ..PREDICTED };
        let text = told(0.0502, Some(time)).unwrap();
        let parts = "0 %; of it, on rank 3, waiting for stages 20.1 ms, and 10.0 ms were predicted, compute 24.1 ms for 30.0: what";
        assert!(text.contains(parts), "{text}");
    }

    #[test]
    fn a_step_that_is_unlike_the_others_counts_for_nothing() {
        let step = |seconds: f64, update: f64| Took {
            seconds,
            parts: Some(StepTime { update, ..PREDICTED }.parts().map(|(_, seconds)| seconds)),
        };
        let mut all = vec![step(9.0, 0.1), step(1.0, 0.3), step(2.0, 0.2)];
        assert_eq!(Took::median(&all), step(2.0, 0.2));
        all.push(Took { seconds: 2.0, parts: None });
        assert_eq!(Took::median(&all), Took { seconds: 2.0, parts: None });
    }
}
