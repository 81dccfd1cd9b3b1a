//! How the programs are trained: by a loop of plain Burn, and by EPL.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::store::{BurnpackStore, ModuleSnapshot};
use burn::tensor::{Device, Tensor};
use epl::prelude::*;
use epl::tensors::{AssignMap, BurnRecord};

/// The learning rate.
pub const RATE: f64 = 0.01;

/// What plain Burn saves of a net.
pub fn record<N: Module>(net: &N) -> epl::Result<BurnRecord> {
    let mut saved = BurnpackStore::from_bytes(None);
    net.save_into(&mut saved).map_err(|error| epl::Error::invalid(format!("the net was not saved: {error:?}")))?;
    let bytes = saved.get_bytes().map_err(|error| epl::Error::invalid(format!("the net was not saved: {error:?}")))?;
    BurnRecord::of(&mut BurnpackStore::from_bytes(Some(bytes)))
}

/// A step of plain Burn: the net behind it, and the loss before.
pub fn step<N: Module, B>(
    net: N,
    optimizer: &mut ModuleOptimizer,
    batch: &B,
    loss: impl Fn(&N, &B) -> Tensor<1>,
) -> (N, f64) {
    let loss = loss(&net, batch);
    let value = loss.clone().into_scalar::<f32>();
    let gradients = GradientsParams::from_grads(loss.backward(), &net);
    (optimizer.step(RATE, net, gradients), value.into())
}

/// The losses of plain Burn.
pub fn plain<N: Module, B>(mut net: N, batches: &[B], loss: impl Fn(&N, &B) -> Tensor<1>) -> Vec<f64> {
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    for batch in batches {
        let (next, value) = step(net, &mut optimizer, batch, &loss);
        net = next;
        losses.push(value);
    }
    losses
}

/// The losses of EPL, as every rank sees them: from a record that plain Burn saved, under whatever the configuration says.
pub fn parallel<M: Model<Batch: epl::data::Rows>>(
    config: &Config,
    record: &BurnRecord,
    chain: impl Fn(&Place) -> M + Sync,
    batches: impl Fn(&Device) -> Vec<M::Batch> + Sync,
) -> epl::Result<Vec<Vec<f64>>> {
    epl::launch(config, |epl| {
        let net = epl.build(&chain)?.assign(record, &AssignMap::identity())?;
        let settings = EngineSettings::from_config(epl.config());
        let mut net = Engine::new(net, &AdamWConfig::new(), settings)?;
        batches(epl.place()).iter().map(|batch| Ok(net.train_batch(batch, RATE)?.loss)).collect()
    })
}
