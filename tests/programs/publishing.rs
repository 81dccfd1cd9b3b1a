//! What is published: a page for each crate, features that are explained, dependencies that the promised Rust compiles.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

const CRATES: [&str; 7] = [".", "epl-launch", "epl-comm", "epl-core", "epl-modules", "epl-models", "epl-train"];

fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The features of a crate but `default`, each with the line above it.
fn features(manifest: &str) -> Vec<(String, String)> {
    let lines = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let (mut features, mut before) = (Vec::new(), "");
    for line in lines.take_while(|line| !line.starts_with('[')) {
        if let Some((name, _)) = line.split_once(" = [").filter(|(name, _)| !name.contains('"')) {
            features.push((name.to_string(), before.to_string()));
        }
        before = line;
    }
    features.retain(|(name, _)| name != "default");
    features
}

#[test]
fn every_feature_is_explained() {
    let (page, mut count) = (read("docs/book/src/systems.md"), 0);
    for name in CRATES {
        let features = features(&read(&format!("{name}/Cargo.toml")));
        // The page of the crate shows what stands above each feature.
        let shows = read(&format!("{name}/src/lib.rs")).contains("document_features!()");
        assert!(shows || features.is_empty(), "{name}/src/lib.rs shows no features");
        for (feature, before) in &features {
            assert!(before.starts_with("## "), "{name}: no `## …` above the feature {feature}");
            assert!(page.contains(&format!("`{feature}`")), "systems.md does not name {name}'s feature {feature}");
        }
        count += features.len();
    }
    assert!(count > 15, "{count} features");
}

#[test]
fn every_crate_is_published_with_a_page() {
    for name in CRATES {
        let manifest = format!("{name}/Cargo.toml");
        let list = cargo(&["package", "--list", "--allow-dirty", "--offline", "--manifest-path", &manifest]);
        assert!(list.lines().any(|file| file == "README.md"), "{name}: {list}");
    }
}

/// `1.95` or `1.95.0`.
fn version(text: &str) -> [u64; 3] {
    let mut parts = text.split('.').map(|part| part.parse().expect("a number"));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

/// What cargo says.
fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    let told = command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo can be started");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8(told.stdout).expect("it is text")
}

#[test]
fn no_dependency_needs_a_newer_rust_than_the_manifest_promises() {
    // Other systems have crates of their own, which are not fetched.
    let about = cargo(&["-vV"]);
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).expect("it names this machine's kind");
    let told = cargo(&["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", host]);
    let told: Value = serde_json::from_str(&told).expect("it is JSON");
    let packages = told["packages"].as_array().expect("there are packages");
    let own = packages.iter().find(|package| package["name"] == "epl").expect("this one is among them");
    let own = own["rust_version"].as_str().expect("it promises one");
    let is_newer = |package: &&Value| package["rust_version"].as_str().is_some_and(|rust| version(rust) > version(own));
    let name = |package: &Value| format!("{} {}: {}", package["name"], package["version"], package["rust_version"]);
    let newer: Vec<String> = packages.iter().filter(is_newer).map(name).collect();
    assert!(packages.len() > 100 && newer.is_empty(), "newer than {own}: {newer:?}");
    assert!(read("README.md").contains(&format!("Rust {own} or newer")) && read("Dockerfile").contains(own));
}
