//! Which paths a source names: those of `use a::{b, c::d}`, and those that stand in the code.

/// A path, and the number of the line in which it begins.
#[derive(Debug, PartialEq)]
pub struct Named {
    pub line: usize,
    /// `["crate", "engine", "Engine"]`; a group gives one path for each of its members, a glob ends in `*`.
    pub path: Vec<String>,
    /// What it is called from here on: the last part, or the name after `as`.
    pub name: String,
}

/// All paths that begin with `root::`, such as `crate` or `super`, groups taken apart.
pub fn paths_from(root: &str, code: &[(usize, &str)]) -> Vec<Named> {
    let tokens = tokens(code);
    let begins = |at: usize| {
        let inner = at > 0 && tokens[at - 1].1 == "::";
        tokens[at].1 == root && !inner && tokens.get(at + 1).is_some_and(|next| next.1 == "::")
    };
    let mut named = Vec::new();
    for at in (0..tokens.len()).filter(|at| begins(*at)) {
        tree(&tokens, at, &[], tokens[at].0, &mut named);
    }
    named
}

/// The paths that `pub use` re-exports.
pub fn exports(code: &[(usize, &str)]) -> Vec<Named> {
    let tokens = tokens(code);
    let mut named = Vec::new();
    for at in 2..tokens.len() {
        if tokens[at - 1].1 == "use" && tokens[at - 2].1 == "pub" {
            tree(&tokens, at, &[], tokens[at].0, &mut named);
        }
    }
    named
}

/// Reads one tree of paths from the token `at` on, and returns where it ends.
fn tree(tokens: &[(usize, &str)], mut at: usize, before: &[String], line: usize, named: &mut Vec<Named>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.1);
    let mut path = before.to_vec();
    loop {
        if text(at) == "{" {
            at += 1;
            while !["}", ""].contains(&text(at)) {
                at = tree(tokens, at, &path, tokens[at].0, named);
                at += usize::from(text(at) == ",");
            }
            return at + 1;
        }
        path.push(text(at).to_string());
        at += 1;
        if text(at) != "::" || text(at + 1) == "<" {
            break;
        }
        at += 1;
    }
    let renamed = text(at) == "as";
    let name = if renamed { text(at + 1).to_string() } else { path.last().cloned().unwrap_or_default() };
    named.push(Named { line, path, name });
    if renamed { at + 2 } else { at }
}

/// Words, `::`, and single signs. Text in quotes is left out.
fn tokens<'a>(code: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    let mut tokens = Vec::new();
    for &(number, line) in code {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = match first {
                _ if rest.starts_with("//") => rest.len(),
                '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
                _ if word > 0 => word,
                _ if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            let (token, left) = rest.split_at(length);
            if !token.starts_with('"') && !token.starts_with("//") {
                tokens.push((number, token));
            }
            rest = left.trim_start();
        }
    }
    tokens
}

#[cfg(test)]
fn lines(text: &str) -> Vec<(usize, &str)> {
    (1..).zip(text.lines()).collect()
}

#[cfg(test)]
fn shown(named: &[Named]) -> Vec<String> {
    named.iter().map(|named| format!("{} {} {}", named.line, named.path.join("::"), named.name)).collect()
}

#[test]
fn groups_are_taken_apart() {
    let text =
        "use crate::{\n    a::{B, c::{self, D as E}},\n    F, g::*,\n};\nlet x = crate::h::i::<u8>(\"crate::no\");";
    let expected =
        ["2 crate::a::B B", "2 crate::a::c::self self", "2 crate::a::c::D E", "3 crate::F F", "3 crate::g::* *"];
    let all = shown(&paths_from("crate", &lines(text)));
    assert_eq!(all[..5], expected);
    assert_eq!(all[5..], ["5 crate::h::i i"]);
}

#[test]
fn only_what_begins_with_the_root_counts() {
    let text = "pub(crate) fn f(x: &'static crate::a::B) -> super::super::C { my_crate::d() } // crate::e";
    assert_eq!(shown(&paths_from("crate", &lines(text))), ["1 crate::a::B B"]);
    assert_eq!(shown(&paths_from("super", &lines(text))), ["1 super::super::C C"]);
}

#[test]
fn exports_are_those_of_pub_use() {
    let text = "use x::Y;\npub use a::{B, C as D};\npub use e::f;";
    assert_eq!(shown(&exports(&lines(text))), ["2 a::B B", "2 a::C D", "3 e::f f"]);
}
