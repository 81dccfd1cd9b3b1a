//! EPL's first program, beside the same in plain Burn: 500 samples of 20 integers from 0 to 9 in 10 classes, batches of
//! ten, ten steps.
//!
//! `cargo run --release --example quickstart`
//!
//! Between the two stand three lines; a test counts them.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig, momentum::MomentumConfig};
use burn::{module::Module, tensor::Device, tensor::Int, tensor::Tensor};

/// 20 integers a row, and the row's class.
type Batch = (Tensor<2>, Tensor<1, Int>);

/// Two linear layers.
#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    output: Linear,
}

impl Net {
    /// Its first values come from the device.
    pub fn new(device: &Device) -> Self {
        Self { hidden: LinearConfig::new(20, 2).init(device), output: LinearConfig::new(2, 10).init(device) }
    }

    fn loss(&self, (inputs, targets): &Batch) -> Tensor<1> {
        let logits = self.output.forward(self.hidden.forward(inputs.clone()));
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets.clone())
    }
}

fn batches(device: &Device) -> impl Iterator<Item = Batch> {
    let number = |seed: u32| (seed.wrapping_mul(2_654_435_761) >> 16) as i64 % 10;
    (0..50u32).map(move |batch| {
        let inputs: Vec<i64> = (0..200).map(|i| number(batch * 211 + i)).collect();
        let targets: Vec<i64> = (0..10).map(|row| number(batch * 211 + 200 + row)).collect();
        let inputs = Tensor::<1, Int>::from_ints(inputs.as_slice(), device).reshape([10, 20]);
        (inputs.float(), Tensor::from_ints(targets.as_slice(), device))
    })
}

fn sgd() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9)))
}

/// The losses of plain Burn.
pub fn plain(mut net: Net) -> Vec<f64> {
    let device = Device::default().autodiff();
    let (mut optimizer, mut losses) = (sgd().init(), Vec::new());
    for batch in batches(&device).take(10) {
        let loss = net.loss(&batch);
        losses.push(loss.clone().into_scalar::<f32>().into());
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.001, net, gradients);
    }
    losses
}

/// The losses, as every rank sees them.
pub fn parallel(ranks: usize, net: &Net) -> epl::Result<Vec<Vec<f64>>> {
    epl::launch(&epl::Config::new().with("cluster.ranks", ranks)?, |epl| {
        let mut net = epl::Engine::build(&epl, |_| epl::WithLoss::new(net.clone(), Net::loss), &sgd())?;
        batches(epl.place()).take(10).map(|batch| Ok(net.train_batch(&batch, 0.001)?.loss)).collect()
    })
}

fn main() -> epl::Result<()> {
    let device = Device::default().autodiff();
    device.seed(0);
    let net = Net::new(&device);
    let alone = plain(net.clone());
    let (one, two) = (parallel(1, &net)?, parallel(2, &net)?);
    println!("step   plain Burn   one rank     two ranks");
    for (step, loss) in alone.iter().enumerate() {
        println!("{step:4}   {loss:.8}   {:.8}   {:.8}", one[0][step], two[0][step]);
    }
    assert_eq!(one[0], alone, "to the bit");
    assert!(two[0].iter().zip(&alone).all(|(a, b)| (a - b).abs() <= 1e-6 * b), "to 1e-6");
    Ok(())
}
