//! Buckets start early and in one order.

use burn::optim::SgdConfig;
use epl_comm::{EventKind, Trace};
use epl_core::testing::config;
use epl_core::{Engine, EngineSettings};

use crate::chain::{Chain, micro_batches};

fn mark(kind: &EventKind) -> Option<String> {
    match kind {
        EventKind::Mark(mark) => Some(mark.clone()),
        _ => None,
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
        let mine: Vec<String> =
            events.iter().filter(|event| event.rank.0 == rank).filter_map(|event| mark(&event.kind)).collect();
        let at = |what: &str| mine.iter().position(|mark| mark == what).unwrap_or_else(|| panic!("{what}: {mine:?}"));
        assert!(at("start bucket 0") < at("backward 0 segment 0"), "{mine:?}");
        assert!(at("start bucket 0") < at("start bucket 1"), "{mine:?}");
    }
}
