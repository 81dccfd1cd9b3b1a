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
    let begins = |at: usize| begins(&tokens, at) && tokens[at].1 == root && text(&tokens, at + 1) == "::";
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

/// What a source names.
#[derive(Debug, Default)]
pub struct Names {
    /// What `use` brings in for the source itself.
    pub imports: Vec<Named>,
    /// What `pub use`, `pub(crate) use` and the like hand on.
    pub exports: Vec<Named>,
    /// The paths in the code beside these, also those of one name.
    pub code: Vec<Named>,
}

impl Names {
    /// Reads a source.
    pub fn of(code: &[(usize, &str)]) -> Self {
        let tokens = tokens(code);
        let mut names = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            if text(&tokens, at) == "use" && text(&tokens, at + 1) != "<" {
                let hands_on = at > 0 && ["pub", ")"].contains(&tokens[at - 1].1);
                let named = if hands_on { &mut names.exports } else { &mut names.imports };
                at = tree(&tokens, at + 1, &[], tokens[at].0, named);
            } else if begins(&tokens, at) {
                at = tree(&tokens, at, &[], tokens[at].0, &mut names.code);
            } else {
                at += 1;
            }
        }
        names
    }
}

/// Whether a path begins at this token.
fn begins(tokens: &[(usize, &str)], at: usize) -> bool {
    let is_word = tokens[at].1.starts_with(|first: char| first.is_alphabetic() || first == '_');
    is_word && (at == 0 || ![".", "::", "mod"].contains(&tokens[at - 1].1))
}

fn text<'a>(tokens: &[(usize, &'a str)], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.1)
}

/// Reads one tree of paths from the token `at` on, and returns where it ends.
fn tree(tokens: &[(usize, &str)], mut at: usize, before: &[String], line: usize, named: &mut Vec<Named>) -> usize {
    let text = |at: usize| text(tokens, at);
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

/// Words, `::`, and single signs. Text in quotes is left out, over several lines too.
fn tokens<'a>(code: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    let mut tokens = Vec::new();
    let mut in_quotes = false;
    for &(number, line) in code {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = match first {
                _ if in_quotes => {
                    let end = end_of_quotes(rest);
                    in_quotes = end.is_none();
                    rest = &rest[end.unwrap_or(rest.len())..];
                    continue;
                }
                _ if rest.starts_with("//") => break,
                '"' => {
                    in_quotes = true;
                    rest = &rest[1..];
                    continue;
                }
                '\'' if rest.starts_with("'\"'") => 3,
                '\'' if rest.starts_with("'\\") => rest[2..].find('\'').map_or(rest.len(), |end| end + 3),
                _ if word > 0 => word,
                _ if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            let (token, left) = rest.split_at(length);
            tokens.push((number, token));
            rest = left.trim_start();
        }
    }
    tokens
}

/// Behind the quotation mark that ends a text.
fn end_of_quotes(text: &str) -> Option<usize> {
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '\\' => drop(signs.next()),
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
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

#[test]
fn names_are_those_brought_in_those_handed_on_and_those_in_the_code() {
    let text =
        "use a::{self, B};\npub(crate) use c::D;\nfn f(x: impl Sized + use<'_>) { e::g(\"use h;\n use i;\", x.j) }";
    let Names { imports, exports, code } = Names::of(&lines(text));
    assert_eq!(
        (shown(&imports), shown(&exports)),
        (vec!["1 a::self self".into(), "1 a::B B".into()], vec!["2 c::D D".into()])
    );
    let code = shown(&code);
    assert!(code.contains(&"3 e::g g".into()) && !code.iter().any(|name| name.ends_with('i') || name.ends_with('j')));
}
