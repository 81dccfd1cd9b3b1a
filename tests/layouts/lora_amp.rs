//! Low-rank factors beside frozen parameters in mixed precision and with parameters in shards: equal to one rank, to the
//! rounding of 16 bits.

use crate::parity::{assert_close, dense, layout};
use epl::config::HalfDtype::{Bf16, F16};
use epl::config::StateTier::Host;
use epl::config::ZeroLevel::{V1, V3};

macro_rules! close {
    ($($name:ident: $layout:expr;)*) => {$(
        #[test]
        fn $name() {
            epl_testing::alone(|| assert_close(&dense().lora(), $layout));
        }
    )*};
}

close! {
    bf16_v3:            layout(2, 1, 1, 4).half(Bf16).zero(V3);
    bf16_v3_on_3:       layout(3, 1, 1, 1).half(Bf16).zero(V3);
    bf16_v3_offloaded:  layout(2, 1, 1, 4).half(Bf16).zero(V3).offload(Host);
    f16_v3:             layout(3, 1, 1, 1).half(F16).zero(V3);
    f16_v1:             layout(2, 1, 1, 4).half(F16).zero(V1);
}
