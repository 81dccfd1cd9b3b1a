//! Which imports run upwards.

use std::collections::HashMap;
use std::path::Path;

use super::paths::{Named, exports, paths_from};
use super::{Source, without_visibility};

/// The modules that `lib.rs` declares, in order.
pub fn modules(sources: &[Source]) -> Vec<String> {
    let declared = lib(sources).code().into_iter().filter_map(|(_, line)| {
        without_visibility(line).strip_prefix("mod ").and_then(|name| name.strip_suffix(';')).map(str::to_string)
    });
    declared.collect()
}

/// Imports of modules that `lib.rs` lists later, whichever way they are written: `crate::later::X`, in a group, over
/// `super`, or as `crate::X` that `lib.rs` re-exports.
pub fn check_imports(sources: &[Source]) -> Vec<String> {
    let order = modules(sources);
    let level_of = |module: &str| order.iter().position(|known| known == module);
    let exported: HashMap<String, usize> = exports(&lib(sources).code())
        .into_iter()
        .filter_map(|export| Some((export.name, level_of(export.path.iter().find(|part| *part != "crate")?)?)))
        .collect();
    let mut faults = Vec::new();
    for source in sources {
        let Some(level) = source.module().first().and_then(|module| level_of(module)) else { continue };
        for (line, name) in names_of_root(source) {
            let Some(used) = level_of(&name).or(exported.get(&name).copied()) else {
                let path = source.path.display();
                faults.push(format!("{path}:{line}: `crate::{name}` is neither a module nor re-exported by `lib.rs`"));
                continue;
            };
            if used > level {
                let (module, later, path) = (&order[level], &order[used], source.path.display());
                faults.push(format!("{path}:{line}: `{module}` uses `{later}`, listed after it"));
            }
        }
    }
    faults
}

/// The names that a source takes from the root of the crate, with their lines.
fn names_of_root(source: &Source) -> Vec<(usize, String)> {
    let code = source.code();
    let from_crate = paths_from("crate", &code).into_iter().filter_map(|named| after(named, 1));
    // As many `super` as the module is deep lead to the root.
    let depth = source.module().len();
    let is_root = |named: &Named| named.path.iter().take_while(|part| *part == "super").count() >= depth;
    let from_super = paths_from("super", &code).into_iter().filter(is_root).filter_map(|named| after(named, depth));
    from_crate.chain(from_super).collect()
}

fn after(named: Named, skipped: usize) -> Option<(usize, String)> {
    named.path.into_iter().nth(skipped).map(|name| (named.line, name))
}

fn lib(sources: &[Source]) -> &Source {
    sources.iter().find(|source| source.path == Path::new("lib.rs")).expect("a crate has a lib.rs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::source;

    const LIB: &str = "mod low;\npub(crate) mod middle;\npub mod high;\npub use high::{High, part::Deep as Deeper};\npub use low::Low;\n";

    fn faults(path: &str, text: &str) -> Vec<String> {
        check_imports(&[source("lib.rs", LIB), source(path, text)])
    }

    #[test]
    fn imports_from_above_pass() {
        let text =
            "use crate::low::Low;\nuse crate::{Low, low::{self, Part}};\nuse super::inner;\nfn f() { crate::low::g() }";
        assert!(faults("middle/a.rs", text).is_empty(), "{:?}", faults("middle/a.rs", text));
        assert!(faults("high.rs", "use crate::{low::Low, middle::M};\nuse super::High;").is_empty());
    }

    #[test]
    fn plain_and_inline_imports_of_later_modules_are_found() {
        let expected = ["middle.rs:1: `middle` uses `high`, listed after it"];
        assert_eq!(faults("middle.rs", "use crate::high::High;"), expected);
        assert_eq!(faults("middle.rs", "fn f(x: &crate::high::High) {}"), expected);
        assert_eq!(faults("middle.rs", "use crate::high;"), expected);
    }

    #[test]
    fn grouped_imports_of_later_modules_are_found() {
        let expected = ["middle/a.rs:3: `middle` uses `high`, listed after it"];
        assert_eq!(faults("middle/a.rs", "use crate::{\n    low::Low,\n    high::{High},\n};"), expected);
    }

    #[test]
    fn re_exports_of_the_root_are_followed() {
        assert_eq!(faults("low.rs", "use crate::High;"), ["low.rs:1: `low` uses `high`, listed after it"]);
        assert_eq!(faults("low.rs", "use crate::{Low, Deeper};"), ["low.rs:1: `low` uses `high`, listed after it"]);
        assert!(faults("middle.rs", "use crate::Low;").is_empty());
    }

    #[test]
    fn the_root_is_reached_over_super_too() {
        assert_eq!(faults("low.rs", "use super::high::High;"), ["low.rs:1: `low` uses `high`, listed after it"]);
        assert_eq!(faults("low/a.rs", "use super::super::{High};"), ["low/a.rs:1: `low` uses `high`, listed after it"]);
        assert!(faults("low/a.rs", "use super::high::High;").is_empty(), "that is `low::high`");
    }

    #[test]
    fn what_cannot_be_followed_is_a_fault() {
        let expected = "low.rs:1: `crate::*` is neither a module nor re-exported by `lib.rs`";
        assert_eq!(faults("low.rs", "use crate::*;"), [expected]);
    }

    #[test]
    fn tests_may_import_what_they_like() {
        assert!(faults("low.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::high::High;\n}").is_empty());
    }
}
