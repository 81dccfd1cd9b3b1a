//! Low-rank factors beside frozen parameters, under every level of ZeRO: in f64, all errors are at most 1e-10.

use crate::checkpoints;
use crate::parity::{dense, layout, parity_in_f64};
use epl::config::PipelineStrategy::PreferBackward;
use epl::config::StateTier::Host;
use epl::config::ZeroLevel::{V0, V1, V2, V3};

parity_in_f64! {
    data:           dense().lora(), layout(2, 1, 1, 1);
    v0:             dense().lora(), layout(3, 1, 1, 1).zero(V0);
    v1:             dense().lora(), layout(2, 1, 1, 4).zero(V1);
    v2:             dense().lora(), layout(2, 1, 1, 4).zero(V2);
    v3:             dense().lora(), layout(2, 1, 1, 4).zero(V3);
    v3_on_3:        dense().lora(), layout(3, 1, 1, 1).zero(V3);
    v3_with_stages: dense().lora(), layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V3);
}

/// What one layout saves, others load.
#[test]
fn saved_and_loaded_under_other_layouts() {
    epl_testing::in_f64(|| {
        let (case, two) = (dense().lora(), layout(2, 1, 1, 4));
        let stages = two.stages(2, 1, PreferBackward).zero(V3);
        let layouts = [layout(1, 1, 1, 1), two, layout(3, 1, 1, 1).zero(V0), two.zero(V3), stages, two.offload(Host)];
        let runs = checkpoints::t5(&case, &layouts);
        assert_eq!(checkpoints::matrix(&runs, &checkpoints::adam_w(), &[1, 2]), 18);
    });
}
