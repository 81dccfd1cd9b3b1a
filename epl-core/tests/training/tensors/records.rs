//! Burn's records both ways: what plain Burn saved is trained on two ranks, and what two ranks trained plain Burn loads.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::store::{BurnpackStore, ModuleRecord, ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use epl_core::tensors::{AssignMap, BurnRecord, StoredParameters, WholeTensors, save_burnpack, save_safetensors};
use epl_core::testing::run;
use epl_core::{Engine, EngineSettings, Epl, Place, Result, WithLoss};
use tempfile::TempDir;

use super::Tensors;

/// A model that knows nothing of ranks.
#[derive(Module, Debug)]
struct Plain {
    hidden: Linear,
    outputs: Vec<Linear>,
}

impl Plain {
    fn new(device: &Device) -> Self {
        // Nothing is drawn: the generator is of the process, and other tests draw.
        let linear =
            |inputs, outputs| LinearConfig::new(inputs, outputs).with_initializer(Initializer::Zeros).init(device);
        Self { hidden: linear(3, 4), outputs: vec![linear(4, 2), linear(4, 2)] }
    }

    /// One with a value of its own for each element.
    fn counted() -> Self {
        struct Count(f32);
        impl ModuleMapper for Count {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let mut next = || {
                    self.0 += 1.0;
                    (0.7 * self.0).sin()
                };
                let values: Vec<f32> = (0..param.lazy_shape().num_elements()).map(|_| next()).collect();
                param.map(|old| Tensor::from_data(TensorData::new(values, old.shape()), &old.device()))
            }
        }
        Self::new(&Device::default()).map(&mut Count(0.0))
    }

    fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        let hidden = self.hidden.forward(inputs);
        self.outputs[0].forward(hidden.clone()) + self.outputs[1].forward(hidden)
    }
}

fn inputs(device: &Device) -> Tensor<2> {
    Tensor::from_data([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]], device)
}

fn outputs(net: &Plain) -> TensorData {
    net.forward(inputs(&Device::default())).into_data()
}

/// Starts from a record on two ranks, and makes a step: the outputs before, and the parameters and outputs after.
fn trained(record: &BurnRecord) -> (TensorData, Tensors, TensorData) {
    let step = |epl: Epl| -> Result<_> {
        let loss = |net: &Plain, inputs: &Tensor<2>| net.forward(inputs.clone()).powi_scalar(2).mean();
        let built = epl.build(|at| WithLoss::new(Plain::new(at), loss))?.assign(record, &AssignMap::identity())?;
        let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
        let before = outputs(&engine.inference()?.model);
        engine.train_batch(&inputs(epl.place()), 0.1)?;
        Ok((before, engine.parameters()?, outputs(&engine.inference()?.model)))
    };
    run((2, 1, 1), step).remove(0)
}

#[test]
fn what_plain_burn_saved_is_trained_and_loaded_again() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let plain = Plain::counted();
    plain.save_into(&mut BurnpackStore::from_file(path("plain.bpk"))).unwrap();
    plain.save_into(&mut SafetensorsStore::from_file(path("plain.safetensors"))).unwrap();
    plain.clone().into_record().save(path("record.bpk")).unwrap();
    for file in ["plain.bpk", "plain.safetensors", "record.bpk"] {
        let (before, parameters, after) = trained(&BurnRecord::open(path(file)).unwrap());
        assert_eq!(before, outputs(&plain), "{file}");
        assert_ne!(after, before);

        let names = parameters.names();
        save_burnpack(parameters.clone(), path("ours.bpk")).unwrap();
        save_safetensors(&parameters, path("ours.safetensors")).unwrap();
        let mut first = Plain::new(&Device::default());
        let loaded = first.load_from(&mut BurnpackStore::from_file(path("ours.bpk"))).unwrap();
        assert_eq!((loaded.applied.len(), loaded.unused.len()), (names.len(), 0));
        let mut second = Plain::new(&Device::default());
        second.load_from(&mut SafetensorsStore::from_file(path("ours.safetensors"))).unwrap();
        let third = Plain::new(&Device::default()).load_record(ModuleRecord::load(path("ours.bpk")).unwrap());
        for net in [first, second, third] {
            assert_eq!(outputs(&net), after, "{file}");
        }
    }
}

