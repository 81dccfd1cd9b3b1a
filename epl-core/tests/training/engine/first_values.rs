//! First values do not depend on the layout, nor on the rank that had some already.

use burn::module::Param;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use epl_core::plan::ParamOrigin;
use epl_core::testing::{config, run};
use epl_core::{Engine, EngineSettings, Place, launch};

use crate::engine::chain::{Chain, WIDTH};

#[test]
fn initial_values_do_not_depend_on_the_layout() {
    let drawn = |sizes| {
        run(sizes, |epl| {
            Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?.parameters()
        })
    };
    let expected = drawn((1, 1, 1)).remove(0);
    for sizes in [(2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 3, 1)] {
        for parameters in drawn(sizes) {
            assert_eq!(parameters, expected, "{sizes:?}");
        }
    }
}

/// A chain in which this rank has given values to the weight of the head.
fn with_head_of(place: &Place, value: f64) -> Chain {
    let mut chain = Chain::new(place);
    let device: &Device = place;
    chain.head.weight = Param::from_tensor(Tensor::full([WIDTH, 3], value, device));
    chain
}

#[test]
fn values_that_differ_between_ranks_become_those_of_the_first() {
    for sizes in [(3, 1, 1), (1, 3, 1), (2, 2, 1)] {
        let heads = run(sizes, |epl| {
            let rank = epl.context().world().rank();
            let built = epl.build(|place| with_head_of(place, 7.0 + rank as f64))?;
            assert_eq!(built.plan().record("head.weight").unwrap().origin, ParamOrigin::Broadcast);
            assert_eq!(built.plan().record("first.weight").unwrap().origin, ParamOrigin::Drawn);
            assert!(built.model().head.weight.is_require_grad(), "it is still trained");
            let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
            engine.check_replicas()?;
            Ok(engine.parameters()?["head.weight"].try_to_vec::<f32>().unwrap())
        });
        for head in heads {
            assert_eq!(head, [7.0; 3 * WIDTH], "{sizes:?}");
        }
    }
}

#[test]
fn values_on_some_ranks_only_are_refused() {
    let failed = launch(&config(2, 1, 1), |epl| {
        let second = epl.context().world().rank() == 1;
        epl.build(|place| if second { with_head_of(place, 7.0) } else { Chain::new(place) }).map(|_| ())
    });
    let text = failed.unwrap_err().to_string();
    assert!(text.contains("parameter `head.weight`: has values on some ranks only"), "{text}");
    assert!(text.contains("(rank 0 and rank 1 differ)") || text.contains("(rank 1 and rank 0 differ)"), "{text}");
}
