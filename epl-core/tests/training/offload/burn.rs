//! One pass computes the bits of Burn's own optimizers on Flex.

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, LionConfig, Optimizer, RmsPropConfig, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use epl_core::offload::{FlatArray, Gradients, HostOptimizer, HostState, OnePass, Storage, Update};
use epl_core::optim::{BertAdamConfig, OptimizerConfig};

use crate::offload::{tiers, values};

/// The first has an odd length and needs several windows, and the third starts in the middle of one.
const PIECES: [core::ops::Range<usize>; 4] = [0..70_003, 70_003..70_020, 70_025..90_000, 90_000..90_000];

const LEN: usize = 90_000;
const STEPS: usize = 5;

pub fn one_pass<C: OptimizerConfig>(config: &C) -> HostOptimizer {
    match HostOptimizer::from_settings(C::NAME, &serde_json::to_value(config).unwrap()).unwrap() {
        OnePass::Yes(optimizer) => optimizer,
        OnePass::No(reason) => panic!("{reason}"),
    }
}

pub fn tensor(values: &[f64], dtype: DType) -> Tensor<1> {
    let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(dtype);
    Tensor::from_data(data, (&Device::flex(), dtype))
}

/// The bits, so that zeros of both signs differ.
pub fn bits(data: &TensorData) -> Vec<u64> {
    match data.dtype() {
        DType::F32 => data.as_slice::<f32>().unwrap().iter().map(|value| u64::from(value.to_bits())).collect(),
        _ => data.as_slice::<f64>().unwrap().iter().map(|value| value.to_bits()).collect(),
    }
}

/// The second parameter has no gradient in every other step, so that its own steps are fewer.
fn stepped(step: usize) -> Vec<usize> {
    if step.is_multiple_of(2) { vec![0, 1, 2, 3] } else { vec![0, 2] }
}

fn gradient(step: usize, piece: usize, dtype: DType) -> Tensor<1> {
    tensor(&values(1000 + (step * 10 + piece) as u64, PIECES[piece].len()), dtype)
}

fn rate(step: usize) -> f64 {
    0.01 / (1.0 + step as f64)
}

const FACTOR: f64 = 0.3;

/// Burn's parameters after all steps.
fn by_burn<O: Optimizer>(optimizer: &O, dtype: DType) -> Vec<TensorData> {
    let start = values(1, LEN);
    let mut parameters = PIECES.map(|piece| tensor(&start[piece], dtype));
    let mut states: [Option<O::State<1>>; 4] = [None, None, None, None];
    for step in 0..STEPS {
        for piece in stepped(step) {
            let gradient = gradient(step, piece, dtype).mul_scalar(FACTOR);
            let parameter = parameters[piece].clone();
            let (parameter, state) = optimizer.step(rate(step), parameter, gradient, states[piece].take());
            (parameters[piece], states[piece]) = (parameter, state);
        }
    }
    parameters.map(Tensor::into_data).to_vec()
}

struct Ours {
    optimizer: HostOptimizer,
    parameters: FlatArray,
    state: HostState,
}

impl Ours {
    fn new(optimizer: HostOptimizer, storage: &Storage, dtype: DType) -> Self {
        let mut parameters = storage.zeros(LEN, dtype).unwrap();
        parameters.write(0, &tensor(&values(1, LEN), dtype)).unwrap();
        let state = optimizer.state(storage, dtype, PIECES.to_vec()).unwrap();
        Self { optimizer, parameters, state }
    }

    fn step(&mut self, gradients: Gradients<'_>, step: usize) {
        let update = Update { rate: rate(step), factor: FACTOR };
        self.optimizer.step(&mut self.parameters, gradients, &mut self.state, update).unwrap();
    }

    /// Gradients as tensors.
    fn with_tensors(mut self, dtype: DType) -> FlatArray {
        for step in 0..STEPS {
            let tensors: Vec<_> =
                stepped(step).into_iter().map(|piece| (piece, gradient(step, piece, dtype))).collect();
            self.step(Gradients::Tensors(&tensors), step);
        }
        self.parameters
    }

    /// Gradients as an array.
    fn with_array(mut self, mut array: FlatArray) -> FlatArray {
        for step in 0..STEPS {
            for piece in stepped(step) {
                array.write(PIECES[piece].start, &gradient(step, piece, array.dtype())).unwrap();
            }
            self.step(Gradients::Array(&array, &stepped(step)), step);
        }
        self.parameters
    }
}

fn assert_equal(ours: &FlatArray, burns: &[TensorData], what: &str) {
    for (piece, burns) in PIECES.into_iter().zip(burns) {
        let (ours, burns) = (bits(&ours.data(piece.clone()).unwrap()), bits(burns));
        let differing = ours.iter().zip(&burns).filter(|(ours, burns)| ours != burns).count();
        assert_eq!(ours.len(), burns.len());
        assert_eq!(differing, 0, "{differing} of {} elements of {piece:?} differ, {what}", ours.len());
    }
    let (start, between) = (tensor(&values(1, LEN), ours.dtype()).into_data(), PIECES[1].end..PIECES[2].start);
    assert_eq!(bits(&ours.data(between.clone()).unwrap()), bits(&start)[between], "what lies between, {what}");
}

