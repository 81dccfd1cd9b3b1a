//! Checkpoints that are not as they were written: damaged, or made by somebody who means no good.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epl_core::checkpoint::durable::FileSystem;
use flate2::Crc;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::ALLOCATOR;
use crate::durability::{check, save_on_two};

/// Makes a whole checkpoint; its folder.
fn whole(out: &Path) -> PathBuf {
    assert!(save_on_two(Arc::new(FileSystem), out, 1, &[1]).is_empty());
    let folder = out.join("checkpoints/step-1");
    check(&folder).unwrap();
    folder
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// The message with which a checkpoint is refused; none where what it holds is what was saved. What it takes is bounded by
/// what its files have.
fn found(folder: &Path, what: &str) -> Option<String> {
    let bytes: u64 = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    let before = ALLOCATOR.live();
    ALLOCATOR.look_anew();
    let found = catch_unwind(|| check(folder)).unwrap_or_else(|_| panic!("{what}: it panicked"));
    let most = ALLOCATOR.most() - before;
    // A parsed index takes some times its text.
    assert!(most < 64 * bytes as i64 + (8 << 20), "{what}: {most} bytes for files of {bytes}");
    found.err().map(|error| error.to_string())
}

fn refused(folder: &Path, what: &str) -> String {
    found(folder, what).unwrap_or_else(|| panic!("{what}: it was taken for a checkpoint"))
}

#[test]
fn any_bit_and_any_length() {
    epl_testing::alone(|| {
        let folder = tempdir().unwrap();
        let good = whole(folder.path());
        let files: Vec<PathBuf> = fs::read_dir(&good).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 3, "{files:?}");
        let (mut random, mut tensors) = (ChaCha8Rng::seed_from_u64(3), 0);
        for number in 0..300 {
            let file = &files[number % files.len()];
            let bytes = fs::read(file).unwrap();
            let mut other = bytes.clone();
            let what = match number % 4 {
                3 => {
                    other.truncate(random.random_range(0..bytes.len()));
                    format!("{} bytes of {}", other.len(), bytes.len())
                }
                2 if number % 8 == 2 => {
                    other.extend_from_slice(&bytes[..random.random_range(1..bytes.len())]);
                    "more bytes".to_string()
                }
                _ => {
                    let (at, bit) = (random.random_range(0..bytes.len()), random.random_range(0..8));
                    other[at] ^= 1 << bit;
                    format!("bit {bit} of byte {at}")
                }
            };
            fs::write(file, other).unwrap();
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let message = refused(&good, &format!("{name}: {what}"));
            assert!(message.contains(&name), "{name}: {what}: {message}");
            // The header names no tensor, and neither does a length.
            tensors += usize::from(message.contains("tensor `"));
            fs::write(file, bytes).unwrap();
        }
        assert!(tensors > 10, "{tensors} times a tensor was named");
        check(&good).unwrap();
    });
}

/// Writes an index with the checksum that it then has.
fn write_index(folder: &Path, index: &Value) {
    let raw: Box<RawValue> = to_raw_value(index).unwrap();
    let mut crc = Crc::new();
    crc.update(raw.get().as_bytes());
    let sealed = format!("{{\"crc32\":{},\"index\":{}}}", crc.sum(), raw.get());
    fs::write(folder.join("index.json"), sealed).unwrap();
}

fn read_index(folder: &Path) -> Value {
    let sealed: Value = serde_json::from_slice(&fs::read(folder.join("index.json")).unwrap()).unwrap();
    sealed["index"].clone()
}

/// Where the values are that are no objects and no lists, below `tensors` and `files`.
fn leaves(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| {
                leaves(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            });
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| leaves(value, format!("{path}/{at}"), found));
        }
        _ => found.push(path),
    }
}

/// Something else in the place of a value.
fn other(value: &Value, random: &mut ChaCha8Rng) -> Value {
    let texts = ["../../../etc/passwd", "/etc/passwd", "rank-00001.safetensors", "F64", "nothing", "", "..", "a\u{0}b"];
    let numbers = [0_u64, 1, 2, 3, 7, 1 << 20, 1 << 40, u64::MAX / 8, u64::MAX];
    loop {
        let new = match random.random_range(0..6) {
            0 => json!(texts[random.random_range(0..texts.len())]),
            1 => json!(-1),
            2 => json!(1.5),
            3 => Value::Null,
            _ => json!(numbers[random.random_range(0..numbers.len())]),
        };
        if new != *value {
            return new;
        }
    }
}

