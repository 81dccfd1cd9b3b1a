//! The pages: each is in the book, its code is compiled, links lead somewhere, and errors that are explained exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines that the README may have: it is the way in, not the book.
const README_LINES: usize = 250;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below a folder of the project that end so, but for what is built.
fn files(folder: &Path, end: &str, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.map(|entry| entry.expect("a folder can be read").path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !["target", "out", "node_modules"].contains(&name) && !name.starts_with('.') {
            files(&path, end, found);
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
}

fn found(folder: &str, end: &str) -> Vec<PathBuf> {
    let mut found_files = Vec::new();
    files(&root().join(folder), end, &mut found_files);
    found_files.sort();
    found_files
}

/// The text without blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// What `[…](…)` leads to.
fn targets(text: &str) -> Vec<String> {
    let rest = prose(text);
    let mut targets = Vec::new();
    for part in rest.split("](").skip(1) {
        targets.extend(part.split(')').next().map(String::from));
    }
    targets
}

/// The anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let heading = headings.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    heading.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut faults = Vec::new();
    let mut links = 0;
    for page in found("", ".md") {
        for target in targets(&read(&page)) {
            if target.contains("://") || target.is_empty() {
                continue;
            }
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let fault = match to.exists() {
                false => Some("is not there"),
                true if anchor.is_empty() || anchors(&read(&to)).contains(anchor) => None,
                true => Some("has no such heading"),
            };
            faults.extend(fault.map(|fault| format!("{}: {target} {fault}", page.display())));
        }
    }
    assert!(links > 150, "{links} links");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_page_is_in_the_book() {
    let summary = root().join("docs/book/src/SUMMARY.md");
    let named: BTreeSet<PathBuf> = targets(&read(&summary)).iter().map(|page| summary.with_file_name(page)).collect();
    let pages: BTreeSet<PathBuf> = found("docs/book/src", ".md").into_iter().filter(|page| *page != summary).collect();
    assert!(pages.len() > 20, "{pages:?}");
    assert_eq!(named, pages);
}

#[test]
fn code_in_the_book_is_compiled() {
    let compiled = read(&root().join("src/lib.rs"));
    let with_code = found("docs/book/src", ".md").into_iter().filter(|page| read(page).contains("```rust"));
    let book = root().join("docs/book/src");
    for page in with_code {
        let name = page.strip_prefix(&book).expect("it is below the book").display().to_string();
        assert!(compiled.contains(&format!("\"{name}\"")), "{name} is not among the pages of src/lib.rs");
    }
}

/// A source without its tests, which end it, and without comments.
fn program(text: &str) -> String {
    let before_tests = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    before_tests.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect()
}

/// The program's texts, as they are shown: a line that goes on is one with the next.
fn texts() -> String {
    let mut all = String::new();
    for folder in
        ["epl-comm/src", "epl-core/src", "epl-launch/src", "epl-modules/src", "epl-models/src", "epl-train/src", "src"]
    {
        let is_test = |file: &PathBuf| file.file_stem().is_some_and(|name| name == "tests");
        for file in found(folder, ".rs").into_iter().filter(|file| !is_test(file)) {
            let text = program(&read(&file));
            let mut lines = text.split("\\\n");
            all.push_str(lines.next().unwrap_or_default());
            lines.for_each(|line| all.push_str(line.trim_start()));
        }
    }
    all
}

/// Whether it is the name of an option, which the page of options has.
fn is_option(span: &str) -> bool {
    span.contains('.') && span.chars().all(|c| c.is_ascii_lowercase() || "._".contains(c))
}

#[test]
fn errors_that_are_explained_are_those_of_the_program() {
    let page = read(&root().join("docs/book/src/troubleshooting.md"));
    let (texts, mut explained) = (texts(), 0);
    // Each span of the first column.
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    for error in rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|span| !is_option(span)) {
        explained += 1;
        for part in error.split('…').map(str::trim).filter(|part| part.len() > 5) {
            assert!(texts.contains(part), "no error says `{part}`");
        }
    }
    assert!(explained > 20, "{explained}");
}

#[test]
fn the_readme_is_the_way_in() {
    let lines = read(&root().join("README.md")).lines().count();
    assert!(lines <= README_LINES, "{lines} lines, of at most {README_LINES}: the rest belongs into docs/book");
}
