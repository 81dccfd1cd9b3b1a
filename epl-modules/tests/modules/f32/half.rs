//! Layers in half precision compute in f32 inside.

use burn::tensor::{DType, Int, Tensor};
use epl_comm::Split;
use epl_core::testing::{self, relative_error};
use epl_core::{Epl, Pass};
use epl_modules::*;

use crate::layers::run::host;
use epl_testing::tensor;

/// What bf16 rounds away: 8 bits.
const LIMIT: f64 = 2e-2;

fn on_one_rank(f: impl Fn(&Epl) + Sync) {
    testing::run((1, 1, 1), |epl| {
        epl.context().begin(Pass { step: 0, training: true, samples: [3, 4].into(), empty: false });
        f(&epl);
        Ok(())
    });
}

/// Compares output and gradient of the same layer in bf16 and in the default type.
#[track_caller]
fn check<const D: usize>(epl: &Epl, what: &str, shape: [usize; 3], forward: impl Fn(Tensor<3>) -> Tensor<D>) {
    let x = tensor::<3>(1, shape, epl.place().device());
    let run = |dtype: DType| {
        let pass = Pass { step: 0, training: true, samples: [3, 4].into(), empty: false };
        epl.context().begin(pass);
        let x = x.clone().cast(dtype).detach().require_grad();
        let y = forward(x.clone());
        let probe = tensor(2, y.dims(), epl.place().device()).cast(y.dtype());
        let gradient = x.grad(&(y.clone() * probe).sum().backward()).expect("x is tracked");
        assert_eq!(gradient.dtype(), dtype, "{what}");
        (host(y.inner()), host(gradient))
    };
    let (half, full) = (run(DType::BF16), run(x.dtype()));
    for error in [relative_error(&half.0, &full.0), relative_error(&half.1, &full.1)] {
        assert!(error < LIMIT, "{what} is off by {error:e}");
    }
}

#[test]
fn layers_accept_half_precision() {
    on_one_rank(|epl| {
        let shape = [2, 5, 24];
        let (rms, layer) = (RmsNormConfig::new(24).init(epl.place()), LayerNormConfig::new(24).init(epl.place()));
        check(epl, "rms norm", shape, |x| rms.forward(x));
        check(epl, "layer norm", shape, |x| layer.forward(x));
        let batch = SyncBatchNormConfig::new(5).init(epl.place());
        check(epl, "batch norm", shape, |x| batch.forward(x));
        let dropout = DropoutConfig::new(0.5).init(epl.place());
        check(epl, "dropout", shape, |x| dropout.forward(x));
        check(epl, "gelu", shape, |x| Activation::GeluNew.forward(x));
        let loss = SplitCrossEntropyConfig::new().with_label_smoothing(0.1).init(epl.context());
        let targets = Tensor::<1, Int>::from_data([1, 5, 23, 0, -100, 3, 9, 9, 7, 2], epl.place().device());
        check(epl, "loss", shape, |x| {
            let logits = Split::from_local(x.reshape([10, 24]), 1, 24, epl.context().tensor());
            loss.forward(logits, targets.clone())
        });
    });
}
