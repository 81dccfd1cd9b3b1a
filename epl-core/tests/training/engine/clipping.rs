//! The global norm is clipped, and only if that is asked for.

use burn::optim::SgdConfig;
use epl_core::testing::run;
use epl_core::{Engine, EngineSettings};

use crate::engine::chain::{Chain, micro_batches};

#[test]
fn clipping_brings_the_update_down() {
    let update = |clip_norm| {
        let all = run((1, 1, 1), |epl| {
            let settings = EngineSettings { clip_norm, ..Default::default() };
            let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), settings)?;
            let before = engine.parameters()?;
            let report = engine.step(micro_batches(&epl, 1), 1.0)?;
            let after = engine.parameters()?;
            let squares = before.iter().flat_map(|(name, data)| {
                let pairs: Vec<_> = data.iter::<f64>().zip(after[name].iter::<f64>()).collect();
                pairs.into_iter().map(|(a, b)| (a - b) * (a - b))
            });
            Ok((squares.sum::<f64>().sqrt(), report.grad_norm))
        });
        all[0]
    };
    let (free, norm) = update(None);
    assert!((free - norm).abs() < 1e-4 * norm, "SGD with rate 1 moves by the gradient: {free} {norm}");
    let (clipped, same_norm) = update(Some(norm / 4.0));
    assert_eq!(norm, same_norm, "the norm is reported before clipping");
    assert!((clipped - norm / 4.0).abs() < 1e-4 * norm, "{clipped} {norm}");
}
