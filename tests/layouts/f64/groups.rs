//! Parameter groups act on the same parameters under every layout: in f64, all errors are at most 1e-10.

use epl::config::PipelineStrategy::PreferBackward;
use epl::config::StateTier::{Device, File, Host};
use epl::config::ZeroLevel::{V0, V1, V2, V3};

use crate::parity::{dense, layout, moe, parity_in_f64, train};

parity_in_f64! {
    data_2:                      moe().grouped(),   layout(2, 1, 1, 1);
    accumulates:                 moe().grouped(),   layout(1, 1, 1, 4);
    updated_in_parts:            moe().grouped(),   layout(2, 1, 1, 1).apply_groups(5);
    tensor_2:                    moe().grouped(),   layout(1, 2, 1, 1);
    experts_2:                   moe().grouped(),   layout(2, 1, 2, 2);
    v0:                          moe().grouped(),   layout(2, 1, 1, 2).zero(V0);
    v1:                          moe().grouped(),   layout(3, 1, 1, 1).zero(V1);
    v2:                          dense().grouped(), layout(2, 1, 1, 4).zero(V2);
    v3:                          moe().grouped(),   layout(3, 1, 1, 4).zero(V3);
    v3_on_1:                     dense().grouped(), layout(1, 1, 1, 1).zero(V3);
    offload:                     moe().grouped(),   layout(2, 1, 1, 4).offload(Host);
    offload_files_v1:            moe().grouped(),   layout(2, 1, 1, 1).zero(V1).offload(File);
    offload_v3:                  moe().grouped(),   layout(2, 1, 1, 4).zero(V3).offload(Host);
    state_in_host:               moe().grouped(),   layout(2, 1, 1, 1).tiers(Device, Device, Host);
    stages_2:                    moe().grouped(),   layout(1, 1, 1, 2).stages(2, 1, PreferBackward);
    stages_2_v3_offload:         moe().grouped(),   layout(2, 1, 1, 2).stages(2, 1, PreferBackward).zero(V3).offload(Host);
}

// An optimizer that looks at whole tensors, which have owners.
parity_in_f64! {
    owners_v0:                   moe().adafactor().grouped(), layout(3, 1, 1, 1).zero(V0);
    owners_v3:                   moe().adafactor().grouped(), layout(2, 1, 1, 4).zero(V3);
    owners_offload:              moe().adafactor().grouped(), layout(2, 1, 1, 1).zero(V1).offload(Host);
}

#[test]
fn the_groups_of_these_tests_have_an_effect() {
    epl_testing::in_f64(|| {
        let (alike, grouped) = (train(&moe(), layout(1, 1, 1, 1)), train(&moe().grouped(), layout(1, 1, 1, 1)));
        let differ = |name: &&String| alike.parameters[*name] != grouped.parameters[*name];
        assert_eq!(grouped.parameters.keys().filter(differ).count(), grouped.parameters.len(), "all are others");
        let frozen = |name: &str| name.starts_with("encoder.blocks.0.") || name.contains(".cross_attention.norm.");
        for name in grouped.parameters.keys() {
            assert_eq!(grouped.gradients.contains_key(name), !frozen(name), "{name}");
            assert_eq!(grouped.state.keys().any(|key| key.starts_with(&format!("{name}."))), !frozen(name), "{name}");
        }
    });
}
