//! The layer check: imports run one way, and no file or function passes its limit.
//!
//! A crate imports only from crates below it, a module only from modules that its `lib.rs` lists before it. Inside
//! a folder the order of the parent's `mod` lines is not checked: there, one idea is spread over a few files.

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 4] = ["epl-comm", "epl-core", "epl-modules", "epl-models"];
const MAX_FILE: usize = 300;
const MAX_FUNCTION: usize = 60;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The code of a file: without its unit tests, comments and blank lines; with line numbers.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).expect("a source file can be read");
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim() == "#[cfg(test)]" && text.lines().nth(index + 1).is_some_and(|next| next.starts_with("mod ")) {
            break;
        }
        if !line.trim().is_empty() && !line.trim_start().starts_with("//") {
            lines.push((index + 1, line.to_string()));
        }
    }
    lines
}

/// The modules that a `lib.rs` declares, in order.
fn modules(lib: &Path) -> Vec<String> {
    let declared = code(lib).into_iter().filter_map(|(_, line)| {
        let rest = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(&line).to_string();
        rest.strip_prefix("mod ").and_then(|name| name.strip_suffix(';')).map(str::to_string)
    });
    declared.collect()
}

#[test]
fn crates_import_only_from_crates_below() {
    let mut faults = Vec::new();
    for (level, name) in CRATES.iter().enumerate() {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).expect("every crate has a manifest");
        for above in &CRATES[level..] {
            if manifest
                .lines()
                .any(|line| line.starts_with(&format!("{above}.")) || line.starts_with(&format!("{above} ")))
            {
                faults.push(format!("{name} depends on {above}"));
            }
        }
    }
    assert!(faults.is_empty(), "imports that run upwards:\n{}", faults.join("\n"));
}

#[test]
fn modules_import_only_from_modules_listed_before() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for name in CRATES {
        let source = root().join(name).join("src");
        let order = modules(&source.join("lib.rs"));
        assert!(!order.is_empty(), "{name} declares modules");
        for path in rust_files(&source) {
            let relative = path.strip_prefix(&source).expect("the file is below the source folder");
            let top = relative.components().next().expect("a file has a name").as_os_str().to_string_lossy();
            let module = top.trim_end_matches(".rs");
            let Some(level) = order.iter().position(|known| known == module) else { continue };
            for (number, line) in code(&path) {
                checked += 1;
                for later in &order[level + 1..] {
                    let used = [format!("crate::{later}::"), format!("crate::{later};")];
                    if used.iter().any(|used| line.contains(used.as_str())) {
                        faults.push(format!("{}:{number}: `{module}` uses `{later}`, listed after it", path.display()));
                    }
                }
            }
        }
    }
    assert!(checked > 500, "the check read {checked} lines only");
    assert!(faults.is_empty(), "imports that run upwards:\n{}", faults.join("\n"));
}

#[test]
fn files_and_functions_stay_within_their_limits() {
    let mut faults = Vec::new();
    for name in
        CRATES.iter().map(|name| format!("{name}/src")).chain(["src".into(), "examples".into(), "benches".into()])
    {
        for path in rust_files(&root().join(name)) {
            let lines = code(&path);
            if lines.len() > MAX_FILE {
                faults.push(format!("{}: {} lines of code, limit {MAX_FILE}", path.display(), lines.len()));
            }
            faults.extend(long_functions(&path, &lines));
        }
    }
    assert!(faults.is_empty(), "over the limit:\n{}", faults.join("\n"));
}

fn long_functions(path: &Path, lines: &[(usize, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (index, (number, line)) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let starts = line.trim_start().split(' ').take(4).any(|word| word == "fn");
        match open {
            None if starts && !line.trim_end().ends_with(';') && !line.trim_end().ends_with('}') => {
                open = Some((index, indent));
            }
            Some((start, depth)) if indent == depth && line.trim_start().starts_with('}') => {
                let length = index + 1 - start;
                if length > MAX_FUNCTION {
                    let first = lines[start].0;
                    faults.push(format!("{}:{first}-{number}: {length} lines, limit {MAX_FUNCTION}", path.display()));
                }
                open = None;
            }
            _ => {}
        }
    }
    faults
}

#[test]
fn the_check_sees_long_functions() {
    let body = (0..70).map(|n| (n + 2, "        let x = 1;".to_string()));
    let lines: Vec<_> = core::iter::once((1, "    fn long() {".to_string()))
        .chain(body)
        .chain(core::iter::once((72, "    }".to_string())))
        .collect();
    assert_eq!(long_functions(Path::new("sample.rs"), &lines).len(), 1);
}
