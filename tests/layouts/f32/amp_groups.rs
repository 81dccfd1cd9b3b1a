//! Parameter groups in mixed precision: what they say is done to the parameters that are kept in f32.

use std::collections::BTreeMap;

use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::tensor::{Tensor, TensorData};
use epl::config::HalfDtype::{Bf16, F16};
use epl::config::StateTier::Host;
use epl::config::ZeroLevel::{V1, V3};
use epl::{Chain, Engine, MicroBatch, Place, Result};

use crate::parity::{Layout, assert_close, dense, layout, moe, rounding};

macro_rules! close {
    ($($name:ident: $case:expr, $layout:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_close(&$case, $layout);
        }
    )*};
}

close! {
    bf16_on_2:      moe().grouped(),    layout(2, 1, 1, 1).half(Bf16);
    f16_v1:         moe().grouped(),    layout(3, 1, 1, 4).half(F16).zero(V1);
    bf16_v3:        moe().grouped(),    layout(2, 1, 1, 4).half(Bf16).zero(V3);
    f16_offloaded:  dense().grouped(),  layout(2, 1, 1, 4).half(F16).offload(Host);
}

type Rows = (Tensor<2>, Tensor<2>);

fn net(at: &Place) -> Chain<[Linear; 4], Rows, Tensor<2>> {
    Chain::of([(); 4].map(|()| LinearConfig::new(6, 6).init(at)))
        .first(&["0", "1"], |net: &[Linear; 4], (x, _): &Rows| net[1].forward(net[0].forward(x.clone())))
        .then(&["2", "3"], |net, x, _| net[3].forward(net[2].forward(x)))
        .mean_loss(|_, y, (_, target)| (y - target.clone()).powi_scalar(2).mean())
}

/// So small a rate that in 16 bits no weight would move.
const RATE: f64 = 1e-4;

/// Layer 0 is frozen, 1 has a quarter of the rate, 2 a decay of its own, and the bias of 3 a rate of zero.
fn grouped(layout: Layout) -> epl::Config {
    let options = [
        ("optimizer.frozen", vec!["0"]),
        ("optimizer.rate_factor", vec!["1=0.25", "3.bias=0"]),
        ("optimizer.weight_decay", vec!["2=0.5"]),
    ];
    options.into_iter().fold(layout.config(), |config, (key, value)| config.with(key, value).expect("an option"))
}

type Values = BTreeMap<String, TensorData>;

/// Parameters before and after a step, and its gradients.
fn step(config: &epl::Config) -> Result<[Values; 3]> {
    let ranks = epl::launch(config, |epl| {
        let optimizer = SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.125)));
        let mut engine = Engine::build(&epl, net, &optimizer)?;
        let rank = epl.context().data().rank() as u64;
        let x = Tensor::<1, burn::tensor::Int>::arange(0..24, epl.place().device()).float().sin().reshape([4, 6]);
        let rows = || {
            vec![MicroBatch::new((x.clone() + rank as f64, x.clone().cos()), [0, 1, 2, 3].map(|row| rank * 4 + row))]
        };
        let (before, (_, gradients)) = (engine.parameters()?, engine.gradients(rows())?);
        engine.step(rows(), RATE)?;
        Ok([before, engine.parameters()?, gradients])
    })?;
    Ok(ranks.into_iter().next().expect("there is a first rank"))
}

fn values(data: &TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

#[test]
fn groups_act_on_what_is_kept_in_f32() {
    let layouts =
        [layout(1, 1, 1, 1), layout(2, 1, 1, 1), layout(2, 1, 1, 1).zero(V3), layout(1, 1, 1, 1).offload(Host)];
    for (dtype, layout) in [Bf16, F16].into_iter().flat_map(|dtype| layouts.map(|layout| (dtype, layout))) {
        let what = format!("{dtype}, {layout:?}");
        let [before, after, gradients] =
            step(&grouped(layout.half(dtype))).unwrap_or_else(|error| panic!("{what}: {error}"));
        let [.., full] = step(&grouped(layout)).unwrap_or_else(|error| panic!("{layout:?}: {error}"));
        assert!(gradients.keys().eq(full.keys()), "{what}");
        for (name, before) in &before {
            let (factor, decay) = match (&name[..1], name.as_str()) {
                (_, "3.bias") => (0.0, 0.125),
                ("1", _) => (0.25, 0.125),
                ("2", _) => (1.0, 0.5),
                _ => (1.0, 0.125),
            };
            if name.starts_with('0') {
                assert_eq!(&after[name], before, "{what}: `{name}` is frozen");
                assert!(!gradients.contains_key(name), "{what}: `{name}` is frozen");
                continue;
            }
            if factor == 0.0 {
                assert_eq!(&after[name], before, "{what}: `{name}` has a rate of 0");
                continue;
            }
            let largest = values(&full[name]).iter().fold(0.0_f64, |largest, g| largest.max(g.abs()));
            for (g, full) in values(&gradients[name]).iter().zip(values(&full[name])) {
                assert!(
                    (g - full).abs() <= 16.0 * rounding(dtype) * largest,
                    "{what}: `{name}` {g}, and {full} in f32"
                );
            }
            let all = values(before).into_iter().zip(values(&after[name])).zip(values(&gradients[name]));
            for ((before, after), gradient) in all {
                let expected = before - factor * RATE * (gradient + decay * before);
                // One rounding of f32.
                let error = (after - expected).abs();
                assert!(error <= 1e-7 * before.abs().max(1e-2), "{what}: `{name}` {before} to {after}, not {expected}");
            }
        }
    }
}
