//! Options of a search. What is not of a model is measured once in this process: collectives, and an update of SGD and of AdamW.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use epl_core::auto::Sample;
use epl_core::config::Layers;
use epl_core::{Config, Place, WithLoss, launch};

/// The options; a search that says nothing of `auto.calibration` has a file of its own, with what is shared in it.
pub fn config(options: &[(&str, &str)]) -> Config {
    let is_given = |asked: &str| options.iter().any(|(key, _)| *key == asked);
    let searches = options.contains(&("auto.auto_parallel", "true")) && !is_given("pipeline.num_stages");
    if !searches || is_given("auto.calibration") {
        return resolved(options);
    }
    static SHARED: LazyLock<PathBuf> = LazyLock::new(shared);
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let own = SHARED.with_extension(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
    std::fs::copy(&*SHARED, &own).unwrap();
    resolved(&[options, &[("auto.calibration", &*own.display().to_string())]].concat())
}

fn resolved(options: &[(&str, &str)]) -> Config {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    Layers::new().command_line(said).unwrap().resolve().unwrap()
}

/// Measures on two ranks, before the first tests would all do so at once.
fn shared() -> PathBuf {
    // Not removed: nothing ends with the process.
    let file = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep().join("costs.json");
    let name = file.display().to_string();
    let options = [("cluster.ranks", "2"), ("auto.auto_parallel", "true"), ("auto.calibration", &*name)];
    let model = |at: &Place| {
        let linear = LinearConfig::new(1, 1).init(at);
        WithLoss::new(linear, |linear: &Linear, rows: &Tensor<2>| linear.forward(rows.clone()).mean())
    };
    let sample = || Sample::new(2, |rows, device: &Device| Tensor::<2>::ones([rows, 1], device));
    let measured = launch(&resolved(&options), |epl| {
        epl.cost_table(model, &SgdConfig::new(), sample())?;
        epl.cost_table(model, &AdamWConfig::new(), sample()).map(drop)
    });
    measured.unwrap();
    file
}
