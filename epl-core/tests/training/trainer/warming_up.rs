//! The engine says when its rank is warmed up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use burn::data::dataloader::batcher::Batcher;
use epl_comm::{Buffer, Call, Error, Operation, ProcessGroup, Rank, Transport};
use epl_core::config::HalfDtype;
use epl_core::testing::{config, in_half};
use epl_core::{Engine, EngineSettings, Epl, Mesh, MicroBatch, Result};

use crate::trainer::net::{Net, Pairs, optimizer};

/// A world of one rank, in all its groups, that counts how often it is told.
#[derive(Debug, Default)]
struct Alone {
    calls: AtomicU64,
    told: Arc<AtomicUsize>,
}

impl Alone {
    fn part(&self) -> Arc<dyn Transport> {
        Arc::new(Self { calls: AtomicU64::new(0), told: self.told.clone() })
    }
}

impl Transport for Alone {
    fn name(&self) -> &str {
        "world"
    }

    fn member(&self) -> usize {
        0
    }

    fn members(&self) -> &[Rank] {
        &[Rank(0)]
    }

    fn reserve(&self, _operation: Operation) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn reserve_stage(&self, whole: Operation, _stage: Operation) -> u64 {
        self.reserve(whole)
    }

    fn moves_rows(&self) -> bool {
        false
    }

    fn run(&self, _call: Box<Call>, buffer: Buffer) -> Result<Buffer, Error> {
        Ok(buffer)
    }

    fn split(&self, _: u64, _: &str, _: usize, _: usize) -> Result<Arc<dyn Transport>, Error> {
        Ok(self.part())
    }

    fn split_by(&self, _: u64, _: &str, _: &[(usize, usize)]) -> Result<Arc<dyn Transport>, Error> {
        Ok(self.part())
    }

    fn link(&self, _: usize, _: usize) -> Result<Arc<dyn Transport>, Error> {
        Ok(self.part())
    }

    fn lanes(&self) -> usize {
        usize::MAX
    }

    fn trim(&self) {}

    fn warmed_up(&self) {
        self.told.fetch_add(1, Ordering::Relaxed);
    }

    fn sleep(&self, _: Operation, _: u64, sleep: &mut dyn FnMut()) {
        sleep();
    }

    fn abort(&self, _: &Error) {}
}

/// Only an update loads the kernels of the optimizer: what is dropped or skipped is no first step.
#[test]
fn after_the_first_update() -> Result<()> {
    for (loss_scale, is_skipped) in [(1e30, true), (1.0, false)] {
        let config = in_half(config(1, 1, 1), HalfDtype::F16).with("amp.loss_scale", loss_scale)?;
        let world = Alone::default();
        let told = world.told.clone();
        let mesh = Mesh::from_config(&config)?;
        let epl = Epl::new(config, mesh, ProcessGroup::new(Arc::new(world)), None)?;
        let settings = EngineSettings::from_config(epl.config());
        let mut engine = Engine::new(epl.build(Net::new)?, &optimizer(), settings)?;
        let batch = || vec![MicroBatch::new(Pairs.batch(vec![[0.1, 0.2, 0.3]], epl.place().device()), [0])];
        engine.accumulate(batch())?;
        assert_eq!(told.load(Ordering::Relaxed), 0);
        for step in 1..=2 {
            assert_eq!(engine.step(batch(), 0.01)?.skipped, is_skipped);
            assert_eq!(told.load(Ordering::Relaxed), if is_skipped { 0 } else { step });
        }
    }
    Ok(())
}
