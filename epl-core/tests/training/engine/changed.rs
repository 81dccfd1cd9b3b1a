//! A model that is changed after it was laid out: frozen, loaded, broken.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;
use epl_core::testing::{config, run};
use epl_core::{Engine, EngineSettings, Epl, Error, Result, launch};

use crate::engine::chain::{Chain, WIDTH, micro_batches};

#[test]
fn a_frozen_parameter_stays_as_it_is() -> Result<()> {
    let moved = run((2, 1, 1), |epl| {
        let built = epl.build(|place| {
            let chain = Chain::new(place);
            Chain { head: chain.head.no_grad(), ..chain }
        })?;
        let mut engine = Engine::new(built, &AdamWConfig::new(), EngineSettings::default())?;
        let before = engine.parameters()?;
        engine.step(micro_batches(&epl, 1), 0.1)?;
        let after = engine.parameters()?;
        let moved = |name: &str| before[name] != after[name];
        Ok((moved("head.weight"), moved("first.weight")))
    });
    assert_eq!(moved, [(false, true), (false, true)]);
    Ok(())
}

/// Why two ranks fail.
fn failure(build: impl Fn(&Epl) -> Result<()> + Sync) -> String {
    launch(&config(2, 1, 1), |epl| build(&epl)).unwrap_err().to_string()
}

#[test]
fn frozen_on_some_ranks_only_is_refused() {
    let text = failure(|epl| {
        let second = epl.context().world().rank() == 1;
        let built = epl.build(Chain::new)?;
        let freeze = |chain: Chain| if second { Chain { tied: chain.tied.no_grad(), ..chain } } else { chain };
        built.try_map(|chain, _| Ok(freeze(chain))).map(|_| ())
    });
    assert!(text.contains("parameter `tied.weight`: is frozen on some ranks only"), "{text}");
}

#[test]
fn loaded_values_get_the_identifiers_of_the_plan_and_are_trained() {
    let trained = run((2, 1, 1), |epl| {
        // As a loaded checkpoint does: other values, under identifiers of their own.
        let built = epl.build(Chain::new)?.try_map(|chain, plan| {
            let ones = Tensor::<2>::ones([WIDTH, 3], epl.place().device());
            let weight = Param::from_tensor(ones);
            assert_ne!(weight.id, plan.record("head.weight").unwrap().id);
            Ok(Chain { head: Linear { weight, ..chain.head }, ..chain })
        })?;
        assert_eq!(built.model().head.weight.id, built.plan().record("head.weight").unwrap().id);
        let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
        let before = engine.parameters()?;
        assert_eq!(before["head.weight"].try_to_vec::<f32>().unwrap(), [1.0; 3 * WIDTH]);
        engine.step(micro_batches(&epl, 1), 0.1)?;
        Ok(before["head.weight"] != engine.parameters()?["head.weight"])
    });
    assert_eq!(trained, [true, true]);
}

#[test]
fn what_a_change_gets_wrong_is_said() {
    let failed = failure(|epl| epl.build(Chain::new)?.try_map(|_, _| Err(Error::invalid("no such file"))).map(|_| ()));
    assert!(failed.contains("no such file"), "{failed}");
    let shape = failure(|epl| {
        let device = epl.place().device();
        let wider = |chain: Chain| Chain { up: Param::from_tensor(Tensor::zeros([WIDTH, 11], device)), ..chain };
        epl.build(Chain::new)?.try_map(|chain, _| Ok(wider(chain))).map(|_| ())
    });
    assert!(shape.contains("parameter `up`: holds [6, 11], and the plan says [6, 10]"), "{shape}");
}

/// As a frozen one whose state is there is refused, so is one that is trained and whose state is not.
#[test]
fn a_parameter_without_state_beside_others_that_have_some_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let engine = |epl: &Epl, is_frozen: bool| {
        let freeze = |chain: Chain| Chain { head: chain.head.no_grad(), ..chain };
        let built = epl.build(|at| if is_frozen { freeze(Chain::new(at)) } else { Chain::new(at) })?;
        Engine::new(built, &AdamWConfig::new(), EngineSettings::default())
    };
    for level in ["", "v1"] {
        let config = config(2, 1, 1).with("zero.level", level).unwrap();
        launch(&config, |epl| {
            let mut engine = engine(&epl, true)?;
            engine.step(micro_batches(&epl, 1), 0.1)?;
            engine.save(&saved)
        })
        .unwrap();
        let text = launch(&config, |epl| engine(&epl, false)?.load(&saved)).unwrap_err().to_string();
        assert!(text.contains("parameter `head.") && text.contains("has no optimizer state"), "{text}");
        launch(&config, |epl| engine(&epl, true)?.load(&saved)).unwrap();
    }
}
