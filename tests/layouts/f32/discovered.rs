//! Plain layers of Burn that were found to run in slices, in 16 bits.

use epl::config::HalfDtype::Bf16;
use epl::config::ZeroLevel::V3;
use epl::testing::error_together;

use crate::f64::discovered::train;
use crate::parity::{layout, rounding};

/// A residual is rounded once more in each slice. The first step alone: this small model learns so fast that its losses part soon.
#[test]
fn slices_in_16_bits() {
    let alone = train(layout(1, 1, 1, 1).half(Bf16));
    for layout in [layout(1, 2, 1, 1), layout(2, 2, 1, 2).zero(V3)] {
        let found = train(layout.half(Bf16));
        let loss = (found.reports[0].loss / alone.reports[0].loss - 1.0).abs();
        let gradients = error_together(&found.gradients, &alone.gradients);
        println!("{layout:?}: loss {loss:.1e}, gradients {gradients:.1e}");
        assert!(loss <= 2.0 * rounding(Bf16), "{layout:?}: loss off by {loss:.1e}");
        assert!(gradients <= 4.0 * rounding(Bf16), "{layout:?}: gradients off by {gradients:.1e}");
    }
}
