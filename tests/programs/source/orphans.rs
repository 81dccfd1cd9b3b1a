//! Which files no `mod` names: the compiler does not see them, nor do the tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Source, without_visibility};

/// The files that cannot be reached from `lib.rs` or `main.rs`.
pub fn orphans(sources: &[Source]) -> Vec<String> {
    let mut open: Vec<PathBuf> = ["lib.rs", "main.rs"].map(PathBuf::from).to_vec();
    let mut reached = BTreeSet::new();
    while let Some(path) = open.pop() {
        let Some(source) = sources.iter().find(|source| source.path == path) else { continue };
        if reached.insert(path) {
            open.extend(named_by(source));
        }
    }
    let lost = sources.iter().filter(|source| !reached.contains(&source.path));
    lost.map(|source| format!("{}: no `mod` names this file", source.path.display())).collect()
}

/// The files that the `mod name;` lines of a source may mean, and those that `#[path]` names.
fn named_by(source: &Source) -> Vec<PathBuf> {
    let folder = source.module().iter().collect::<PathBuf>();
    let beside = source.path.parent().unwrap_or(Path::new(""));
    let of_line = |line: &str| -> Option<Vec<PathBuf>> {
        if let Some(path) = line.strip_prefix("#[path = \"") {
            return Some(vec![beside.join(path.strip_suffix("\"]")?)]);
        }
        let name = without_visibility(line).strip_prefix("mod ")?.strip_suffix(';')?;
        Some(vec![folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")])
    };
    source.text.lines().filter_map(of_line).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::source;

    #[test]
    fn files_that_are_named_are_reached() {
        let sources = [
            source("lib.rs", "mod a;\npub(crate) mod b;\n"),
            source("a.rs", "#[cfg(test)]\nmod tests;\n#[cfg(test)]\n#[path = \"a_more.rs\"]\nmod more;\n"),
            source("a_more.rs", ""),
            source("a/tests.rs", ""),
            source("b/mod.rs", "pub mod c;\n"),
            source("b/c.rs", ""),
        ];
        assert!(orphans(&sources).is_empty(), "{:?}", orphans(&sources));
    }

    #[test]
    fn files_that_are_not_named_are_found() {
        let sources = [
            source("lib.rs", "mod a;\n// mod d;\n"),
            source("a.rs", ""),
            source("a/b.rs", ""),
            source("c.rs", "mod e;\n"),
            source("c/e.rs", ""),
            source("d.rs", ""),
        ];
        let expected = ["a/b.rs", "c.rs", "c/e.rs", "d.rs"].map(|path| format!("{path}: no `mod` names this file"));
        assert_eq!(orphans(&sources), expected);
    }
}
