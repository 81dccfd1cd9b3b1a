//! Parameter groups: PyTorch's numbers, which group decides, and what is refused.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, Optimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_core::optim::{BertAdamConfig, OptimizerConfig, ParamGroups};
use epl_core::plan::with_values;
use epl_core::{Chain, Config, Engine, EngineSettings, Place, Result, launch};
use serde_json::Value;

type Batch = (Tensor<2>, Tensor<2>);

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    head: Linear,
}

/// A layer, a norm, and a linear head.
fn net(at: &Place, values: &[Vec<f64>]) -> Chain<Net, Batch, Tensor<2>> {
    let net = Net {
        first: LinearConfig::new(3, 4).init(at),
        norm: LayerNormConfig::new(4).init(at),
        head: LinearConfig::new(4, 2).init(at),
    };
    Chain::of(net.map(&mut Filled(values.iter())))
        .first(&["first"], |net: &Net, (inputs, _): &Batch| activation::tanh(net.first.forward(inputs.clone())))
        .then(&["norm", "head"], |net, hidden, _| net.head.forward(net.norm.forward(hidden)))
        .mean_loss(|_, outputs, (_, targets)| MseLoss::new().forward(outputs, targets.clone(), Reduction::Mean))
}

/// Fills parameters in their order; none where there are no values.
struct Filled<'a>(std::slice::Iter<'a, Vec<f64>>);

impl ModuleMapper for Filled<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.0.next() else { return param };
        let device = param.lazy_device().without_autodiff();
        let data = TensorData::new(values.clone(), param.lazy_shape());
        with_values(param, Tensor::from_data(data, &device))
    }
}

const NAMES: [&str; 6] = ["first.weight", "first.bias", "norm.gamma", "norm.beta", "head.weight", "head.bias"];

/// A fixture of `tools/make_param_groups_fixture.py`.
struct Fixture(Value);

impl Fixture {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/param_groups.json");
        Self(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    }

    fn named(value: &Value) -> Vec<Vec<f64>> {
        NAMES.map(|name| numbers(&value[name])).to_vec()
    }

