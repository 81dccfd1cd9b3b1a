//! Low-rank factors beside frozen parameters, under every level of ZeRO: in f64, all errors are at most 1e-10.
//!
//! A binary of its own, since the element type of a device is set once for a process, and since Burn draws the factors from
//! the generator that all tests of a process share.

mod parity;

use std::sync::Once;

use burn::tensor::{Device, FloatDType};
use epl::config::PipelineStrategy::PreferBackward;
use epl::config::ZeroLevel::{V0, V1, V2, V3};
use parity::{Layout, dense, layout};

const BOUND: f64 = 1e-10;

fn assert_parity(layout: Layout) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Device::default().configure(FloatDType::F64).expect("no tensor was made before"));
    parity::assert_parity(&dense().lora(), layout, BOUND);
}

macro_rules! parity {
    ($($name:ident: $layout:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_parity($layout);
        }
    )*};
}

parity! {
    data:           layout(2, 1, 1, 1);
    v0:             layout(3, 1, 1, 1).zero(V0);
    v1:             layout(2, 1, 1, 4).zero(V1);
    v2:             layout(2, 1, 1, 4).zero(V2);
    v3:             layout(2, 1, 1, 4).zero(V3);
    v3_on_3:        layout(3, 1, 1, 1).zero(V3);
    v3_with_stages: layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V3);
}
