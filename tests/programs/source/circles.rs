//! Which files of one room import each other in a circle.
//!
//! A room is a module of `lib.rs` with all that lies below it. A file of it imports another one of it when it
//!
//! - brings in something that is defined there, by `use`, in whichever way it is written: `crate::room::file::X`,
//!   `super::file::X`, `self::file::X`, `file::X` of a module of its own;
//! - names it by a path in its code: `crate::room::file::f()`, or `file::f()` after `use super::file`.
//!
//! What a file hands on (`pub use`, or a private `use` of a parent that a child looks through) counts as what it is: whoever
//! names `super::X`, where `mod.rs` says `pub use file::X`, imports `file.rs`. Only what `mod.rs` itself defines makes its
//! child import `mod.rs`. In turn, neither `mod file;` nor `pub use file::X` makes `mod.rs` import `file.rs`, but its code
//! does, where that names `X`.
//!
//! Not seen: methods, which are found with their type wherever they stand. A type whose methods are spread over files
//! is one thing, and may be read in any order. Nor what a glob brings in: that counts as of the module that it is taken from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Source;
use super::imports::modules;
use super::paths::{Named, Names};

/// Rooms of at least so many files are looked at.
const SMALLEST: usize = 3;
/// How many names that hand on another one are followed.
const LONGEST: usize = 16;

/// The circles of each room that has some: `engine: engine/a.rs -> engine/b.rs -> engine/a.rs`.
pub fn circles(sources: &[Source]) -> BTreeMap<String, Vec<String>> {
    let tree = Tree::of(sources);
    let of_room = |room: String| {
        let own = |(path, _): &(&Vec<String>, &Names)| path.first() == Some(&room);
        let files: Vec<&Vec<String>> = tree.files.iter().filter(own).map(|(path, _)| path).collect();
        let circles = if files.len() < SMALLEST { Vec::new() } else { tree.circles(&files) };
        (!circles.is_empty()).then_some((room, circles))
    };
    modules(sources).into_iter().filter_map(of_room).collect()
}

/// The modules of a crate, by their paths: those in which the crate is divided into files, without those of tests.
struct Tree {
    files: BTreeMap<Vec<String>, Names>,
    /// How the file of a module is called.
    paths: BTreeMap<Vec<String>, String>,
}

impl Tree {
    fn of(sources: &[Source]) -> Self {
        let all: BTreeMap<Vec<String>, &Source> = sources.iter().map(|source| (source.module(), source)).collect();
        let is_declared = |path: &[String]| match path.split_last() {
            None => true,
            Some((name, parent)) => {
                let line = format!("mod {name};");
                all.get(parent).is_some_and(|parent| parent.code().iter().any(|(_, code)| code.ends_with(&line)))
            }
        };
        let is_code = |path: &Vec<String>| (0..=path.len()).all(|len| is_declared(&path[..len]));
        let code = || all.iter().filter(|(path, _)| is_code(path));
        let files = code().map(|(path, source)| (path.clone(), Names::of(&source.code()))).collect();
        let paths = code().map(|(path, source)| (path.clone(), source.path.display().to_string())).collect();
        Self { files, paths }
    }

    /// The shortest circle through each file that is in one, each once.
    fn circles(&self, files: &[&Vec<String>]) -> Vec<String> {
        let imports: BTreeMap<_, _> = files.iter().map(|file| (*file, self.imports(file))).collect();
        let mut found = BTreeSet::new();
        for file in files {
            let Some(mut circle) = shortest(file, &imports) else { continue };
            let first = circle.iter().enumerate().min_by_key(|(_, file)| *file).map_or(0, |(index, _)| index);
            circle.rotate_left(first);
            circle.push(circle[0]);
            let names: Vec<&str> = circle.into_iter().map(|file| self.paths[file].as_str()).collect();
            found.insert(names.join(" -> "));
        }
        found.into_iter().collect()
    }