    fn batches(&self, device: &Device) -> Vec<Batch> {
        let table = |value: &Value, columns: usize| {
            let values = numbers(value);
            let rows = values.len() / columns;
            Tensor::from_data(TensorData::new(values, [rows, columns]), device)
        };
        let batches = self.0["batches"].as_array().unwrap();
        batches.iter().map(|batch| (table(&batch[0], 3), table(&batch[1], 2))).collect()
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// The three groups of the fixture, of which the third has settings of its own.
fn grouped<O: OptimizerConfig>(optimizer: O, own: O) -> ParamGroups<O> {
    ParamGroups::new(optimizer)
        .group(["**.bias", "norm"], |group| group.with_weight_decay(0.0))
        .group(["head.weight"], |group| group.with_rate_factor(0.5).with_optimizer(own))
}

/// The largest difference from PyTorch's parameters, in a configuration.
fn error_of<O: OptimizerConfig + Sync>(config: &Config, optimizer: &O) -> f64 {
    let fixture = Fixture::read();
    let (initial, rate) = (Fixture::named(&fixture.0["initial"]), fixture.0["rate"].as_f64().unwrap());
    let expected = Fixture::named(&fixture.0["trained"][O::NAME]);
    let ranks = launch(config, |epl| {
        let mut engine = Engine::build(&epl, |at| net(at, &initial), optimizer)?;
        for batch in fixture.batches(epl.place().device()) {
            engine.train_batch(&batch, rate)?;
        }
        engine.parameters()
    });
    let found = ranks.unwrap().swap_remove(0);
    let mut largest: f64 = 0.0;
    for ((name, expected), initial) in NAMES.into_iter().zip(expected).zip(initial) {
        let found = found[name].try_to_vec::<f64>().unwrap();
        assert_eq!(found.len(), expected.len());
        let off = |others: &[f64]| epl_testing::largest(found.iter().zip(others).map(|(a, b)| (a - b).abs()));
        assert!(off(&initial) > 1e-2, "{name} has moved by {} only", off(&initial));
        largest = largest.max(off(&expected));
    }
    largest
}

fn assert_pytorch<O: OptimizerConfig + Sync>(optimizer: &O) {
    let one = |key: &str, value: &str| Config::new().with(key, value).unwrap();
    for (what, config) in [
        ("one rank", Config::new()),
        ("data 2, v3", one("zero.level", "v3").with("dist.data_parallel_size", 2).unwrap()),
        ("offload", one("offload.level", "v0")),
        ("offload to files", one("offload.level", "v1")),
    ] {
        let error = error_of(&config, optimizer);
        println!("{} on {what}: {error:.1e}", O::NAME);
        assert!(error <= 1e-6, "{} on {what}: {error:.1e}", O::NAME);
    }
}

#[test]
fn adam_w_in_groups_is_pytorchs() {
    epl_testing::in_f64(|| {
        let optimizer = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1);
        assert_pytorch(&grouped(optimizer.clone(), optimizer.with_beta_1(0.8).with_beta_2(0.99)));
    });
}

#[test]
fn adam_without_bias_correction_in_groups_is_berts() {
    epl_testing::in_f64(|| {
        let optimizer = BertAdamConfig::new().with_weight_decay(0.1);
        assert_pytorch(&grouped(optimizer.clone(), optimizer.with_beta_1(0.8).with_beta_2(0.99)));
    });
}

#[test]
fn sgd_in_groups_is_pytorchs() {
    epl_testing::in_f64(|| {
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.1);
        let decay = burn::optim::decay::WeightDecayConfig::new(0.1);
        let optimizer = SgdConfig::new().with_momentum(Some(momentum.clone())).with_weight_decay(Some(decay));
        let own = optimizer.clone().with_momentum(Some(momentum.with_momentum(0.5)));
        assert_pytorch(&grouped(optimizer, own));
    });
}

/// The first step of Adam without bias correction: of m = 0.1 g and v = 0.001 g².
#[test]
fn the_first_step_of_bert_adam() {
    let device = Device::flex();
    let value = |number: f64| Tensor::<1>::from_floats([number as f32], &device);
    let optimizer = BertAdamConfig::new().with_epsilon(0.0).with_weight_decay(0.5).build();
    let (parameter, _) = optimizer.step(0.01, value(2.0), value(4.0), None);
    let expected = 2.0 - 0.01 * (0.1 * 4.0 / (0.001_f64 * 16.0).sqrt() + 0.5 * 2.0);
    let found = f64::from(parameter.into_data().as_slice::<f32>().unwrap()[0]);
    assert!((found - expected).abs() < 1e-6, "{found}, and not {expected}");
}

/// How far each parameter goes in a step of SGD with this rate for gradients of one: the rate that it is updated with.
fn rates<O: OptimizerConfig + Sync>(config: &Config, optimizer: &O) -> Result<BTreeMap<String, f64>> {
    let mut ranks = launch(config, |epl| {
        let engine = Engine::build(&epl, |at| net(at, &[]), optimizer)?;
        step_of(engine)
    })?;
    Ok(ranks.swap_remove(0))
}

fn step_of(mut engine: Engine<Chain<Net, Batch, Tensor<2>>>) -> Result<BTreeMap<String, f64>> {
    let device = engine.device().clone();
    let batch = (Tensor::ones([3, 3], &device) * 0.7, Tensor::ones([3, 2], &device));
    let before = engine.parameters()?;
    let (_, gradients) = engine.gradients(vec![epl_core::MicroBatch::new(batch.clone(), [0, 1, 2])])?;
    engine.train_batch(&batch, 1.0)?;
    let values = |data: &TensorData| data.clone().convert_dtype(burn::tensor::DType::F64).try_to_vec::<f64>().unwrap();
    let after = engine.parameters()?;
    let rate = |name: &String| {
        let moved: f64 = values(&before[name]).iter().zip(values(&after[name])).map(|(a, b)| (a - b).powi(2)).sum();
        let gradient = gradients.get(name).map_or(1.0, |data| values(data).iter().map(|g| g * g).sum());
        (moved / gradient).sqrt()
    };
    Ok(before.keys().map(|name| (name.clone(), rate(name))).collect())
}

