//! A checkpoint does not tell where the update ran: Burn goes on from a record of ours, and we from one of Burn's.

use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::nn::{Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer, RmsPropConfig, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_pack::Reader;
use epl_core::offload::{Entry, FlatArray, Gradients, HostState, Ledger, Storage, Update};
use epl_core::optim::OptimizerConfig;

use crate::burn::{bits, one_pass, tensor};
use crate::{LEAST, values};

const RATE: f64 = 0.01;
const WEIGHT: usize = 5 * 7;
const LEN: usize = WEIGHT + 7;

/// One is a negative zero, of which zeros of state would make a positive one.
fn gradients(step: u64) -> [Vec<f64>; 2] {
    let mut weight = values(step, WEIGHT);
    weight[3] = -0.0;
    [weight, values(100 + step, 7)]
}

fn entries(model: &Linear) -> Vec<Entry> {
    let bias = model.bias.as_ref().unwrap();
    let entry =
        |id: ParamId, path: &str, shape: &[usize]| Entry { id: id.val(), path: path.into(), shape: shape.to_vec() };
    vec![entry(model.weight.id, "weight", &[5, 7]), entry(bias.id, "bias", &[7])]
}

fn burn_step(optimizer: &mut ModuleOptimizer, model: Linear, step: u64) -> Linear {
    let [weight, bias] = gradients(step);
    let mut gradients = GradientsParams::new();
    gradients.register(model.weight.id, tensor(&weight, DType::F32).reshape([5, 7]));
    gradients.register(model.bias.as_ref().unwrap().id, tensor(&bias, DType::F32));
    optimizer.step(RATE, model, gradients)
}

fn our_step(config: &impl OptimizerConfig, parameters: &mut FlatArray, state: &mut HostState, step: u64) {
    let [weight, bias] = gradients(step);
    let tensors = [(0, tensor(&weight, DType::F32)), (1, tensor(&bias, DType::F32))];
    let update = Update { rate: RATE, factor: 1.0 };
    one_pass(config).step(parameters, Gradients::Tensors(&tensors), state, update).unwrap();
}

fn parameters(model: &Linear) -> TensorData {
    let weight = model.weight.val().inner().flatten::<1>(0, 1);
    Tensor::cat(vec![weight, model.bias.as_ref().unwrap().val().inner()], 0).into_data()
}

/// Name, shape and bits.
type Field = (String, Vec<usize>, Vec<u64>);

/// Everything in a record, in the order of names.
fn contents(reader: Reader) -> (Vec<Field>, BTreeMap<String, burn_pack::Scalar>) {
    let scalars = reader.scalars().clone();
    let mut tensors: Vec<_> = reader
        .into_tensors()
        .unwrap()
        .into_iter()
        .map(|tensor| {
            let (name, dtype, shape, _, bytes) = tensor.into_parts().unwrap();
            (name, shape.to_vec(), bits(&TensorData::from_bytes(bytes, shape, dtype)))
        })
        .collect();
    tensors.sort();
    (tensors, scalars)
}

fn goes_on_either_way(config: &impl OptimizerConfig) {
    let device = Device::flex().autodiff();
    let storage = Storage::files(std::env::temp_dir(), LEAST, &Ledger::new()).unwrap();
    let model = LinearConfig::new(5, 7).init(&device);
    let entries = entries(&model);
    let mut ours = storage.zeros(LEN, DType::F32).unwrap();
    ours.set(0, parameters(&model)).unwrap();
    let pieces = || vec![0..WEIGHT, WEIGHT..LEN];
    let mut state = one_pass(config).state(&storage, DType::F32, pieces()).unwrap();
    let (mut optimizer, mut model) = (config.build(), model);
    let records = |state: &HostState, optimizer: &ModuleOptimizer| {
        let records = [state.record(&entries).unwrap().into_bytes().unwrap(), optimizer.into_bytes().unwrap()];
        let [ours, burns] = records.clone().map(|bytes| contents(Reader::from_bytes(bytes).unwrap()));
        assert_eq!(ours, burns);
        records
    };
    for step in 1..4 {
        model = burn_step(&mut optimizer, model, step);
        our_step(config, &mut ours, &mut state, step);
        records(&state, &optimizer);
    }
    let [our_record, burns_record] = records(&state, &optimizer);
    let mut from_ours = config.build().from_bytes(our_record).unwrap();
    let mut from_burns = one_pass(config).state(&Storage::host(&Ledger::new()), DType::F32, pieces()).unwrap();
    from_burns.load(Reader::from_bytes(burns_record).unwrap(), &entries).unwrap();
    let (mut ours_on_burns, mut burn_on_ours) = (storage.zeros(LEN, DType::F32).unwrap(), model.clone());
    ours_on_burns.set(0, parameters(&model)).unwrap();
    for step in 4..7 {
        model = burn_step(&mut optimizer, model, step);
        our_step(config, &mut ours, &mut state, step);
        burn_on_ours = burn_step(&mut from_ours, burn_on_ours, step);
        our_step(config, &mut ours_on_burns, &mut from_burns, step);
    }
    let expected = bits(&parameters(&model));
    assert_eq!(bits(&ours.data(0..LEN).unwrap()), expected);
    assert_eq!(bits(&parameters(&burn_on_ours)), expected);
    assert_eq!(bits(&ours_on_burns.data(0..LEN).unwrap()), expected);
}

#[test]
fn adam() {
    goes_on_either_way(&AdamConfig::new());
    goes_on_either_way(&AdamWConfig::new());
}

#[test]
fn lion() {
    goes_on_either_way(&LionConfig::new());
}

#[test]
fn sgd() {
    goes_on_either_way(&SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1))));
    goes_on_either_way(&SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_nesterov(true))));
}