/// Of an index that was changed with its checksum, every value is checked against the others and against the files.
#[test]
fn any_value_of_the_index() {
    epl_testing::alone(|| {
        let folder = tempdir().unwrap();
        let good = whole(folder.path());
        let index = read_index(&good);
        let mut paths = Vec::new();
        for part in ["tensors", "files"] {
            leaves(&index[part], format!("/{part}"), &mut paths);
        }
        let (mut random, mut equal) = (ChaCha8Rng::seed_from_u64(5), 0);
        for number in 0..300 {
            let path = &paths[number % paths.len()];
            let mut changed = index.clone();
            let place = changed.pointer_mut(path).unwrap();
            *place = other(place, &mut random);
            let what = format!("{path} = {place}");
            write_index(&good, &changed);
            let Some(message) = found(&good, &what) else {
                // Of the same elements: a box may have more rows than those that are taken of it.
                assert!(path.ends_with("/shape/0"), "{what}");
                equal += 1;
                continue;
            };
            let is_named = message.contains("index.json") || message.contains("rank-0000");
            assert!(is_named, "{what}: {message}");
            if path.starts_with("/tensors") && !message.contains("no index") {
                assert!(message.contains("tensor `"), "{what}: {message}");
            }
        }
        assert!(equal < 10, "{equal} said the same in other words");
        write_index(&good, &index);
        check(&good).unwrap();
    });
}

#[test]
fn slices_that_are_twice_there_missing_or_elsewhere() {
    epl_testing::alone(|| {
        let folder = tempdir().unwrap();
        let good = whole(folder.path());
        let index = read_index(&good);
        type Change = fn(&mut Value);
        let changes: [(&str, Change); 9] = [
            ("in several slices", |index| {
                let slices = index["tensors"]["model/weight"]["slices"].as_array_mut().unwrap();
                slices[1] = slices[0].clone();
            }),
            ("its slices have", |index| {
                index["tensors"]["model/weight"]["slices"].as_array_mut().unwrap().pop();
            }),
            ("its slices have", |index| {
                let slices = index["tensors"]["model/weight"]["slices"].as_array_mut().unwrap();
                slices.push(slices[0].clone());
            }),
            ("is none of the files", |index| {
                index["tensors"]["model/weight"]["slices"][0]["file"] = json!("rank-00007.safetensors");
            }),
            ("is no name of a file", |index| {
                let files = index["files"].as_object_mut().unwrap();
                let file = files.remove("rank-00000.safetensors").unwrap();
                files.insert("../rank-00000.safetensors".into(), file);
            }),
            ("the index does not say so", |index| {
                index["tensors"].as_object_mut().unwrap().remove("model/weight");
            }),
            ("is not in the file", |index| {
                let tensors = index["tensors"].as_object_mut().unwrap();
                let tensor = tensors.remove("model/weight").unwrap();
                tensors.insert("model/other".into(), tensor);
            }),
            ("too many elements", |index| {
                index["tensors"]["model/weight"]["shape"] = json!([u64::MAX / 2, u64::MAX / 2]);
            }),
            ("no index", |index| {
                index["tensors"]["model/weight"]["more"] = json!(1);
            }),
        ];
        for (expected, change) in changes {
            let mut changed = index.clone();
            change(&mut changed);
            write_index(&good, &changed);
            let message = refused(&good, expected);
            assert!(message.contains(expected), "{expected}: {message}");
        }
        let newer = {
            let mut newer = index;
            newer["format"] = json!(9);
            newer
        };
        write_index(&good, &newer);
        let message = refused(&good, "format");
        assert!(message.contains("format 9; this version reads format 2"), "{message}");
    });
}

/// The files of a part are whole, and there is no index yet.
#[test]
fn a_folder_without_an_index_is_no_checkpoint() {
    epl_testing::alone(|| {
        let folder = tempdir().unwrap();
        let good = whole(folder.path());
        let other = folder.path().join("copy");
        copy(&good, &other);
        fs::remove_file(other.join("index.json")).unwrap();
        assert!(refused(&other, "no index").contains("index.json"));
    });
}
