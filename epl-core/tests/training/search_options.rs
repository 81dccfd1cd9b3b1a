//! Options of a search. What is not of a model is measured once: collectives, and an update of SGD and of AdamW.

use std::path::Path;
use std::sync::LazyLock;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use epl_core::auto::Sample;
use epl_core::config::Layers;
use epl_core::{Config, Place, WithLoss, launch};

/// The options; a search that says nothing of `auto.calibration` reads and writes the file that these tests share.
pub fn config(options: &[(&str, &str)]) -> Config {
    let is_given = |asked: &str| options.iter().any(|(key, _)| *key == asked);
    let searches = options.contains(&("auto.auto_parallel", "true")) && !is_given("pipeline.num_stages");
    if !searches || is_given("auto.calibration") {
        return resolved(options);
    }
    static SHARED: LazyLock<String> = LazyLock::new(shared);
    resolved(&[options, &[("auto.calibration", &*SHARED)]].concat())
}

fn resolved(options: &[(&str, &str)]) -> Config {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    Layers::new().command_line(said).unwrap().resolve().unwrap()
}

/// Measures on two ranks, before the first tests would all do so at once.
fn shared() -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("costs.json").display().to_string();
    // An earlier run measured on another day.
    let _ = std::fs::remove_file(&file);
    let options = [("cluster.ranks", "2"), ("auto.auto_parallel", "true"), ("auto.calibration", &*file)];
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
