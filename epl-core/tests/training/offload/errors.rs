//! What is refused, with both numbers.

use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::DType;
use epl_core::Result;
use epl_core::offload::{Gradients, HostOptimizer, Ledger, Storage, Update};
use serde_json::json;

use crate::offload::burn::{one_pass, tensor};
use crate::offload::{LEAST, tiers};

/// The error has all these words.
fn assert_says<T>(result: Result<T>, words: &[&str]) {
    let message = result.err().expect("an error").to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn folders() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let name = missing.display().to_string();
    assert_says(Storage::files(&missing, LEAST, &Ledger::new()), &[&name, "missing; create it"]);
    let file = folder.path().join("file");
    std::fs::write(&file, "text").unwrap();
    assert_says(Storage::files(&file, LEAST, &Ledger::new()), &["create it, or name another"]);
    let least = LEAST.to_string();
    assert_says(Storage::files(folder.path(), LEAST - 1, &Ledger::new()), &[&(LEAST - 1).to_string(), &least, "raise"]);
    Storage::files(folder.path(), LEAST, &Ledger::new()).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_takes_no_file() {
    // The superuser writes everywhere but here.
    assert_says(Storage::files("/proc/self", LEAST, &Ledger::new()), &["/proc/self", "no file can be made", "another"]);
}

#[test]
fn nothing_is_left_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::files(folder.path(), LEAST, &Ledger::new()).unwrap();
    let mut array = storage.zeros(100_000, DType::F32).unwrap();
    array.scale(0..100_000, 2.0).unwrap();
    let taken = std::panic::catch_unwind(move || {
        let _array = array;
        panic!("a step fails");
    });
    assert!(taken.is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn types_and_lengths() {
    for storage in tiers() {
        assert_says(storage.zeros(10, DType::I32), &["10 elements", "i32", "f64, f32, f16 or bf16"]);
        assert_says(storage.zeros(usize::MAX / 2, DType::F32), &[&(usize::MAX / 2).to_string(), "too large"]);
        let mut array = storage.zeros(10, DType::F32).unwrap();
        assert_says(array.write(0, &tensor(&[1.0], DType::F64)), &["f64", "f32"]);
        assert_says(array.write(5, &tensor(&[1.0; 6], DType::F32)), &["5..11", "10"]);
        assert_says(array.add(10, &tensor(&[1.0], DType::F32)), &["10..11", "10"]);
        assert_says(array.data(9..11), &["9..11", "10"]);
        assert_says(array.sum_of_squares(0..11), &["0..11", "10"]);
        assert_says(array.window::<f64>(0..10).map(drop), &["f32", "f64"]);
        let mut short = storage.zeros(10, DType::BF16).unwrap();
        assert_says(short.sum_of_squares(0..10), &["bf16", "f32 or f64"]);
        assert_says(short.scale(0..10, 2.0), &["bf16", "f32 or f64"]);
        assert_says(short.add(0, &tensor(&[1.0], DType::BF16)), &["bf16", "f32 or f64"]);
    }
}

#[test]
fn windows_that_pass_the_bound() {
    let storage = Storage::files(std::env::temp_dir(), LEAST, &Ledger::new()).unwrap();
    let array = storage.zeros(1_000_000, DType::F32).unwrap();
    assert_says(array.window::<f32>(0..1_000_000).map(drop), &["4000000 bytes", &LEAST.to_string(), "raise the bound"]);
    // Two that fit alone, and not together.
    let first = array.window::<f32>(0..400_000).unwrap();
    assert_says(array.window::<f32>(400_000..800_000).map(drop), &["1600000 bytes", "1731072", &LEAST.to_string()]);
    drop(first);
    array.window::<f32>(400_000..800_000).unwrap();
}

#[test]
fn updates_of_arrays_that_do_not_fit() {
    let [host, files] = tiers();
    let optimizer = one_pass(&AdamWConfig::new());
    assert_says(optimizer.state(&host, DType::BF16, vec![0..4]), &["bf16", "f32 or f64"]);
    assert_says(optimizer.state(&host, DType::F32, vec![0..4, 3..5]), &["3..5", "ends at 4"]);
    let mut state = optimizer.state(&host, DType::F32, vec![0..4, 4..9]).unwrap();
    let mut parameters = host.zeros(9, DType::F32).unwrap();
    let update = Update { rate: 0.1, factor: 1.0 };
    let (four, five) = (tensor(&[1.0; 4], DType::F32), tensor(&[1.0; 5], DType::F32));
    let mut step = |gradients: &[_]| optimizer.step(&mut parameters, Gradients::Tensors(gradients), &mut state, update);
    assert_says(step(&[(1, four.clone())]), &["gradient of parameter 1 has 4", "has 5"]);
    assert_says(step(&[(0, tensor(&[1.0; 4], DType::F64))]), &["f64", "f32"]);
    assert_says(step(&[(1, five.clone()), (0, four.clone())]), &["[1, 0]", "in order"]);
    assert_says(step(&[(0, four.clone()), (2, five.clone())]), &["parameter 2", "2 parameters"]);
    step(&[(0, four), (1, five)]).unwrap();
    let gradients = host.zeros(8, DType::F32).unwrap();
    let step = optimizer.step(&mut parameters, Gradients::Array(&gradients, &[0]), &mut state, update);
    assert_says(step, &["gradients have 8", "has 9"]);
    let mut short = host.zeros(8, DType::F32).unwrap();
    assert_says(
        optimizer.step(&mut short, Gradients::Tensors(&[]), &mut state, update),
        &["parameters have 8", "has 9"],
    );
    let other = one_pass(&SgdConfig::new());
    assert_says(other.step(&mut parameters, Gradients::Tensors(&[]), &mut state, update), &["AdamW", "Sgd"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = Storage::files(elsewhere.path(), LEAST, &Ledger::new()).unwrap();
    let mut state = optimizer.state(&files, DType::F32, vec![0..9]).unwrap();
    let mut parameters = elsewhere.zeros(9, DType::F32).unwrap();
    let step = optimizer.step(&mut parameters, Gradients::Tensors(&[]), &mut state, update);
    assert_says(step, &["two storages", "make them in one"]);
}

#[test]
fn settings() {
    let settings = json!({"momentum": null, "weight_decay": null, "gradient_clipping": null});
    HostOptimizer::from_settings("SGD", &settings).unwrap();
    assert_says(HostOptimizer::from_settings("AdamW", &settings), &["AdamW", "unknown field"]);
    assert_says(HostOptimizer::from_settings("SGD", &json!({"momentum": {"nesterov": 1}})), &["SGD"]);
}
