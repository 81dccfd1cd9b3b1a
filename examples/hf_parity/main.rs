//! Checks an imported model: its logits, loss and every gradient against what Hugging Face computed.
//!
//! ```text
//! cargo run --release --example hf_parity -- fixtures/transformers/t5 fixtures/transformers/bert-qa --data 2
//! cargo run --release --example hf_parity -- fixtures/transformers/gpt2 fixtures/transformers/llama --stages 2
//! cargo run --release --example hf_parity -- fixtures/transformers/switch --expert 2 --export out/exported
//! python tools/check_export.py out/exported/switch
//! ```
//!
//! `--export` writes what the model is after a step on all ranks, for `transformers` to load.
//!
//! A folder holds what `save_pretrained` writes, and `io.safetensors` with inputs, logits, loss and gradients
//! (`tools/make_fixtures.py` makes such folders). Exit 0: all errors are at most 1e-4. Exit 1: one is larger, or a
//! folder cannot be read. Exit 3: an architecture is not supported yet. Error of a tensor: max|a − b| ÷ max|b|.

mod bert;
mod decoder;
mod images;
mod parity;
mod t5;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use epl::models::huggingface;
use parity::{Errors, Layout};

/// The largest error that passes.
const TOLERANCE: f64 = 1e-4;

/// Compare imported models with what Hugging Face computed.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Folders with config.json, model.safetensors and io.safetensors
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Replicas of the model
    #[arg(long, value_name = "D")]
    data: Option<usize>,
    /// Ranks that share each split layer
    #[arg(long, value_name = "T", default_value_t = 1)]
    tensor: usize,
    /// Data ranks that share the experts; alone, it means as many replicas
    #[arg(long, value_name = "E", default_value_t = 1)]
    expert: usize,
    /// Pipeline stages
    #[arg(long, value_name = "P", default_value_t = 1)]
    stages: usize,
    /// Makes a step under that layout, and exports each model into a folder of this one, with inputs and logits
    #[arg(long, value_name = "DIR")]
    export: Option<PathBuf>,
}

enum Verdict {
    Passed,
    Failed,
    Unsupported,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let Args { data, tensor, expert, stages, .. } = args;
    let layout = Layout { data: data.unwrap_or(expert), tensor, expert, stages };
    let mut verdicts = Vec::new();
    for folder in &args.folders {
        let name = folder.display();
        let export = args.export.as_ref().map(|to| to.join(folder.file_name().unwrap_or_default()));
        verdicts.push(match parity::check(folder, &layout, export.as_deref()) {
            Ok(errors) => judge(&name.to_string(), &errors),
            Err(error) => match error.downcast_ref::<huggingface::Error>() {
                Some(huggingface::Error::Unsupported { model_type, .. }) => {
                    println!("{name}: {model_type} is not supported yet");
                    Verdict::Unsupported
                }
                _ => {
                    println!("{name}: {error}");
                    Verdict::Failed
                }
            },
        });
    }
    if verdicts.iter().any(|verdict| matches!(verdict, Verdict::Failed)) {
        return ExitCode::FAILURE;
    }
    match verdicts.iter().any(|verdict| matches!(verdict, Verdict::Unsupported)) {
        true => ExitCode::from(3),
        false => ExitCode::SUCCESS,
    }
}

fn judge(folder: &str, errors: &Errors) -> Verdict {
    let (name, gradient) = &errors.gradient;
    let flops = errors.flops.map_or("unknown".to_string(), |flops| format!("{flops:.0}"));
    println!(
        "{folder}: logits {:.1e}, loss {:.1e}, gradients {gradient:.1e} (in {name}, of {}), flops {flops}",
        errors.logits, errors.loss, errors.compared
    );
    // A NaN is no error of at most the tolerance.
    let passed = [errors.logits, errors.loss, *gradient].iter().all(|error| *error <= TOLERANCE);
    if passed { Verdict::Passed } else { Verdict::Failed }
}