#[test]
fn rms_prop() {
    goes_on_either_way(&RmsPropConfig::new());
    goes_on_either_way(&RmsPropConfig::new().with_centered(true).with_momentum(0.0).with_epsilon(1e-3));
}

#[test]
fn a_parameter_without_a_step_is_in_no_record() {
    let storage = Storage::host(&Ledger::new());
    let optimizer = one_pass(&AdamWConfig::new());
    let mut state = optimizer.state(&storage, DType::F32, vec![0..4, 4..7]).unwrap();
    let entry = |id, path: &str, shape: Vec<usize>| Entry { id, path: path.into(), shape };
    let entries = [entry(3, "first", vec![2, 2]), entry(8, "second", vec![3])];
    let mut parameters = storage.zeros(7, DType::F32).unwrap();
    let gradient = [(1, tensor(&[1.0; 3], DType::F32))];
    let update = Update { rate: 0.1, factor: 1.0 };
    optimizer.step(&mut parameters, Gradients::Tensors(&gradient), &mut state, update).unwrap();
    assert_eq!((state.names(0), state.time(0), state.time(1)), (vec![], None, Some(("momentum.time", 1))));
    let bytes = state.record(&entries).unwrap().into_bytes().unwrap();
    let (tensors, scalars) = contents(Reader::from_bytes(bytes.clone()).unwrap());
    assert_eq!(
        tensors.iter().map(|(name, _, _)| name.as_str()).collect::<Vec<_>>(),
        ["8.momentum.moment_1", "8.momentum.moment_2"]
    );
    assert_eq!(scalars.keys().collect::<Vec<_>>(), ["8.__rank", "8.momentum.time"]);

    let load = |entries: &[Entry]| {
        let mut state = optimizer.state(&storage, DType::F32, vec![0..4, 4..7]).unwrap();
        state.load(Reader::from_bytes(bytes.clone()).unwrap(), entries).map(|()| state)
    };
    assert_eq!(load(&entries).unwrap().time(1), Some(("momentum.time", 1)));
    let says = |entries: &[Entry], word: &str| {
        let message = load(entries).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    };
    says(&entries[..1], "1 parameters were named, and the optimizer's state has 2");
    says(&[entries[0].clone(), entry(9, "second", vec![3])], "state of parameter 8");
    says(&[entry(8, "first", vec![4]), entry(9, "second", vec![3])], "3 elements of f32, and its place has 4");
    let sgd = one_pass(&SgdConfig::new().with_momentum(Some(MomentumConfig::new())));
    let mut other = sgd.state(&storage, DType::F32, vec![0..4, 4..7]).unwrap();
    let message = other.load(Reader::from_bytes(bytes).unwrap(), &entries).unwrap_err().to_string();
    assert!(message.contains("moment_1") && message.contains("momentum.velocity"), "{message}");
}

#[test]
fn state_that_is_being_written_does_not_change() {
    let storage = Storage::host(&Ledger::new());
    let optimizer = one_pass(&AdamWConfig::new());
    let mut state = optimizer.state(&storage, DType::F32, vec![0..4]).unwrap();
    let mut parameters = storage.zeros(4, DType::F32).unwrap();
    let gradient = [(0, tensor(&[1.0; 4], DType::F32))];
    let update = Update { rate: 0.1, factor: 1.0 };
    optimizer.step(&mut parameters, Gradients::Tensors(&gradient), &mut state, update).unwrap();
    let entries = [Entry { id: 1, path: "weight".into(), shape: vec![4] }];
    let record = state.record(&entries).unwrap();
    let step = optimizer.step(&mut parameters, Gradients::Tensors(&gradient), &mut state, update);
    assert!(step.unwrap_err().to_string().contains("record"));
    drop(record);
    optimizer.step(&mut parameters, Gradients::Tensors(&gradient), &mut state, update).unwrap();
}