#[test]
fn a_record_of_another_model_is_assigned_in_part() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("old.bpk");
    let plain = Plain::counted();
    plain.save_into(&mut BurnpackStore::from_file(&path)).unwrap();
    let record = BurnRecord::open(&path).unwrap();
    let map = AssignMap::new().with("hidden", "hidden").with("outputs.1", "outputs.*").allow_unused("outputs.0");
    let parameters = run((2, 1, 1), |epl| {
        let built =
            epl.build(|at| WithLoss::new(Plain::new(at), |net: &Plain, x: &Tensor<2>| net.forward(x.clone()).mean()))?;
        Engine::new(built.assign(&record, &map)?, &SgdConfig::new(), EngineSettings::default())?.parameters()
    });
    let second = plain.outputs[1].weight.val().into_data();
    assert_eq!([&parameters[0]["outputs.0.weight"], &parameters[0]["outputs.1.weight"]], [&second, &second]);
}

#[test]
fn any_store_of_burn_is_read_under_the_names_it_gives() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("plain.bpk");
    Plain::new(&Device::default()).save_into(&mut BurnpackStore::from_file(&path)).unwrap();
    let record = BurnRecord::of(&mut BurnpackStore::from_file(&path).with_remap_pattern("^hidden", "body")).unwrap();
    assert!(record.names().contains(&"body.weight".to_string()), "{:?}", record.names());
    assert_eq!(record.read("body.weight", &[1..3, 0..2]).unwrap().shape().to_vec(), [2, 2]);
}

#[test]
fn files_that_are_no_records_are_named() {
    let folder = TempDir::new().unwrap();
    let message = |name: &str| BurnRecord::open(folder.path().join(name)).map(drop).unwrap_err().to_string();
    assert!(message("net.pt").contains("net.pt: should end with `.bpk` or `.safetensors`"));
    assert!(message("none.bpk").contains("none.bpk: "));
    std::fs::write(folder.path().join("bad.bpk"), b"not a record at all").unwrap();
    std::fs::write(folder.path().join("bad.safetensors"), b"not a record at all").unwrap();
    assert!(message("bad.bpk").contains("bad.bpk: ") && message("bad.safetensors").contains("bad.safetensors: "));
}

/// A layer that counts, and leaves some of what it gives out.
#[derive(Module, Debug)]
struct Counting {
    linear: Linear,
    counts: Param<Tensor<1, Int>>,
    kept: Param<Tensor<2, Bool>>,
}

impl Counting {
    fn new(counts: [i64; 3], kept: [[bool; 2]; 1], device: &Device) -> Self {
        let plain = device.clone().without_autodiff();
        Self {
            linear: LinearConfig::new(3, 4).init(device),
            counts: Param::initialized(ParamId::new(), Tensor::from_data(counts, (&plain, DType::I64))),
            kept: Param::initialized(ParamId::new(), Tensor::from_data(kept, &plain)),
        }
    }
}

/// What a checkpoint has of a model is what a record of Burn has, and nothing of what else a checkpoint keeps.
#[test]
fn whole_numbers_and_truth_values_of_a_checkpoint_are_loaded_by_plain_burn() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    run((2, 1, 1), |epl: Epl| {
        let loss = |net: &Counting, inputs: &Tensor<2>| net.linear.forward(inputs.clone()).powi_scalar(2).mean();
        let net = |at: &Place| WithLoss::new(Counting::new([7, -8, 1 << 20], [[true, false]], at), loss);
        let mut engine = Engine::build(&epl, net, &AdamWConfig::new())?;
        engine.train_batch(&inputs(epl.place()), 0.1)?;
        engine.save(path("checkpoint"))
    });
    let stored = StoredParameters::open(path("checkpoint")).unwrap();
    let mut names = stored.names();
    names.sort();
    assert_eq!(names, ["counts", "kept", "linear.bias", "linear.weight"]);
    assert!(stored.checkpoint().index().tensors.len() > names.len(), "there is state of the optimizer, too");
    save_safetensors(&stored, path("ours.safetensors")).unwrap();
    save_burnpack(StoredParameters::open(path("checkpoint")).unwrap(), path("ours.bpk")).unwrap();
    let fresh = || Counting::new([0; 3], [[false, true]], &Device::default());
    let (mut first, mut second) = (fresh(), fresh());
    first.load_from(&mut BurnpackStore::from_file(path("ours.bpk"))).unwrap();
    second.load_from(&mut SafetensorsStore::from_file(path("ours.safetensors"))).unwrap();
    for net in [first, second] {
        assert_eq!(net.counts.val().into_data().iter::<i64>().collect::<Vec<_>>(), [7, -8, 1 << 20]);
        assert_eq!(net.kept.val().into_data().iter::<bool>().collect::<Vec<_>>(), [true, false]);
        assert_eq!(net.linear.weight.val().into_data(), stored.read_whole("linear.weight").unwrap());
    }
}
