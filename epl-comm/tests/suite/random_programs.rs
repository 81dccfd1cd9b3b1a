//! Random sequences of collectives over random groups, some started, against the model.

use epl_comm::local;
use proptest::prelude::*;

use crate::program::{MOST, programs};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn give_what_the_model_gives(program in programs(1..=MOST)) {
        let launcher = local::Launcher::new(program.ranks).eager_limit(program.eager_limit).check_order();
        let ended = launcher.run(|world| program.check(&world));
        prop_assert!(ended.is_ok(), "{ended:?}");
    }
}
