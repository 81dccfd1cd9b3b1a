//! All ranks issue the same collectives in the same order when an expert, a parameter and a batch are empty, and the
//! first bucket starts before the last segment's backward.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl::comm::{EventKind, Operation, Trace};
use epl::models::t5::{T5, T5Batch, T5Carry};
use epl::testing::config;
use epl::{Engine, EngineSettings, Loss, LossWeights, Model};

use crate::parity::{metric, micro_batches, moe};

/// A T5 beside a layer that no forward uses.
#[derive(Module, Debug)]
struct WithUnused {
    model: T5,
    unused: Linear,
}

impl Model for WithUnused {
    type Batch = T5Batch;
    type Carry = T5Carry;

    fn segments(&self) -> usize {
        self.model.segments()
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        path.strip_prefix("model.").map_or(vec![1], |path| self.model.segments_of(path))
    }

    fn forward_segment(&self, index: usize, carry: Option<T5Carry>, batch: &T5Batch) -> T5Carry {
        self.model.forward_segment(index, carry, batch)
    }

    fn weights(&self, batch: &T5Batch) -> LossWeights {
        self.model.weights(batch)
    }

    fn loss(&self, carry: T5Carry, batch: &T5Batch) -> Loss {
        self.model.loss(carry, batch)
    }
}

#[test]
fn ranks_agree_on_the_order_whatever_is_empty() {
    // Two samples for four replicas: two of them run stand-ins.
    let case = moe().many_experts();
    let trace = Trace::new();
    let reports = epl::launch_traced(&config(4, 1, 2), Some(trace.clone()), |epl| {
        let built = epl
            .build(|place| WithUnused { model: case.model.init(place), unused: LinearConfig::new(3, 3).init(place) })?;
        let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
        let before: Param<Tensor<2>> = engine.model().unused.weight.clone();
        let report = engine.step(micro_batches(&epl, &case, 0, 1), 0.1)?;
        assert_eq!(before.val().into_data(), engine.model().unused.weight.val().into_data());
        Ok(report)
    })
    .expect("the step succeeds");
    let outcome = crate::parity::Outcome::of(reports);
    assert!(metric(&outcome, "tokens_per_expert").iter().all(|layer| layer.contains(&0.0)));
    let of = |rank: usize| -> Vec<(String, Operation)> {
        let events = trace.events().into_iter().filter(|event| event.rank.0 == rank);
        let calls = events.filter_map(|event| match event.kind {
            EventKind::Collective { group, operation, sequence, .. } => Some((group, sequence, operation)),
            EventKind::Mark(_) | EventKind::Span(_) | EventKind::Counter { .. } => None,
        });
        // Groups run side by side; the order inside a group is what members must agree on.
        let mut calls: Vec<_> = calls.collect();
        calls.sort_by_key(|(group, sequence, _)| (group.clone(), *sequence));
        calls.into_iter().map(|(group, _, operation)| (group, operation)).collect()
    };
    assert!(of(0).len() > 12, "{:?}", of(0));
    for rank in 1..4 {
        assert_eq!(of(0), of(rank), "rank {rank}");
    }
    let events = trace.events();
    let begin = |rank: usize, what: EventKind| {
        let found = events.iter().find(|event| event.rank.0 == rank && event.kind == what);
        found.unwrap_or_else(|| panic!("{what:?}")).begin
    };
    for rank in 0..4 {
        let start = begin(rank, EventKind::Mark("start bucket 0".into()));
        assert!(start < begin(rank, EventKind::Span("backward 0 segment 0".into())));
    }
}
