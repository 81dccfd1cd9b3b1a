//! Sharded state never changes the mathematics: in f64, all errors are at most 1e-10.

use epl::config::PipelineStrategy::{PreferBackward, PreferForward};
use epl::config::ZeroLevel::{V0, V1, V2, V3};

use crate::parity::{dense, layout, moe, parity_in_f64};

// `moe` is clipped and divides by neither 3 nor 4; `dense` is not clipped.
parity_in_f64! {
    v0_on_2:                        moe(),   layout(2, 1, 1, 1).zero(V0);
    v0_on_2_accumulates:            moe(),   layout(2, 1, 1, 4).zero(V0);
    v0_on_3:                        moe(),   layout(3, 1, 1, 1).zero(V0);
    v0_on_3_accumulates:            moe(),   layout(3, 1, 1, 4).zero(V0);
    v0_on_4:                        moe(),   layout(4, 1, 1, 1).zero(V0);
    v0_on_4_accumulates:            moe(),   layout(4, 1, 1, 4).zero(V0);
    v1_on_2:                        moe(),   layout(2, 1, 1, 1).zero(V1);
    v1_on_2_accumulates:            moe(),   layout(2, 1, 1, 4).zero(V1);
    v1_on_3:                        moe(),   layout(3, 1, 1, 1).zero(V1);
    v1_on_3_accumulates:            moe(),   layout(3, 1, 1, 4).zero(V1);
    v1_on_4:                        moe(),   layout(4, 1, 1, 1).zero(V1);
    v1_on_4_accumulates:            moe(),   layout(4, 1, 1, 4).zero(V1);
    v2_on_2:                        moe(),   layout(2, 1, 1, 1).zero(V2);
    v2_on_2_accumulates:            moe(),   layout(2, 1, 1, 4).zero(V2);
    v2_on_3:                        moe(),   layout(3, 1, 1, 1).zero(V2);
    v2_on_3_accumulates:            moe(),   layout(3, 1, 1, 4).zero(V2);
    v2_on_4:                        moe(),   layout(4, 1, 1, 1).zero(V2);
    v2_on_4_accumulates:            moe(),   layout(4, 1, 1, 4).zero(V2);
    v3_on_1:                        moe(),   layout(1, 1, 1, 4).zero(V3);
    v3_on_2:                        moe(),   layout(2, 1, 1, 1).zero(V3);
    v3_on_2_accumulates:            moe(),   layout(2, 1, 1, 4).zero(V3);
    v3_on_3:                        moe(),   layout(3, 1, 1, 1).zero(V3);
    v3_on_3_accumulates:            moe(),   layout(3, 1, 1, 4).zero(V3);
    v3_on_4:                        moe(),   layout(4, 1, 1, 1).zero(V3);
    v3_on_4_accumulates:            moe(),   layout(4, 1, 1, 4).zero(V3);
}

// Without clipping.
parity_in_f64! {
    v0_unclipped:                   dense(), layout(3, 1, 1, 1).zero(V0);
    v1_unclipped:                   dense(), layout(3, 1, 1, 4).zero(V1);
    v2_unclipped:                   dense(), layout(3, 1, 1, 4).zero(V2);
    v3_unclipped:                   dense(), layout(3, 1, 1, 4).zero(V3);
    v0_sgd:                         moe().sgd(), layout(3, 1, 1, 1).zero(V0);
    v3_sgd:                         moe().sgd(), layout(3, 1, 1, 4).zero(V3);
}

// With the rest: recomputation, tensor slices, experts, stages, their schedules and chunks.
parity_in_f64! {
    v0_recomputes:                  moe(),   layout(2, 1, 1, 4).zero(V0).recompute(&[]);
    v1_recomputes:                  moe(),   layout(2, 1, 1, 4).zero(V1).recompute(&[1, 3]);
    v2_recomputes:                  moe(),   layout(2, 1, 1, 4).zero(V2).recompute(&[1, 3]);
    v0_with_tensor:                 moe(),   layout(2, 2, 1, 1).zero(V0);
    v1_with_tensor:                 moe(),   layout(2, 2, 1, 4).zero(V1);
    v2_with_tensor:                 moe(),   layout(2, 2, 1, 4).zero(V2);
    v3_with_tensor:                 moe(),   layout(2, 2, 1, 4).zero(V3);
    v0_with_experts:                moe(),   layout(4, 1, 2, 1).zero(V0);
    v1_with_experts:                moe(),   layout(4, 1, 2, 4).zero(V1);
    v2_with_experts:                moe(),   layout(4, 1, 2, 4).zero(V2);
    v3_with_experts:                moe(),   layout(4, 1, 2, 4).zero(V3);
    v3_with_experts_on_all:         moe(),   layout(2, 1, 2, 1).zero(V3);
    v0_with_stages:                 moe(),   layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V0);
    v1_with_stages:                 moe(),   layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V1);
    v2_with_stages:                 moe(),   layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V2);
    v3_with_stages:                 moe(),   layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V3);
    v2_with_chunks:                 moe(),   layout(2, 1, 1, 4).stages(2, 2, PreferBackward).zero(V2);
    v3_with_chunks:                 moe(),   layout(2, 1, 1, 4).stages(2, 2, PreferBackward).zero(V3);
    v3_all_forwards_first:          moe(),   layout(2, 1, 1, 4).stages(2, 1, PreferForward).zero(V3);
    v3_with_all:                    moe(),   layout(4, 2, 2, 2).stages(2, 1, PreferBackward).zero(V3);
    no_valid_token_on_a_replica:    moe().half_ignored(), layout(2, 1, 1, 1).zero(V3);
    fewer_samples_than_replicas:    moe().samples(3), layout(4, 1, 2, 1).zero(V3);
}

// An optimizer that looks at whole tensors, which go to owners.
parity_in_f64! {
    adafactor:                      moe().adafactor(),   layout(3, 1, 1, 1);
    v0_adafactor:                   moe().adafactor(),   layout(3, 1, 1, 4).zero(V0);
    v1_adafactor:                   moe().adafactor(),   layout(3, 1, 1, 4).zero(V1);
    v2_adafactor:                   moe().adafactor(),   layout(3, 1, 1, 4).zero(V2);
    v3_adafactor:                   moe().adafactor(),   layout(3, 1, 1, 4).zero(V3);
    v3_adafactor_with_stages:       dense().adafactor(), layout(2, 1, 1, 2).stages(2, 1, PreferBackward).zero(V3);
}

// Updates in groups.
parity_in_f64! {
    updates_in_3_groups:            moe(),   layout(1, 1, 1, 1).apply_groups(3);
    updates_in_30_groups:           moe(),   layout(2, 1, 1, 1).apply_groups(30);
    shards_in_3_groups:             moe(),   layout(3, 1, 1, 1).zero(V0).apply_groups(3);
    shards_in_30_groups:            moe(),   layout(2, 1, 1, 4).zero(V2).apply_groups(30);
    parked_in_30_groups:            moe(),   layout(2, 1, 1, 1).zero(V3).apply_groups(30);
}
