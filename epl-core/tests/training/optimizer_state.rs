//! How much state an optimizer is said to keep is what it keeps: in its record, and in memory.

use std::collections::HashMap;

use burn::module::{Module, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, LambConfig, LionConfig,
    ModuleOptimizer, RmsPropConfig, SgdConfig,
};
use burn::tensor::{Device, Tensor};
use epl_core::optim::{BertAdamConfig, OptimizerConfig};

use crate::ALLOCATOR;

#[derive(Module, Debug)]
struct Net {
    vector: Param<Tensor<1>>,
    matrix: Param<Tensor<2>>,
    stack: Param<Tensor<3>>,
}

const SHAPES: [&[usize]; 3] = [&[30_000], &[300, 200], &[5, 128, 96]];

impl Net {
    fn new(device: &Device) -> Self {
        let ones = |count: usize| Tensor::<1>::ones([count], device);
        Self {
            vector: Param::from_tensor(ones(30_000)),
            matrix: Param::from_tensor(ones(300 * 200).reshape([300, 200])),
            stack: Param::from_tensor(ones(5 * 128 * 96).reshape([5, 128, 96])),
        }
    }

    fn gradients(&self, device: &Device) -> GradientsParams {
        let device = device.clone().without_autodiff();
        let mut gradients = GradientsParams::new();
        gradients.register(self.vector.id, Tensor::<1>::ones([30_000], &device) * 0.5);
        gradients.register(self.matrix.id, Tensor::<2>::ones([300, 200], &device) * 0.5);
        gradients.register(self.stack.id, Tensor::<3>::ones([5, 128, 96], &device) * 0.5);
        gradients
    }
}

/// `twice`: two fields of the record are one tensor of each parameter in memory.
fn assert_state<O: OptimizerConfig>(config: &O, what: &str, twice: bool) {
    let device = Device::flex().autodiff();
    let mut net = Net::new(&device);
    let mut optimizer = ModuleOptimizer::from(config.build());
    let before = ALLOCATOR.live();
    // After the first step some share their memory with a gradient, or with each other.
    for _ in 0..3 {
        let gradients = net.gradients(&device);
        net = optimizer.step(0.01, net, gradients);
    }
    let live = (ALLOCATOR.live() - before) as f64 / 4.0;
    let state = config.state().unwrap();
    let expected: u64 = SHAPES.iter().map(|shape| state.numel(shape)).sum();
    // Far less than one element for each of the parameters'.
    assert!((live - expected as f64).abs() < 8000.0, "{what}: {live} elements in memory, {expected} said");

    let reader = burn_pack::Reader::from_bytes(optimizer.into_bytes().unwrap()).unwrap();
    let mut recorded: HashMap<u64, u64> = HashMap::new();
    for tensor in reader.into_tensors().unwrap() {
        let (_, _, shape, id, _) = tensor.into_parts().unwrap();
        *recorded.entry(id.unwrap_or_default()).or_default() += shape.iter().map(|dim| *dim as u64).product::<u64>();
    }
    for (id, shape) in [net.vector.id, net.matrix.id, net.stack.id].into_iter().zip(SHAPES) {
        let extra = if twice { shape.iter().product::<usize>() as u64 } else { 0 };
        let found = recorded.get(&id.val()).copied().unwrap_or(0);
        assert_eq!(found, state.numel(shape) + extra, "{what}: {shape:?}");
    }
}

macro_rules! keeps {
    ($($name:ident: $config:expr, $twice:literal;)*) => {$(
        #[test]
        fn $name() {
            epl_testing::alone(|| assert_state(&$config, stringify!($name), $twice));
        }
    )*};
}

keeps! {
    adam: AdamConfig::new(), false;
    adam_amsgrad: AdamConfig::new().with_amsgrad(true), false;
    adamw: AdamWConfig::new(), false;
    adamw_amsgrad: AdamWConfig::new().with_amsgrad(true), false;
    bert_adam: BertAdamConfig::new(), false;
    adagrad: AdaGradConfig::new(), false;
    adan: AdanConfig::new(), false;
    lion: LionConfig::new(), false;
    rms_prop: RmsPropConfig::new(), true;
    rms_prop_without_momentum: RmsPropConfig::new().with_momentum(0.0), true;
    rms_prop_centered: RmsPropConfig::new().with_centered(true), false;
    rms_prop_centered_without_momentum: RmsPropConfig::new().with_centered(true).with_momentum(0.0), false;
    sgd: SgdConfig::new(), false;
    sgd_momentum: SgdConfig::new().with_momentum(Some(MomentumConfig::new())), false;
    adafactor: AdafactorConfig::new(), false;
    lamb: LambConfig::new(), false;
}