fn assert_rates(found: &BTreeMap<String, f64>, expected: &[(&str, f64)]) {
    for (name, expected) in expected {
        let found = found[*name];
        assert!((found - expected).abs() <= 1e-3 * expected.max(1e-3), "{name}: {found}, and not {expected}");
    }
}

#[test]
fn the_last_group_that_says_a_setting_decides_it() {
    let optimizer = ParamGroups::new(SgdConfig::new())
        .group([""], |group| group.with_rate_factor(0.5))
        .group(["head"], |group| group.with_rate_factor(0.25))
        .group(["**.bias"], |group| group.with_weight_decay(0.0));
    let found = rates(&Config::new(), &optimizer).unwrap();
    let expected = [("first.weight", 0.5), ("first.bias", 0.5), ("head.weight", 0.25), ("head.bias", 0.25)];
    assert_rates(&found, &expected);
    // Options come behind.
    let options = Config::new().with("optimizer.rate_factor", vec!["head.bias=0.125"]).unwrap();
    let options = options.with("optimizer.frozen", vec!["norm", "first.bias"]).unwrap();
    let found = rates(&options, &optimizer).unwrap();
    let frozen = [("norm.gamma", 0.0), ("norm.beta", 0.0), ("first.bias", 0.0), ("first.weight", 0.5)];
    assert_rates(&found, &frozen);
    assert_rates(&found, &[("head.weight", 0.25), ("head.bias", 0.125)]);
    // What a group froze, a later one takes back.
    let thawed =
        optimizer.group(["**"], |group| group.with_frozen(true)).group(["head"], |group| group.with_frozen(false));
    assert_rates(&rates(&Config::new(), &thawed).unwrap(), &[("first.weight", 0.0), ("head.weight", 0.25)]);
}

#[test]
fn groups_of_groups_come_one_after_the_other() {
    let inner = ParamGroups::new(SgdConfig::new()).group(["head"], |group| group.with_rate_factor(0.5));
    let outer = ParamGroups::new(inner).group(["head.bias"], |group| group.with_rate_factor(0.25));
    let found = rates(&Config::new(), &outer).unwrap();
    assert_rates(&found, &[("first.weight", 1.0), ("head.weight", 0.5), ("head.bias", 0.25)]);
}

#[test]
fn what_a_group_freezes_has_no_gradient_and_no_state() {
    let optimizer =
        ParamGroups::new(AdamWConfig::new()).group(["first", "head.weight"], |group| group.with_frozen(true));
    for level in ["", "v1", "v3"] {
        let config = Config::new().with("zero.level", level).unwrap().with("dist.data_parallel_size", 2).unwrap();
        launch(&config, |epl| {
            let built = Engine::build(&epl, |at| net(at, &[]), &optimizer)?;
            let later = Engine::new(epl.build(|at| net(at, &[]))?, &optimizer, EngineSettings::from_config(&config))?;
            for mut engine in [built, later] {
                let frozen = |name: &str| name.starts_with("first.") || name == "head.weight";
                for record in engine.plan().records() {
                    assert_eq!(record.trainable, !frozen(&record.name), "{}", record.name);
                }
                let table = &engine.plan().params;
                let reduced = table.trained().flat_map(|unit| &unit.members);
                assert_eq!(reduced.filter(|member| frozen(&table.records[**member].name)).count(), 0);
                let device = engine.device().clone();
                let batch = (Tensor::ones([5, 3], &device) * 0.3, Tensor::ones([5, 2], &device));
                let before = engine.parameters()?;
                engine.train_batch(&batch, 0.1)?;
                let (after, state) = (engine.parameters()?, engine.optimizer_state()?);
                for name in NAMES {
                    assert_eq!(before[name] == after[name], frozen(name), "{name}, {level}");
                    assert_eq!(state.keys().any(|key| key.starts_with(name)), !frozen(name), "{name}, {level}");
                }
            }
            Ok::<_, epl_core::Error>(())
        })
        .unwrap();
    }
}