    /// The files of the same room that a file imports.
    fn imports(&self, file: &Vec<String>) -> BTreeSet<Vec<String>> {
        let Names { imports, exports, code } = &self.files[file];
        let is_named = |export: &&Named| code.iter().any(|named| named.path.first() == Some(&export.name));
        let handed_on = exports.iter().filter(is_named);
        let named = imports.iter().chain(handed_on).chain(code.iter().filter(|named| named.path.len() > 1));
        let defined = named.filter_map(|named| self.defines(file, &named.path, LONGEST));
        defined.filter(|other| other != file && other.first() == file.first()).collect()
    }

    /// The file that defines what a path in a file leads to. None when that is a module, or outside the crate.
    fn defines(&self, file: &[String], path: &[String], left: usize) -> Option<Vec<String>> {
        let left = left.checked_sub(1)?;
        let ups = path.iter().take_while(|part| *part == "super").count();
        let first = path.first()?;
        let (mut module, rest) = match first.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (file.to_vec(), &path[1..]),
            "super" => (file[..file.len().checked_sub(ups)?].to_vec(), &path[ups..]),
            _ if self.files.contains_key(&[file, &path[..1]].concat()) => (file.to_vec(), path),
            _ => {
                // A name that was brought in; otherwise another crate's.
                let path = [&self.binding(file, first)?.path[..], &path[1..]].concat();
                return self.defines(file, &path, left);
            }
        };
        for (index, part) in rest.iter().enumerate() {
            let inner = [&module[..], std::slice::from_ref(part)].concat();
            if self.files.contains_key(&inner) && (index + 1 < rest.len() || self.binding(&module, part).is_none()) {
                module = inner;
                continue;
            }
            if part == "self" {
                return None;
            }
            return match self.binding(&module, part) {
                Some(binding) if binding.path != [part.clone()] => {
                    self.defines(&module, &[&binding.path[..], &rest[index + 1..]].concat(), left)
                }
                _ => Some(module),
            };
        }
        None
    }

    /// The `use` by which a module has a name that it does not define.
    fn binding(&self, module: &[String], name: &str) -> Option<&Named> {
        let Names { imports, exports, .. } = self.files.get(module)?;
        imports.iter().chain(exports).find(|named| named.name == name)
    }
}

