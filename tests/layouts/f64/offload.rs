//! State away from the device never changes the mathematics: in f64, all errors are at most 1e-10.

use epl::config::PipelineStrategy::PreferBackward;
use epl::config::StateTier::{Device, File, Host};
use epl::config::ZeroLevel::{V0, V1, V2, V3};

use crate::parity::{dense, layout, moe, parity_in_f64};

// Everything in host memory, or in files.
parity_in_f64! {
    host_on_1:                   moe(),   layout(1, 1, 1, 1).offload(Host);
    host_on_1_accumulates:       moe(),   layout(1, 1, 1, 4).offload(Host);
    host_on_2:                   moe(),   layout(2, 1, 1, 1).offload(Host);
    host_on_3_accumulates:       moe(),   layout(3, 1, 1, 4).offload(Host);
    host_v0:                     moe(),   layout(3, 1, 1, 4).zero(V0).offload(Host);
    host_v1:                     moe(),   layout(3, 1, 1, 4).zero(V1).offload(Host);
    host_v2:                     moe(),   layout(3, 1, 1, 4).zero(V2).offload(Host);
    host_v3:                     moe(),   layout(3, 1, 1, 4).zero(V3).offload(Host);
    host_v3_unclipped:           dense(), layout(2, 1, 1, 1).zero(V3).offload(Host);
    file_on_1:                   moe(),   layout(1, 1, 1, 4).offload(File);
    file_on_2:                   moe(),   layout(2, 1, 1, 1).offload(File);
    file_v0:                     moe(),   layout(3, 1, 1, 1).zero(V0).offload(File);
    file_v3:                     moe(),   layout(3, 1, 1, 4).zero(V3).offload(File);
}

// A tier for each kind: parameters, gradients, optimizer state.
parity_in_f64! {
    state_in_host:               moe(),   layout(2, 1, 1, 4).tiers(Device, Device, Host);
    state_in_host_v0:            moe(),   layout(3, 1, 1, 4).zero(V0).tiers(Device, Device, Host);
    state_in_host_v2:            moe(),   layout(3, 1, 1, 4).zero(V2).tiers(Device, Device, Host);
    state_in_host_v3:            moe(),   layout(3, 1, 1, 4).zero(V3).tiers(Device, Device, Host);
    state_in_files_v1:           moe(),   layout(2, 1, 1, 4).zero(V1).tiers(Device, Device, File);
    gradients_in_host:           moe(),   layout(2, 1, 1, 4).tiers(Device, Host, Device);
    gradients_in_files_v1:       moe(),   layout(3, 1, 1, 4).zero(V1).tiers(Device, File, Host);
    parameters_in_host:          moe(),   layout(2, 1, 1, 4).tiers(Host, Device, Device);
    parameters_in_files_v0:      moe(),   layout(3, 1, 1, 4).zero(V0).tiers(File, Device, Host);
    parameters_in_files_v3:      moe(),   layout(2, 1, 1, 4).zero(V3).tiers(File, Host, Device);
}

// With the rest.
parity_in_f64! {
    sgd:                         moe().sgd(),       layout(2, 1, 1, 4).offload(Host);
    adafactor:                   moe().adafactor(), layout(2, 1, 1, 4).offload(Host);
    adafactor_v0:                moe().adafactor(), layout(3, 1, 1, 1).zero(V0).offload(Host);
    adafactor_v3:                moe().adafactor(), layout(3, 1, 1, 4).zero(V3).offload(Host);
    groups:                      moe(),   layout(2, 1, 1, 1).offload(Host).apply_groups(30);
    more_groups_than_elements:   moe(),   layout(2, 1, 1, 1).offload(Host).apply_groups(i64::MAX as usize);
    groups_v3:                   moe(),   layout(2, 1, 1, 1).zero(V3).offload(Host).apply_groups(3);
    tensor_slices:               moe(),   layout(2, 2, 1, 4).offload(Host);
    experts:                     moe(),   layout(4, 1, 2, 1).zero(V2).offload(Host);
    stages:                      moe(),   layout(2, 1, 1, 4).stages(2, 1, PreferBackward).offload(Host);
    stages_v3:                   moe(),   layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V3).offload(Host);
    chunks_v3_in_files:          moe(),   layout(2, 1, 1, 4).stages(2, 2, PreferBackward).zero(V3).offload(File);
    all:                         moe(),   layout(4, 2, 2, 2).stages(2, 1, PreferBackward).zero(V3).offload(Host);
}
