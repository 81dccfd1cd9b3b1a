//! Buckets start early and in one order.

use burn::optim::SgdConfig;
use epl_comm::{EventKind, Trace};
use epl_core::testing::config;
use epl_core::{Engine, EngineSettings};

use crate::engine::chain::{Chain, micro_batches};

/// What a rank said that it does at this moment, or from it on.
fn said(kind: &EventKind) -> Option<&str> {
    match kind {
        EventKind::Mark(what) | EventKind::Span(what) => Some(what),
        EventKind::Collective { .. } | EventKind::Counter { .. } => None,
    }
}

#[test]
fn buckets_start_while_backward_goes_on_and_in_one_order() {
    let trace = Trace::new();
    let mut config = config(2, 1, 1);
    config.communication.max_splits = 4;
    epl_core::launch_traced(&config, Some(trace.clone()), |epl| {
        let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?;
        engine.step(micro_batches(&epl, 1), 0.1).map(|_| ())
    })
    .unwrap();
    let events = trace.events();
    for rank in 0..2 {
        let begin = |what: &str| {
            let mine = events.iter().filter(|event| event.rank.0 == rank);
            let found = mine.clone().find(|event| said(&event.kind) == Some(what));
            found.unwrap_or_else(|| panic!("{what}: {:?}", mine.collect::<Vec<_>>())).begin
        };
        assert!(begin("start bucket 0") < begin("backward 0 segment 0"));
        assert!(begin("start bucket 0") < begin("start bucket 1"));
    }
}