fn assert_burn<C: OptimizerConfig, O: Optimizer>(config: &C, burns: &O) {
    for dtype in [DType::F32, DType::F64] {
        let expected = by_burn(burns, dtype);
        let start = values(1, LEN);
        assert_ne!(
            bits(&expected[0]),
            bits(&tensor(&start[PIECES[0].clone()], dtype).into_data()),
            "nothing was learned"
        );
        let [host, files] = tiers();
        let ours = |storage: &Storage| Ours::new(one_pass(config), storage, dtype);
        let what = |tier: &str| format!("{} in {dtype:?}, {tier}", C::NAME);
        assert_equal(&ours(&host).with_tensors(dtype), &expected, &what("host, tensors"));
        assert_equal(&ours(&host).with_array(host.zeros(LEN, dtype).unwrap()), &expected, &what("host, array"));
        assert_equal(&ours(&files).with_tensors(dtype), &expected, &what("files, tensors"));
        assert_equal(&ours(&files).with_array(files.zeros(LEN, dtype).unwrap()), &expected, &what("files, array"));
        assert_equal(&ours(&files).with_array(host.zeros(LEN, dtype).unwrap()), &expected, &what("files, host array"));
    }
}

fn decay() -> Option<WeightDecayConfig> {
    Some(WeightDecayConfig::new(0.05))
}

#[test]
fn adam() {
    for config in [AdamConfig::new(), AdamConfig::new().with_weight_decay(decay()).with_epsilon(1e-8)] {
        assert_burn(&config, &config.build());
    }
}

#[test]
fn adam_w() {
    for config in [AdamWConfig::new(), AdamWConfig::new().with_weight_decay(0.0), AdamWConfig::new().with_beta_1(0.8)] {
        assert_burn(&config, &config.build());
    }
}

#[test]
fn bert_adam() {
    for config in [BertAdamConfig::new(), BertAdamConfig::new().with_weight_decay(0.0).with_beta_1(0.8)] {
        assert_burn(&config, &config.build());
    }
}

#[test]
fn lion() {
    for config in [LionConfig::new(), LionConfig::new().with_weight_decay(0.1)] {
        assert_burn(&config, &config.build());
    }
}

#[test]
fn sgd() {
    let momentum = MomentumConfig::new();
    let nesterov = MomentumConfig::new().with_nesterov(true).with_dampening(0.0).with_momentum(0.8);
    for config in [
        SgdConfig::new(),
        SgdConfig::new().with_weight_decay(decay()),
        SgdConfig::new().with_momentum(Some(momentum)),
        SgdConfig::new().with_momentum(Some(nesterov)).with_weight_decay(decay()),
    ] {
        assert_burn(&config, &config.build());
    }
}

#[test]
fn rms_prop() {
    for (centered, momentum) in [(false, 0.0), (false, 0.9), (true, 0.0), (true, 0.9)] {
        let config = RmsPropConfig::new().with_centered(centered).with_momentum(momentum).with_epsilon(1e-3);
        assert_burn(&config, &config.build());
        assert_burn(&config.clone().with_weight_decay(decay()), &config.with_weight_decay(decay()).build());
    }
}

#[test]
fn the_bits_do_not_depend_on_threads() {
    let config = AdamWConfig::new();
    let expected = by_burn(&config.build(), DType::F32);
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for storage in tiers() {
            let ours = pool.install(|| Ours::new(one_pass(&config), &storage, DType::F32).with_tensors(DType::F32));
            assert_equal(&ours, &expected, &format!("{threads} threads"));
        }
    }
}

#[test]
fn a_gradient_that_is_no_number_stays_in_its_place() {
    let config = AdamWConfig::new();
    let optimizer = one_pass(&config);
    let [host, _] = tiers();
    let mut parameters = host.zeros(100, DType::F32).unwrap();
    let mut state = optimizer.state(&host, DType::F32, vec![0..100]).unwrap();
    let mut gradient = vec![1.0; 100];
    gradient[40] = f64::NAN;
    let gradients = [(0, tensor(&gradient, DType::F32))];
    let update = Update { rate: 0.1, factor: 1.0 };
    optimizer.step(&mut parameters, Gradients::Tensors(&gradients), &mut state, update).unwrap();
    let nan = |value: &f32| value.is_nan();
    let after = parameters.data(0..100).unwrap();
    let after = after.as_slice::<f32>().unwrap();
    assert_eq!((after.iter().filter(|value| nan(value)).count(), nan(&after[40])), (1, true));
}

#[test]
fn what_one_pass_cannot_do_is_said() {
    use burn::grad_clipping::GradientClippingConfig;
    use burn::optim::{AdaGradConfig, AdafactorConfig, LambConfig};
    fn reason<C: OptimizerConfig>(config: &C) -> String {
        match HostOptimizer::from_settings(C::NAME, &serde_json::to_value(config).unwrap()).unwrap() {
            OnePass::Yes(optimizer) => panic!("{optimizer:?}"),
            OnePass::No(reason) => reason,
        }
    }
    assert!(reason(&AdamConfig::new().with_amsgrad(true)).contains("amsgrad keeps"));
    assert!(reason(&AdamWConfig::new().with_amsgrad(true)).contains("amsgrad keeps"));
    assert!(reason(&AdamWConfig::new().with_cautious_weight_decay(true)).contains("cautious weight decay depends"));
    let clipping = Some(GradientClippingConfig::Norm(1.0));
    assert!(reason(&SgdConfig::new().with_gradient_clipping(clipping)).contains("norm first"));
    assert!(reason(&AdafactorConfig::new()).contains("whole tensors"));
    assert!(reason(&LambConfig::new()).contains("whole tensors"));
    assert!(reason(&AdaGradConfig::new()).contains("AdaGrad cannot update in one pass"));
}
