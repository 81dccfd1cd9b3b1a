//! A layer with experts, forward and backward: each expert on the rows that come, beside experts with room for all rows, whose
//! empty places are filled with zeros (capacity at infinity).
//!
//! ```text
//! cargo bench --bench experts -- [PAIRS]
//! ```

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Distribution, Tensor};
use epl::modules::moe::{Capacity, Gate};
use epl::modules::{Moe, MoeConfig, MoeOutput, TokenMask};
use epl::testing::config;
use epl::{Epl, Loss, LossWeights, Model, Pass, launch};
use epl_benches::pairs::alternate;

const ROWS: usize = 8;
const LENGTH: usize = 128;
const WIDTH: usize = 256;

/// A model of this layer alone.
#[derive(Module, Debug)]
struct Net {
    moe: Moe,
}

impl Model for Net {
    type Batch = ();
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, (): &()) -> LossWeights {
        LossWeights::new()
    }

    fn forward_segment(&self, _: usize, _: Option<()>, (): &()) {}

    fn loss(&self, (): (), (): &()) -> Loss {
        Loss::new()
    }
}

/// Forward and backward.
fn run(moe: &Moe, device: &Device, forward: impl Fn(&Moe, Tensor<3>) -> MoeOutput) {
    let x = Tensor::<3>::random([ROWS, LENGTH, WIDTH], Distribution::Normal(0.0, 1.0), device).require_grad();
    let output = forward(moe, x.clone());
    let gradients = (output.hidden.sum() + output.auxiliary.sum()).backward();
    drop(x.grad(&gradients).map(Tensor::into_data));
}

fn measure(epl: &Epl, experts: usize, pairs: usize) -> epl::Result<()> {
    let mut config = MoeConfig::new(WIDTH, 2 * WIDTH, experts).with_capacity(Capacity::Unlimited);
    config = config.with_gate(Gate::TopK { experts: 2, renormalise: true }).with_gated(true);
    let built = epl.build(|place| Net { moe: config.init(&place.child("moe")) })?;
    let (model, context, device) = (built.into_inner(), epl.context().clone(), epl.place().device().clone());
    let pass = || {
        let samples = (0..ROWS as u64).collect::<Vec<u64>>();
        context.begin(Pass { step: 0, training: true, samples: Arc::from(samples), empty: false });
    };
    let mask = TokenMask::all(ROWS, LENGTH);
    let dropless = || {
        pass();
        run(&model.moe, &device, |moe, x| moe.forward_masked(x, &mask));
    };
    let roomy = || {
        pass();
        run(&model.moe, &device, |moe, x| {
            let routed = moe.router.forward(x.clone());
            let decision = moe.decide_on_device(x.dims(), &routed, &mask);
            moe.forward_routed(x, &routed, &decision)
        });
    };
    alternate(pairs, dropless, roomy).print(&format!("{experts} experts, rows that come ÷ room for all"));
    Ok(())
}

fn main() {
    let pairs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(30);
    for experts in [8, 64] {
        let measured = launch(&config(1, 1, 1), |epl| measure(&epl, experts, pairs));
        measured.unwrap_or_else(|error| panic!("{error}"));
    }
}
