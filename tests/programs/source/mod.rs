//! What the layer check reads from sources.
//!
//! - `paths`: which paths a source names.
//! - `imports`: which of them run upwards.
//! - `circles`: which of them form a circle between files of one room.
//! - `orphans`: which files no `mod` names.
//! - `size`: which functions are too long.
//! - `systems`: which lines only some systems understand.

pub mod circles;
pub mod imports;
pub mod orphans;
mod paths;
pub mod size;
pub mod systems;

use std::path::PathBuf;

/// A source file of a crate.
#[derive(Clone)]
pub struct Source {
    /// From the folder of the crate's root, such as `engine/norm.rs`.
    pub path: PathBuf,
    pub text: String,
}

impl Source {
    /// The code: without unit tests, comments and blank lines; with line numbers.
    pub fn code(&self) -> Vec<(usize, &str)> {
        let mut code = Vec::new();
        let mut lines = self.text.lines().zip(1..).peekable();
        while let Some((line, number)) = lines.next() {
            let next = lines.peek().map_or("", |(next, _)| *next);
            let of_tests = ["#[cfg(test)]", "#[cfg(all(test, target_os = \"linux\"))]"].contains(&line.trim());
            let tests = of_tests && declares_module(next);
            // Unit tests stand last in a file, or in a file of their own.
            if tests && next.ends_with('{') {
                break;
            }
            if tests {
                lines.next();
            } else if !line.trim().is_empty() && !line.trim_start().starts_with("//") {
                code.push((number, line));
            }
        }
        code
    }

    /// The path of the module: `["engine", "norm"]`, and none for the root.
    pub fn module(&self) -> Vec<String> {
        let parts = self.path.with_extension("");
        let mut parts: Vec<String> = parts.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if ["mod", "lib", "main"].contains(&parts.last().map_or("", String::as_str)) {
            parts.pop();
        }
        parts
    }
}

/// A line without its visibility: `pub(crate) mod a;` is `mod a;`.
fn without_visibility(line: &str) -> &str {
    match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(line, |(_, rest)| rest),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => line,
    }
}

fn declares_module(line: &str) -> bool {
    without_visibility(line).starts_with("mod ")
}

/// A made-up source.
#[cfg(test)]
pub fn source(path: &str, text: &str) -> Source {
    Source { path: path.into(), text: text.into() }
}

#[test]
fn code_is_without_comments_and_tests() {
    let text =
        "//! Doc.\nuse a::B;\n\n#[cfg(test)]\nmod tests;\nfn f() {} // Why.\n#[cfg(test)]\nmod more {\n    use c;\n}\n";
    assert_eq!(source("a.rs", text).code(), [(2, "use a::B;"), (6, "fn f() {} // Why.")]);
}

#[test]
fn a_file_is_a_module() {
    let module = |path: &str| source(path, "").module();
    assert_eq!(module("engine/norm.rs"), ["engine", "norm"]);
    assert_eq!(module("engine/mod.rs"), ["engine"]);
    assert_eq!(module("context.rs"), ["context"]);
    assert!(module("lib.rs").is_empty());
}
