//! Trained parameters without a gradient: what no rank has one of is left as Burn leaves it, in every layout.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Tensor, TensorData};
use epl_core::testing::{config, largest_error};
use epl_core::{Config, Engine, EngineSettings, Epl, Loss, LossWeights, Model, Place, Result, launch};

use crate::engine::chain::{Chain, Rows, WIDTH, micro_batches, rows};

/// A chain, and layers that are not used by every batch.
#[derive(Module, Debug)]
struct Sparse {
    chain: Chain,
    /// Used in the second step.
    once: Linear,
    /// Used by batches with a row that is not valid, which not every replica has.
    masked: Linear,
    never: Linear,
    #[module(skip)]
    step: Arc<AtomicUsize>,
}

impl Sparse {
    fn new(place: &Place) -> Self {
        let linear = LinearConfig::new(WIDTH, WIDTH);
        let [once, masked, never] = [linear.init(place), linear.init(place), linear.init(place)];
        Self { chain: Chain::new(place), once, masked, never, step: Arc::default() }
    }
}

impl Model for Sparse {
    type Batch = Rows;
    type Carry = <Chain as Model>::Carry;

    fn segments(&self) -> usize {
        4
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        path.strip_prefix("chain.").map_or(vec![3], |path| self.chain.segments_of(path))
    }

    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &Rows) -> Self::Carry {
        let (mut x, kept) = match (index, carry) {
            (3, Some(carry)) => carry,
            (_, carry) => return self.chain.forward_segment(index, carry, batch),
        };
        if self.step.load(Ordering::Relaxed) == 1 {
            x = self.once.forward(x);
        }
        if batch.valid.contains(&false) {
            let mask: Vec<f64> = batch.valid.iter().map(|valid| f64::from(u8::from(!valid))).collect();
            let mask = Tensor::<2>::from_data(TensorData::new(mask, [batch.valid.len(), 1]), &x.device());
            x = x.clone() + self.masked.forward(x) * mask;
        }
        self.chain.forward_segment(3, Some((x, kept)), batch)
    }

    fn weights(&self, batch: &Rows) -> LossWeights {
        self.chain.weights(batch)
    }

    fn loss(&self, carry: Self::Carry, batch: &Rows) -> Loss {
        self.chain.loss(carry, batch)
    }
}

const STEPS: usize = 3;
const RATE: f64 = 0.1;

/// The decay moves what has a gradient of zero, and momenta what had one before.
fn optimizer() -> AdamWConfig {
    AdamWConfig::new().with_epsilon(1e-4).with_weight_decay(0.5)
}

fn engine(epl: &Epl) -> Result<Engine<Sparse>> {
    Engine::new(epl.build(Sparse::new)?, &optimizer(), EngineSettings::default())
}

fn train(epl: &Epl, engine: &mut Engine<Sparse>, steps: core::ops::Range<usize>) -> Result<()> {
    for step in steps {
        engine.model().step.store(step, Ordering::Relaxed);
        engine.step(micro_batches(epl, 1), RATE)?;
    }
    Ok(())
}

/// Parameters after a loop of Burn's own, of the model that an engine begins with.
fn by_burn() -> BTreeMap<String, TensorData> {
    let found = launch(&config(1, 1, 1), |epl| {
        let (mut model, mut optimizer) = (engine(&epl)?.model().clone(), optimizer().init());
        let batch = rows(0..13, epl.place().device());
        for step in 0..STEPS {
            model.step.store(step, Ordering::Relaxed);
            let exit = (0..4).fold(None, |carry, index| Some(model.forward_segment(index, carry, &batch)));
            let term = model.loss(exit.unwrap(), &batch).terms.remove(0);
            let weight = model.weights(&batch).get("error", 0).unwrap();
            let loss = term.value * (term.coefficient / weight);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(RATE, model, gradients);
        }
        let mut values = Values::default();
        model.visit(&mut values);
        Ok(values.found)
    });
    found.unwrap().remove(0)
}

#[derive(Default)]
struct Values {
    path: Vec<String>,
    found: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.insert(self.path.join("."), param.val().into_data());
    }
}

fn layouts() -> Vec<Config> {
    let with = |config: Config, options: &[(&str, &str)]| {
        options.iter().fold(config, |config, (key, value)| config.with(key, *value).unwrap())
    };
    vec![
        config(1, 1, 1),
        with(config(1, 1, 1), &[("offload.level", "v0"), ("offload.parameters", "device")]),
        config(4, 1, 1),
        config(2, 1, 1).with("dist.pipeline_parallel_size", 2).unwrap(),
        config(2, 2, 1),
        with(config(4, 1, 1), &[("zero.level", "v1")]),
        with(config(4, 1, 1), &[("zero.level", "v2"), ("offload.optimizer_state", "host")]),
        with(config(2, 1, 1), &[("zero.level", "v3"), ("offload.gradients", "host")]),
    ]
}

#[test]
fn what_no_rank_has_a_gradient_of_is_left_as_by_burn() {
    let expected = by_burn();
    for config in layouts() {
        let found = launch(&config, |epl| {
            let mut engine = engine(&epl)?;
            let before = engine.parameters()?;
            train(&epl, &mut engine, 0..STEPS)?;
            Ok((before, engine.parameters()?))
        });
        for (before, after) in found.unwrap() {
            assert_eq!(before["never.weight"], after["never.weight"]);
            let (name, error) = largest_error(&after, &expected);
            assert!(error <= 1e-5, "{name}: {error} under {config:?}");
        }
    }
}

#[test]
fn a_run_goes_on_without_the_state_of_what_had_no_gradient() {
    let (folder, expected) = (tempfile::tempdir().unwrap(), by_burn());
    let layouts = layouts();
    for (number, config) in layouts.iter().enumerate() {
        let (saved, next) = (folder.path().join(number.to_string()), &layouts[(number + 1) % layouts.len()]);
        launch(config, |epl| {
            let mut engine = engine(&epl)?;
            train(&epl, &mut engine, 0..1)?;
            engine.save(&saved)
        })
        .unwrap();
        let found = launch(next, |epl| {
            let mut engine = engine(&epl)?;
            engine.load(&saved)?;
            // Saved again before anything has changed, it says the same.
            engine.save(folder.path().join(format!("{number}-again")))?;
            engine.load(folder.path().join(format!("{number}-again")))?;
            train(&epl, &mut engine, 1..STEPS)?;
            engine.parameters()
        });
        let (name, error) = largest_error(&found.unwrap()[0], &expected);
        assert!(error <= 1e-5, "{name}: {error} from {config:?} to {next:?}");
    }
}

#[test]
fn the_first_rank_alone_keeps_a_state_that_it_alone_asks_for() {
    for config in layouts() {
        let found = launch(&config, |epl| {
            let mut engine = engine(&epl)?;
            train(&epl, &mut engine, 0..1)?;
            Ok((engine.optimizer_states()?, engine.optimizer_states_on_first()?))
        });
        for (rank, (all, own)) in found.unwrap().into_iter().enumerate() {
            assert!(all.contains_key("chain.head.weight"), "{:?}", all.keys());
            assert_eq!(own, if rank == 0 { all } else { BTreeMap::new() }, "{config:?}");
        }
    }
}