/// What is said of an optimizer, with options.
fn refused<O: OptimizerConfig + Sync>(options: &[(&str, &[&str])], optimizer: &O) -> String {
    let with = |config: Config, (key, list): &(&str, &[&str])| config.with(key, list.to_vec()).unwrap();
    let config = options.iter().fold(Config::new(), with);
    let built = rates(&config, optimizer).unwrap_err().to_string();
    let later = launch(&config, |epl| {
        Engine::new(epl.build(|at| net(at, &[]))?, optimizer, EngineSettings::default()).map(|_| ())
    });
    assert_eq!(built, later.unwrap_err().to_string(), "the same however the engine is made");
    built
}

#[test]
fn a_pattern_that_covers_nothing_is_refused_with_what_was_meant() {
    let sgd = SgdConfig::new();
    let grouped = |pattern: &str| ParamGroups::new(sgd.clone()).group([pattern], |group| group.with_rate_factor(2.0));
    let text = refused(&[], &grouped("*.*.weight"));
    assert!(text.contains("a parameter group: no parameter is at `*.*.weight`; `*` is one name"), "{text}");
    assert!(text.contains("`**.**.weight` covers some"), "{text}");
    let text = refused(&[], &grouped("gamma"));
    assert!(text.contains("a path begins at the whole model: `**.gamma` covers some"), "{text}");
    let text = refused(&[("optimizer.frozen", &["haed.weight"])], &sgd);
    assert!(
        text.contains("optimizer.frozen: no parameter is at `haed.weight`; the nearest are `head.weight`,"),
        "{text}"
    );
    let text = refused(&[("optimizer.weight_decay", &["nrom=0", "frist=0"])], &sgd);
    assert!(text.contains("2 things are in the way") && text.contains("`nrom`") && text.contains("`frist`"), "{text}");
    let text = refused(&[], &ParamGroups::new(sgd.clone()).group(Vec::<String>::new(), |group| group));
    assert!(text.contains("has no pattern"), "{text}");
}

/// An optimizer of a user's that has no weight decay.
#[derive(serde::Serialize)]
struct Plain;

impl OptimizerConfig for Plain {
    const NAME: &'static str = "Plain";
    const ELEMENT_WISE: bool = true;

    fn build(&self) -> impl Optimizer {
        SgdConfig::new().build()
    }
}

#[test]
fn what_a_group_cannot_say_is_refused() {
    let text = refused(&[("optimizer.weight_decay", &["head=0.1"])], &Plain);
    assert!(text.contains("`head.weight`") && text.contains("Plain has no weight decay"), "{text}");
    let found = rates(&Config::new().with("optimizer.rate_factor", vec!["head=0.5"]).unwrap(), &Plain).unwrap();
    assert_rates(&found, &[("first.weight", 1.0), ("head.weight", 0.5)]);
    let sgd = SgdConfig::new();
    let momentum = sgd.clone().with_momentum(Some(MomentumConfig::new()));
    let text = refused(&[], &ParamGroups::new(sgd.clone()).group(["head"], |group| group.with_optimizer(momentum)));
    assert!(text.contains("momentum.velocity") && text.contains("SGD"), "{text}");
    assert!(text.contains("a momentum of 0 in the place of none"), "{text}");
    let text = refused(&[], &ParamGroups::new(sgd.clone()).group(["head"], |group| group.with_rate_factor(-1.0)));
    assert!(text.contains("a parameter group has the rate factor -1; give a number of at least 0"), "{text}");
    let text = refused(&[], &ParamGroups::new(sgd).group(["head"], |group| group.with_rate_factor(f64::NAN)));
    assert!(text.contains("SGD: groups.0.rate_factor = NaN is not finite"), "{text}");
}
