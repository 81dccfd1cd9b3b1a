//! The loss on other data, and the user's own measures.

use std::time::Instant;

use super::observer::Evaluation;
use crate::cluster::Axis;
use crate::data::{EvaluationLoader, Share, ValidData};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::segment::Segmented;

/// Named values, such as `("bleu", 31.4)`.
pub(super) type Values = Vec<(String, f64)>;

/// One evaluation: a collective that every rank runs.
pub(super) type Evaluator<'a, M> = Box<dyn FnMut(&Engine<M>) -> Result<Values> + 'a>;

/// Runs all evaluators. Collective.
pub(super) fn run<M: Segmented>(evaluators: &mut [Evaluator<'_, M>], engine: &Engine<M>) -> Result<Evaluation> {
    let start = Instant::now();
    let mut values = Values::new();
    for evaluate in evaluators {
        for (name, value) in evaluate(engine)? {
            if values.iter().any(|(known, _)| *known == name) {
                return Err(Error::invalid(format!(
                    "two evaluations returned a value called `{name}`; give one of them another name"
                )));
            }
            values.push((name, value));
        }
    }
    Ok(Evaluation { step: engine.steps(), values, time: start.elapsed() })
}

/// The evaluator that measures `valid_loss`.
pub(super) fn loss_on<'a, M, I>(data: ValidData<I, M::Batch>) -> Evaluator<'a, M>
where
    M: Segmented,
    M::Batch: 'static,
    I: 'static,
{
    Box::new(move |engine| {
        let (replica, replicas) = replica(engine);
        let share = Share { replica, replicas, micro_batches: 1 };
        // As the model: evaluation has no graph.
        let device = engine.device().clone().without_autodiff();
        let report = engine.evaluate(EvaluationLoader::start(&data, share, &device)?)?;
        Ok(vec![("valid_loss".to_string(), report.loss)])
    })
}

/// Which replica this rank is part of, and how many there are.
pub(super) fn replica<M: Segmented>(engine: &Engine<M>) -> (usize, usize) {
    let data = engine.context().axis(Axis::Data);
    (data.rank(), data.size())
}
