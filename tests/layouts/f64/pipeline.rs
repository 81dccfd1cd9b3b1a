//! Pipeline stages never change the mathematics: in f64, all errors are at most 1e-10.

use epl::config::PipelineStrategy::{self, PreferBackward, PreferBackwardOptimizer, PreferForward};

use crate::parity::{Case, assert_parity_in_f64 as assert_parity, dense, layout, moe};

/// `stages` stages, with each number of micro-batches.
fn every_number_of_micro_batches(case: &Case, stages: usize, chunks: usize, schedule: PipelineStrategy) {
    for micro_batches in [1, 2, 5, 8] {
        assert_parity(case, layout(1, 1, 1, micro_batches).stages(stages, chunks, schedule));
    }
}

macro_rules! schedules {
    ($($name:ident: $case:expr, $stages:literal stages x $chunks:literal, $schedule:expr;)*) => {$(
        #[test]
        fn $name() {
            epl_testing::in_f64(|| {
                every_number_of_micro_batches(&$case, $stages, $chunks, $schedule);
            });
        }
    )*};
}

// Over 1, 2, 5 and 8 micro-batches each. The embedding is tied to the head, over two or three stages.
schedules! {
    stages_2_prefer_forward:            moe(),          2 stages x 1, PreferForward;
    stages_2_prefer_backward:           moe(),          2 stages x 1, PreferBackward;
    stages_2_prefer_backward_optimizer: moe(),          2 stages x 1, PreferBackwardOptimizer;
    stages_2_interleaved:               moe(),          2 stages x 2, PreferBackward;
    stages_3_prefer_forward:            moe(),          3 stages x 1, PreferForward;
    stages_3_prefer_backward:           moe(),          3 stages x 1, PreferBackward;
    stages_3_prefer_backward_optimizer: moe(),          3 stages x 1, PreferBackwardOptimizer;
    stages_3_interleaved:               moe().deep(),   3 stages x 2, PreferBackward;
    stages_4_prefer_forward:            moe(),          4 stages x 1, PreferForward;
    stages_4_prefer_backward:           moe(),          4 stages x 1, PreferBackward;
    stages_4_prefer_backward_optimizer: moe(),          4 stages x 1, PreferBackwardOptimizer;
    stages_4_interleaved:               moe().deep(),   4 stages x 2, PreferBackward;
    stages_2_dense_untied:              dense(),        2 stages x 1, PreferBackward;
    stages_4_sgd:                       moe().sgd(),    4 stages x 1, PreferBackward;
}

macro_rules! beside {
    ($($name:ident: $case:expr, $data:literal x $tensor:literal / $expert:literal x $stages:literal stages, $micro_batches:literal micro_batches;)*) => {$(
        #[test]
        fn $name() {
            epl_testing::in_f64(|| {
                let layout = layout($data, $tensor, $expert, $micro_batches);
                assert_parity(&$case, layout.stages($stages, 1, PreferBackward));
            });
        }
    )*};
}

beside! {
    data_2:                         moe(),                 2 x 1 / 1 x 2 stages, 2 micro_batches;
    data_2_stages_3:                moe(),                 2 x 1 / 1 x 3 stages, 4 micro_batches;
    tensor_2:                       moe(),                 1 x 2 / 1 x 2 stages, 2 micro_batches;
    expert_2:                       moe(),                 2 x 1 / 2 x 2 stages, 2 micro_batches;
    expert_2_switch:                moe().switch(),        2 x 1 / 2 x 2 stages, 3 micro_batches;
    data_2_tensor_2:                moe(),                 2 x 2 / 1 x 2 stages, 2 micro_batches;
    data_2_tensor_2_expert_2:       moe(),                 2 x 2 / 2 x 2 stages, 2 micro_batches;
    dense_data_2_tensor_2:          dense(),               2 x 2 / 1 x 2 stages, 3 micro_batches;
    no_valid_token_on_a_replica:    moe().half_ignored(),  2 x 1 / 2 x 2 stages, 2 micro_batches;
    fewer_samples_than_replicas:    moe().samples(3),      4 x 1 / 2 x 2 stages, 1 micro_batches;
    fewer_samples_than_micro_batches: moe().samples(3),    2 x 1 / 1 x 2 stages, 4 micro_batches;
}
