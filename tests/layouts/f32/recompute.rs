//! Recomputation changes nothing, to the bit: dropout and jitter draw the same numbers again, tokens go to the same
//! experts, and collectives are not repeated.

use std::collections::BTreeMap;

use epl::comm::{EventKind, Trace};
use epl::config::{CheckpointType, PipelineStrategy};
use epl::testing::config;
use epl::{Engine, EngineSettings, launch_traced};

use crate::parity::{Case, Layout, dense, layout, micro_batches, moe, train};

/// With and without recomputation of everything between what enters these segments.
fn assert_equal(case: &Case, layout: Layout, kept: &'static [usize]) {
    let (stored, recomputed) = (train(case, layout), train(case, layout.recompute(kept)));
    assert_eq!(stored.reports, recomputed.reports, "{layout:?}, {kept:?}");
    for (what, stored, recomputed) in [
        ("gradient", &stored.gradients, &recomputed.gradients),
        ("parameter", &stored.parameters, &recomputed.parameters),
        ("state", &stored.state, &recomputed.state),
    ] {
        assert!(stored.keys().eq(recomputed.keys()));
        let differ = stored.iter().find(|(name, data)| recomputed[*name] != **data);
        assert!(differ.is_none(), "{layout:?}, {kept:?}: {what} of {:?} differs", differ.map(|(name, _)| name));
    }
}

#[test]
fn on_one_rank() {
    for kept in [&[][..], &[1, 2, 3, 4], &[2], &[1, 3]] {
        assert_equal(&moe(), layout(1, 1, 1, 1), kept);
        assert_equal(&moe().switch().tight(), layout(1, 1, 1, 3), kept);
    }
    assert_equal(&dense(), layout(1, 1, 1, 2), &[2]);
}

#[test]
fn on_several_ranks() {
    for (data, tensor, expert) in [(2, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)] {
        assert_equal(&moe(), layout(data, tensor, expert, 2), &[2]);
        assert_equal(&moe(), layout(data, tensor, expert, 1), &[]);
    }
    assert_equal(&moe().samples(3), layout(2, 1, 2, 4), &[1, 3]);
}

#[test]
fn on_several_stages() {
    for stages in [2, 3, 4] {
        for schedule in [PipelineStrategy::PreferForward, PipelineStrategy::PreferBackward] {
            assert_equal(&moe(), layout(1, 1, 1, 5).stages(stages, 1, schedule), &[1, 2, 3, 4]);
        }
    }
    assert_equal(&moe().deep(), layout(1, 1, 1, 4).stages(2, 2, PipelineStrategy::PreferBackward), &[2, 4, 6]);
    assert_equal(&moe(), layout(2, 1, 2, 2).stages(2, 1, PipelineStrategy::PreferBackward), &[2]);
}

/// The collectives of a step over the tensor and the expert axis, by group and operation.
fn collectives(recompute: bool) -> BTreeMap<String, usize> {
    let case = moe();
    let mut config = config(2, 2, 2);
    if recompute {
        config.gradient_checkpoint.r#type = CheckpointType::Collection;
        config.gradient_checkpoint.kept = Some([1, 2, 3, 4].iter().map(usize::to_string).collect());
    }
    let trace = Trace::new();
    let step = launch_traced(&config, Some(trace.clone()), |epl| {
        let optimizer = burn::optim::SgdConfig::new();
        let mut engine =
            Engine::new(epl.build(|place| case.model.init(place))?, &optimizer, EngineSettings::default())?;
        engine.step(micro_batches(&epl, &case, 0, 2), 0.1).map(|_| ())
    });
    step.unwrap_or_else(|error| panic!("{error}"));
    let mut count = BTreeMap::new();
    for event in trace.events() {
        if let EventKind::Collective { group, operation, .. } = event.kind {
            *count.entry(format!("{group} {operation}")).or_insert(0) += 1;
        }
    }
    count
}

#[test]
fn collectives_are_not_repeated() {
    let stored = collectives(false);
    assert!(
        stored.keys().any(|name| name.starts_with("tensor")) && stored.keys().any(|name| name.starts_with("expert"))
    );
    assert_eq!(stored, collectives(true));
}