/// The shortest way from a file back to it, which begins with it.
fn shortest<'a>(
    file: &'a Vec<String>,
    imports: &'a BTreeMap<&'a Vec<String>, BTreeSet<Vec<String>>>,
) -> Option<Vec<&'a Vec<String>>> {
    let mut before: BTreeMap<&Vec<String>, &Vec<String>> = BTreeMap::new();
    let mut open = VecDeque::from([file]);
    while let Some(from) = open.pop_front() {
        for to in imports.get(from)? {
            if to == file {
                let way = std::iter::successors(Some(from), |at| (*at != file).then(|| before[*at]));
                let mut way: Vec<_> = way.collect();
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(to) {
                before.insert(to, from);
                open.push_back(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::source;

    /// The circles of a room `room` of these files.
    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let mut sources = vec![source("lib.rs", "mod low;\nmod room;\n"), source("low.rs", "pub struct Low;")];
        sources.extend(files.iter().map(|(path, text)| source(path, text)));
        circles(&sources).remove("room").unwrap_or_default()
    }

    const MOD: &str = "mod a;\nmod b;\nmod c;\npub use a::A;\npub(crate) use c::C;\n";

    /// Those of three files beside a `mod.rs` that defines nothing.
    fn of_three(a: &str, b: &str, c: &str) -> Vec<String> {
        of(&[("room/mod.rs", MOD), ("room/a.rs", a), ("room/b.rs", b), ("room/c.rs", c)])
    }

    #[test]
    fn files_that_import_one_way_are_in_no_circle() {
        assert!(
            of_three("pub struct A;", "use super::a::A;", "use crate::low::Low;\nuse super::{A, b::B};").is_empty()
        );
        assert!(
            of_three("pub fn a() {}", "use super::a;\nfn b() { a::a() }", "fn c() { super::a::a(); self::d() }")
                .is_empty()
        );
    }

    #[test]
    fn a_circle_of_two_files_is_found_in_whichever_way_it_is_written() {
        let expected = ["room/a.rs -> room/b.rs -> room/a.rs"];
        assert_eq!(of_three("use super::b::B;", "use super::a::A;", ""), expected);
        assert_eq!(of_three("use crate::room::b::{self, B};", "use crate::{low::Low, room::{a::A}};", ""), expected);
        assert_eq!(of_three("fn f() { super::b::f() }", "fn f(a: &crate::room::a::A) {}", ""), expected);
        assert_eq!(of_three("use super::b;\nfn f() { b::f() }", "use super::A;", ""), expected, "`A` is of `a`");
        assert_eq!(of_three("use super::b as other;\nfn f() { other::f() }", "use crate::room::A as B;", ""), expected);
    }

    #[test]
    fn a_circle_of_three_files_is_found_and_told_once() {
        let expected = ["room/a.rs -> room/b.rs -> room/c.rs -> room/a.rs"];
        assert_eq!(of_three("use super::b::B;", "use super::C;", "use super::a::A;"), expected);
    }

    #[test]
    fn a_child_imports_what_its_parent_itself_defines() {
        let parent = "mod a;\nmod b;\nuse b::B;\npub struct Own(B);\n";
        let of = |parent: &str, a: &str, b: &str| of(&[("room/mod.rs", parent), ("room/a.rs", a), ("room/b.rs", b)]);
        assert!(of(parent, "use super::Own;\nuse super::B;", "").is_empty(), "nothing of `b` leads back");
        assert_eq!(of(parent, "", "use super::Own;"), ["room/mod.rs -> room/b.rs -> room/mod.rs"]);
        assert_eq!(
            of(parent, "use super::Own;", "fn f() { super::a::f() }"),
            ["room/mod.rs -> room/b.rs -> room/a.rs -> room/mod.rs"]
        );
        let inline = "mod a;\nmod b;\npub struct Own;\nfn f() { a::f() }\n";
        assert_eq!(of(inline, "use crate::room::Own;", ""), ["room/mod.rs -> room/a.rs -> room/mod.rs"]);
    }

    #[test]
    fn what_a_parent_only_hands_on_it_does_not_import() {
        let parent = |code: &str| format!("mod a;\nmod b;\npub use a::A;\npub struct Own;\n{code}");
        let of = |parent: &str| {
            of(&[("room/mod.rs", parent), ("room/a.rs", "use super::Own;\npub struct A;"), ("room/b.rs", "")])
        };
        assert!(of(&parent("")).is_empty());
        assert_eq!(of(&parent("impl Own { fn a(&self) -> A { A } }")), ["room/mod.rs -> room/a.rs -> room/mod.rs"]);
    }

    #[test]
    fn a_room_is_looked_at_to_the_last_folder() {
        let files = |x: &'static str| {
            [
                ("room/mod.rs", "mod in_it;\n"),
                ("room/in_it/mod.rs", "mod x;\nmod y;\npub use y::Y;"),
                ("room/in_it/x.rs", x),
                ("room/in_it/y.rs", "use super::x::X;"),
            ]
        };
        assert!(of(&files("")).is_empty());
        assert_eq!(of(&files("use crate::room::in_it::Y;")), ["room/in_it/x.rs -> room/in_it/y.rs -> room/in_it/x.rs"]);
    }

    #[test]
    fn tests_texts_other_rooms_and_small_rooms_are_not_looked_at() {
        let test = "pub struct A;\n#[cfg(test)]\nmod tests {\n    use super::super::b::B;\n}";
        assert!(of_three(test, "use super::A;", "").is_empty());
        let in_quotes = "const T: &str = \"use super::b::B;\n    super::b::c()\";";
        assert!(of_three(in_quotes, "use super::A;", "").is_empty());
        let tests = ("room/tests.rs", "use super::Own;\npub fn given() {}");
        let parent = "mod a;\npub struct Own;\n#[cfg(test)]\nmod tests;\n";
        assert!(of(&[("room/mod.rs", parent), ("room/a.rs", ""), tests]).is_empty());
        assert!(of(&[("room/mod.rs", "mod a;\npub struct Own(a::A);"), ("room/a.rs", "use super::Own;")]).is_empty());
    }
}
