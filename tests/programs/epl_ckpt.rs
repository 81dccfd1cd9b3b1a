//! `epl-ckpt` on real checkpoints: lists, verifies, finds differences, and says so by its exit code.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::store::{BurnpackStore, ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Device, Tensor};
use epl::models::vit::{self, ViTConfig};
use epl::tensors::{StoredParameters, WholeTensors};
use epl::{Engine, MicroBatch, WithLoss, launch, testing};

/// Trains a layer for some steps on so many ranks, and saves it.
fn trained(ranks: usize, steps: u64, folder: &Path) {
    let ran = launch(&testing::config(ranks, 1, 1), |epl| {
        let loss = |net: &Linear, x: &Tensor<2>| net.forward(x.clone()).powi_scalar(2).mean();
        let layer = |at: &epl::Place| WithLoss::new(LinearConfig::new(4, 6).init(at), loss);
        let mut engine = Engine::build(&epl, layer, &AdamWConfig::new())?;
        for step in 0..steps {
            let rank = epl.context().world().rank() as u64;
            let x = Tensor::ones([1, 4], epl.place().device());
            engine.step(vec![MicroBatch::new(x, [step * ranks as u64 + rank])], 0.01)?;
        }
        engine.save(folder)
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

fn run(arguments: &[&str], paths: &[&Path]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_epl-ckpt")).args(arguments).args(paths).output().expect("it can be started");
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn what_a_checkpoint_holds_is_listed() {
    let out = tempfile::tempdir().expect("a folder for a moment");
    let folder = out.path().join("checkpoints/step-2");
    fs::create_dir_all(out.path().join("checkpoints")).expect("a folder can be made");
    trained(2, 2, &folder);
    for path in [&folder, out.path(), &out.path().join("checkpoints")] {
        let (code, text) = run(&["list"], &[path]);
        assert!(code == Some(0) && text.contains("2 steps · 6 tensors"), "{code:?} {text}");
    }
    let (code, text) = run(&["list", "--tensors"], &[&folder]);
    let expected =
        ["model/weight  F32 [4, 6]", "optimizer/weight/", "model/: 2 tensors, 30 elements, 120 bytes", "burn 0.22.1"];
    assert!(code == Some(0) && expected.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn damage_is_found() {
    let out = tempfile::tempdir().expect("a folder for a moment");
    let folder = out.path().join("checkpoints/step-1");
    fs::create_dir_all(out.path().join("checkpoints")).expect("a folder can be made");
    trained(1, 1, &folder);
    let (code, text) = run(&["verify"], &[out.path()]);
    assert!(code == Some(0) && text.starts_with("whole: "), "{text}");
    let file = folder.join("rank-00000.safetensors");
    let mut bytes = fs::read(&file).expect("the file is there");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).expect("the file can be written");
    let (code, text) = run(&["verify"], &[out.path()]);
    assert!(code == Some(1) && text.contains("rank-00000.safetensors") && text.contains("tensor `"), "{code:?} {text}");
    // Where the index is damaged, too; of a checkpoint that is named there is nothing else to tell.
    fs::write(folder.join("index.json"), "{").expect("the file can be written");
    for path in [out.path(), &out.path().join("checkpoints")] {
        let (code, text) = run(&["list"], &[path]);
        assert!(code == Some(1) && text.starts_with("damaged: ") && text.contains("step-1"), "{code:?} {text}");
    }
    let (code, text) = run(&["list"], &[&folder]);
    assert!(code == Some(2) && text.contains("index.json"), "{code:?} {text}");
    let (code, text) = run(&["verify"], &[&out.path().join("nowhere")]);
    assert!(code == Some(2) && text.contains("no checkpoint"), "{code:?} {text}");
}

/// A crash between the two renames that replace a checkpoint leaves the one that was there under another name.
#[test]
fn what_a_crash_left_is_found_as_the_loader_finds_it() {
    let out = tempfile::tempdir().expect("a folder for a moment");
    let checkpoints = out.path().join("checkpoints");
    fs::create_dir_all(&checkpoints).expect("a folder can be made");
    let [one, two, old] = ["step-1", "step-2", ".step-2.old"].map(|name| checkpoints.join(name));
    trained(1, 1, &one);
    trained(1, 2, &two);
    fs::rename(&two, &old).expect("the name is free");
    for path in [out.path(), &checkpoints] {
        let (code, text) = run(&["verify"], &[path]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(code == Some(0) && lines.len() == 2, "{code:?} {text}");
        assert!(lines[0].contains("step-1 · 1 steps") && lines[1].contains(".step-2.old · 2 steps"), "{text}");
    }
    // By the name that it had, too, and wherever one is named.
    let (code, text) = run(&["list"], &[&two]);
    assert!(code == Some(0) && text.contains(".step-2.old · 2 steps"), "{code:?} {text}");
    let (code, text) = run(&["diff"], &[&one, &two]);
    assert!(code == Some(1) && text.contains("`engine.steps` 1, now 2"), "{code:?} {text}");
    let (code, text) = run(&["export"], &[&two, &out.path().join("net.safetensors")]);
    assert!(code == Some(0), "{code:?} {text}");
    // Where there is a new one, the old one is nobody's.
    trained(1, 3, &out.path().join("new"));
    fs::rename(out.path().join("new"), &two).expect("the name is free");
    let (code, text) = run(&["list"], &[out.path()]);
    assert!(code == Some(0) && text.contains("step-2 · 3 steps") && !text.contains(".old"), "{code:?} {text}");
    // What is in the making is none.
    fs::remove_dir_all(&old).expect("it is there");
    fs::rename(&two, checkpoints.join(".step-2.partial")).expect("the name is free");
    let (code, text) = run(&["list"], &[&checkpoints]);
    assert!(code == Some(0) && text.contains("step-1") && !text.contains("step-2"), "{code:?} {text}");
    let (code, text) = run(&["verify"], &[&two]);
    assert!(code == Some(2) && text.contains("no checkpoint"), "{code:?} {text}");
}

/// Plain Burn loads the file; what `transformers` loads is tested where it is made.
#[test]
fn parameters_are_exported_whole() {
    let out = tempfile::tempdir().expect("a folder for a moment");
    let folder = out.path().join("step-1");
    trained(2, 1, &folder);
    let stored = StoredParameters::open(&folder).expect("it is there").read_whole("weight").expect("it is in there");
    let mut loaded = Vec::new();
    for name in ["net.safetensors", "net.bpk"] {
        let file = out.path().join(name);
        let (code, text) = run(&["export"], &[&folder, &file]);
        assert!(code == Some(0) && text.contains("written"), "{code:?} {text}");
        let mut net = LinearConfig::new(4, 6).init(&Device::default());
        match name.ends_with("bpk") {
            true => net.load_from(&mut BurnpackStore::from_file(&file)).map(|_| ()).expect("Burn loads it"),
            false => net.load_from(&mut SafetensorsStore::from_file(&file)).map(|_| ()).expect("Burn loads it"),
        }
        loaded.push(net.weight.val().into_data());
    }
    assert!(loaded.iter().all(|weight| *weight == stored));
    let (code, text) = run(&["export"], &[&folder, &out.path().join("net")]);
    assert!(code == Some(2) && text.contains("--as"), "{code:?} {text}");
    let (code, text) = run(&["export", "--as", "t5"], &[&folder, &out.path().join("net")]);
    assert!(code == Some(2) && text.contains("--config"), "{code:?} {text}");
}

/// Of each model the configuration is that of its crate, and what comes out is what its reader reads.
#[test]
fn a_vit_is_exported_as_a_folder() {
    let out = tempfile::tempdir().expect("a folder for a moment");
    let [checkpoint, config, folder] = ["step-0", "config.json", "vit"].map(|name| out.path().join(name));
    let shape = ViTConfig::new(3).with_image_size(8).with_patch_size(4).with_d_model(8).with_d_ff(8);
    let shape = shape.with_heads(2).with_layers(1);
    launch(&testing::config(1, 1, 1), |epl| {
        Engine::build(&epl, |at| shape.init(at), &AdamWConfig::new())?.save(&checkpoint)
    })
    .unwrap_or_else(|error| panic!("{error}"));
    fs::write(&config, shape.to_string()).expect("the file can be written");
    let arguments = ["export", "--as", "vit", "--config", config.to_str().expect("it is text")];
    let (code, text) = run(&arguments, &[&checkpoint, &folder]);
    assert!(code == Some(0) && text.contains("written"), "{code:?} {text}");
    let (weights, found) = vit::open(&folder).expect("it is a ViT");
    assert_eq!(found, shape);
    let stored = StoredParameters::open(&checkpoint).expect("it is there");
    assert_eq!(weights.read("vit.layernorm.weight").ok(), stored.read_whole("norm.gamma").ok());
    // Another model's files are not mixed with these.
    for file in ["config.json", "model.safetensors", "pytorch_model.bin"] {
        let other = out.path().join(format!("other-{file}"));
        fs::create_dir(&other).expect("a folder can be made");
        fs::write(other.join(file), "another").expect("the file can be written");
        let (code, text) = run(&arguments, &[&checkpoint, &other]);
        assert!(code == Some(2) && text.contains(&format!("it holds a model already ({file})")), "{code:?} {text}");
        assert_eq!(fs::read_to_string(other.join(file)).ok().as_deref(), Some("another"));
        assert_eq!(fs::read_dir(&other).expect("it is there").count(), 1);
    }
}

#[test]
fn layouts_make_no_difference_and_steps_do() {
    let out = tempfile::tempdir().expect("a folder for a moment");
    let [one, two, more] = ["one", "two", "more"].map(|name| out.path().join(name));
    // Before the first step there is nothing that layouts could round in another way.
    trained(1, 0, &one);
    trained(2, 0, &two);
    trained(1, 1, &more);
    let (code, text) = run(&["diff"], &[&one, &two]);
    assert!(code == Some(0) && text.starts_with("no difference"), "{code:?} {text}");
    let (code, text) = run(&["diff"], &[&one, &more]);
    let expected = ["`model/weight` 24 of 24 elements", "only in the second", "`engine.steps` 0, now 1"];
    assert!(code == Some(1) && expected.iter().all(|part| text.contains(part)), "{code:?} {text}");
}
