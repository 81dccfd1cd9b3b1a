//! Steps on NdArray, whose memory is not the host's for EPL, as a GPU's is not. It is here because this program is compiled with it.

use std::collections::BTreeMap;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use epl::models::t5::T5Batcher;
use epl::{Engine, EngineSettings, MicroBatch, launch};

use crate::parity::{Case, dense, layout, moe};

/// The losses and metrics of two steps of two micro-batches, and how often each has read from the device.
fn steps(case: &Case) -> (Vec<f64>, Vec<u64>, Vec<BTreeMap<String, Vec<f64>>>) {
    let ran = launch(&layout(1, 1, 1, 2).config(), |epl| {
        let built = epl.build(|at| case.model.init(at))?;
        let settings = EngineSettings { clip_norm: Some(1.0), ..EngineSettings::from_config(epl.config()) };
        let mut engine = Engine::new(built, &AdamWConfig::new(), settings)?;
        let (mut losses, mut reads, mut metrics) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            let before = epl.context().device_reads();
            let batch = |pairs: &[_], first: u64| {
                let samples = (first..first + pairs.len() as u64).collect::<Vec<_>>();
                let batch = T5Batcher::new(&case.model).batch(pairs.to_vec(), epl.place().device());
                MicroBatch::new(batch, samples)
            };
            let (one, other) = case.pairs.split_at(3);
            let report = engine.step(vec![batch(one, 0), batch(other, 3)], 1e-3)?;
            losses.push(report.loss);
            metrics.push(report.metrics);
            reads.push(epl.context().device_reads() - before);
        }
        Ok((losses, reads, metrics))
    });
    ran.unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// The terms of all losses, the squares of all gradients and what layers count are one read, at the end of the step, with layers
/// of experts and dropout, too: routes are made on the device, and masks drawn there.
#[test]
fn a_step_reads_its_numbers_once() {
    epl_testing::alone(|| {
        let cases = [dense(), moe()];
        let on_host: Vec<_> = cases.iter().map(steps).collect();
        // SAFETY: this process runs one test, on this thread, and its ranks have ended.
        unsafe { std::env::set_var("BURN_DEVICE", "ndarray") };
        for (case, (on_host, no_reads, counts_on_host)) in cases.iter().zip(on_host) {
            let (losses, reads, counts) = steps(case);
            assert_eq!((reads, no_reads), (vec![1; 2], vec![0; 2]));
            assert_eq!(counts, counts_on_host);
            assert_eq!(counts[0].is_empty(), case.model.moe.is_none());
            for (loss, on_host) in losses.iter().zip(on_host) {
                assert!((loss - on_host).abs() < 1e-5 * on_host, "{loss} on NdArray, {on_host} on Flex");
            }
        }
    });
}
