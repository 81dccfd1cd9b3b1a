//! Random sequences of collectives over random groups, some started, against the model.

use proptest::prelude::*;

use crate::failing::run_ordered;
use crate::program::programs;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn give_what_the_model_gives(program in programs(1..=4)) {
        let ended = run_ordered(program.ranks, program.eager_limit, |world| program.check(&world));
        prop_assert!(ended.is_ok(), "{ended:?}");
    }
}
