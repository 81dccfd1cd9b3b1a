//! Files far larger than the bound are updated within it, as the system counts.
#![cfg(target_os = "linux")]

use burn::optim::AdamWConfig;
use burn::tensor::DType;
use epl_core::offload::{Gradients, HostOptimizer, Ledger, OnePass, Storage, Update};

const BOUND: u64 = 16 << 20;
/// 64 MiB in each of four files.
const LEN: usize = 16 << 20;

/// A number of bytes in `/proc/self/status`.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_step_over_files_stays_within_the_bound() {
    epl_testing::alone(|| {
        let settings = serde_json::to_value(AdamWConfig::new()).unwrap();
        let OnePass::Yes(optimizer) = HostOptimizer::from_settings("AdamW", &settings).unwrap() else {
            panic!("AdamW updates in one pass");
        };
        let ledger = Ledger::new();
        let storage = Storage::files(std::env::temp_dir(), BOUND, &ledger).unwrap();
        let mut parameters = storage.zeros(LEN, DType::F32).unwrap();
        let mut gradients = storage.zeros(LEN, DType::F32).unwrap();
        let mut state = optimizer.state(&storage, DType::F32, vec![0..1000, 1000..LEN]).unwrap();
        assert_eq!(ledger.files().now, 4 * LEN as u64 * 4);

        let mut step = || {
            gradients.scale(0..LEN, 0.5).unwrap();
            let update = Update { rate: 0.1, factor: 1.0 };
            optimizer.step(&mut parameters, Gradients::Array(&gradients, &[0, 1]), &mut state, update).unwrap();
            gradients.sum_of_squares(0..LEN).unwrap();
        };
        // After a step code and threads are there, and only windows come and go. The system keeps the peak; it begins anew.
        step();
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = status("VmRSS");
        step();
        step();
        let (mapped, resident) = (ledger.mapped().most, status("VmHWM") - before);
        assert!(mapped > BOUND / 2 && mapped <= BOUND, "{mapped} bytes were mapped, bound {BOUND}");
        // At most the windows of one step, half of the bound, are touched; lists of blocks and counters come on top.
        assert!(resident <= BOUND, "{resident} bytes were resident, {mapped} mapped, bound {BOUND}");
        assert!(resident >= BOUND / 4, "{resident} bytes were resident: no window is among them");
    });
}
