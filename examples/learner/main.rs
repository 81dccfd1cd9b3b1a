//! Burn's supervised learner on several ranks: two programs of the shapes of Burn's own examples, with data made by rule, each
//! beside the same on one rank. A test counts the lines between the two, and compares metrics and parameters.
//!
//! `cargo run --release --example learner -- mnist cluster.ranks=2 zero.level=v1`
//!
//! With `--plain` on one rank, as Burn has it; built with `--features tui`, in Burn's display. Metrics are in `out/learner`
//! then, one file for each split, epoch and metric.

mod digits;
mod words;

use std::path::PathBuf;

use burn::tensor::Device;
use epl::Config;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let is_plain = words.iter().position(|word| word == "--plain").map(|at| words.remove(at)).is_some();
    let which =
        if words.first().is_some_and(|word| !word.contains('=')) { words.remove(0) } else { "mnist".to_string() };
    let mut config = Config::load(None, words)?;
    if config.cluster.ranks.is_none() {
        config = config.with("cluster.ranks", 2)?;
    }
    let (device, folder) = (Device::default().autodiff(), PathBuf::from("out/learner").join(&which));
    device.seed(config.train.seed);
    std::fs::create_dir_all(&folder)?;
    let (epochs, resume) = (20, None);
    let error = match which.as_str() {
        "mnist" => {
            let run = digits::Run { folder, net: digits::Net::new(&device), epochs, resume };
            if is_plain { digits::plain(run).error } else { digits::parallel(run, &config)?.error }
        }
        "text" => {
            let run = words::Run { folder, net: words::Net::new(&device), epochs, resume };
            if is_plain { words::plain(run).error } else { words::parallel(run, &config)?.error }
        }
        other => return Err(format!("there is no program `{other}`; give `mnist` or `text`").into()),
    };
    error.map_or(Ok(()), |error| Err(error.to_string().into()))
}
