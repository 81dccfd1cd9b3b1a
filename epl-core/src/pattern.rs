//! Paths of parameters and of layers, in which `*` stands for any one name, and `**` for any number of them.

use core::fmt;

use strsim::jaro_winkler;

use crate::error::{Error, Result};

/// How any one name is written.
const ANY: &str = "*";
/// How any number of names is written, none included.
const ANY_NUMBER: &str = "**";

/// Names joined by dots, of which `*` is any one name and `**` any number of them. It covers the path that it spells, and all
/// below that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<PatternPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPart {
    Name(String),
    Any,
    AnyNumber,
}

impl PatternPart {
    fn of(text: &str) -> Self {
        match text {
            ANY => Self::Any,
            ANY_NUMBER => Self::AnyNumber,
            name => Self::Name(name.to_string()),
        }
    }

    fn written(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Any => ANY,
            Self::AnyNumber => ANY_NUMBER,
        }
    }

    /// Whether it may stand for these names, the first ones of a path.
    fn takes(&self, names: &[&str]) -> bool {
        match self {
            Self::Name(own) => names == [own.as_str()],
            Self::Any => names.len() == 1,
            Self::AnyNumber => true,
        }
    }
}

/// What a path has at the stars of a pattern, and below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match<'a> {
    any: Vec<Vec<&'a str>>,
    rest: Vec<&'a str>,
}

impl Pattern {
    /// Nothing stands for the whole model.
    pub fn new(text: &str) -> Self {
        Self(text.split('.').filter(|name| !name.is_empty()).map(PatternPart::of).collect())
    }

    /// How many of its names are stars.
    pub fn stars(&self) -> usize {
        self.0.iter().filter(|part| !matches!(part, PatternPart::Name(_))).count()
    }

    /// What a path has at the stars and below; nothing when the pattern does not cover it. Each `**` has as few names as it can,
    /// the first ones first.
    pub fn of<'a>(&self, path: &'a str) -> Option<Match<'a>> {
        let names: Vec<&str> = path.split('.').collect();
        let mut any = Vec::new();
        let rest = below(&self.0, &names, &mut any)?.to_vec();
        Some(Match { any, rest })
    }

    /// Whether it covers a path.
    pub fn covers(&self, path: &str) -> bool {
        self.of(path).is_some()
    }

    /// The path that another pattern's match spells here: its stars in their order, and what is below.
    pub fn spelled(&self, found: &Match<'_>) -> String {
        let mut any = found.any.iter();
        let mut own: Vec<&str> = Vec::new();
        for part in &self.0 {
            match (part, any.as_slice().first()) {
                (PatternPart::Name(name), _) => own.push(name),
                (star, None) => own.push(star.written()),
                (_, Some(names)) => {
                    own.extend(names);
                    any.next();
                }
            }
        }
        own.extend(&found.rest);
        own.join(".")
    }
}

/// The names below a pattern, of a path that it covers; `any` gets those at its stars.
fn below<'n, 'a>(parts: &[PatternPart], names: &'n [&'a str], any: &mut Vec<Vec<&'a str>>) -> Option<&'n [&'a str]> {
    let Some((part, parts)) = parts.split_first() else { return Some(names) };
    let stars = any.len();
    for count in 0..=names.len() {
        let (taken, rest) = names.split_at(count);
        if !part.takes(taken) {
            continue;
        }
        if !matches!(part, PatternPart::Name(_)) {
            any.push(taken.to_vec());
        }
        if let Some(rest) = below(parts, rest, any) {
            return Some(rest);
        }
        any.truncate(stars);
    }
    None
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(PatternPart::written).collect();
        f.write_str(&names.join("."))
    }
}

/// How many paths are named that are like one that is not there.
const NEAREST: usize = 3;

/// What may have been meant by a pattern that covers nothing.
fn near(text: &str, paths: &[&str]) -> String {
    let deeper = text.replace("**", "*").replace('*', "**");
    if deeper != text && paths.iter().any(|name| Pattern::new(&deeper).covers(name)) {
        return format!("; `*` is one name, and `**` any number of them: `{deeper}` covers some");
    }
    let below = format!("**.{text}");
    if paths.iter().any(|name| Pattern::new(&below).covers(name)) {
        return format!("; a path begins at the whole model: `{below}` covers some");
    }
    if paths.is_empty() {
        return "; there is none".to_string();
    }
    let mut all: Vec<(f64, &str)> = paths.iter().map(|name| (jaro_winkler(text, name), *name)).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let nearest: Vec<String> = all.iter().take(NEAREST).map(|(_, name)| format!("`{name}`")).collect();
    format!("; the nearest are {}", nearest.join(", "))
}

/// The numbers of the paths that a pattern covers: which option says it, and what these are the paths of.
///
/// # Errors
///
/// When there is none: the paths that are most like it.
pub(crate) fn covered(said: &str, paths: &[&str], (option, what): (&str, &str)) -> Result<Vec<usize>> {
    let pattern = Pattern::new(said);
    let covered: Vec<usize> = (0..paths.len()).filter(|number| pattern.covers(paths[*number])).collect();
    if !covered.is_empty() {
        return Ok(covered);
    }
    Err(Error::invalid(format!("{option}: no {what} is at `{said}`{}", near(said, paths))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(ours: &str, stored: &str, path: &str) -> Option<String> {
        Pattern::new(ours).of(path).map(|found| Pattern::new(stored).spelled(&found))
    }

    #[test]
    fn a_pattern_covers_what_it_spells_and_what_is_below() {
        let same = |path: &str| Some(path.to_string());
        assert_eq!(spelled("", "", "a.b"), same("a.b"));
        assert_eq!(spelled("a", "x.y", "a.b.c"), same("x.y.b.c"));
        assert_eq!(spelled("a.b", "x", "a.b"), same("x"));
        assert_eq!(spelled("a.b", "x", "a"), None);
        assert_eq!(spelled("a", "x", "ab.c"), None);
    }

    #[test]
    fn stars_are_taken_over_in_their_order() {
        assert_eq!(spelled("l.*.f", "blocks.*.mlp", "l.3.f.w").unwrap(), "blocks.3.mlp.w");
        assert_eq!(spelled("l.*", "blocks.0", "l.3.w").unwrap(), "blocks.0.w");
        assert_eq!(spelled("*.l.*", "*.b.*", "enc.l.7.w").unwrap(), "enc.b.7.w");
        assert_eq!(Pattern::new("*.l.*").to_string(), "*.l.*");
        assert_eq!(Pattern::new("*.l.*").stars(), 2);
    }

    #[test]
    fn two_stars_are_any_number_of_names() {
        let covers = |pattern: &str, path: &str| Pattern::new(pattern).covers(path);
        for path in ["bias", "head.bias", "enc.l.7.f.bias", "enc.bias.lora_a"] {
            assert!(covers("**.bias", path), "{path}");
        }
        assert!(!covers("**.bias", "enc.bias_table") && !covers("*.bias", "enc.l.bias"));
        assert!(covers("enc.**.norm.*", "enc.l.7.norm.gamma") && covers("enc.**.norm.*", "enc.norm.gamma"));
        assert!(!covers("enc.**.norm.*", "enc.l.7.norm") && !covers("enc.**.norm.*", "dec.norm.gamma"));
        assert!(covers("**", "a") && covers("**.l.**.w", "a.b.l.l.w"));
    }

    #[test]
    fn what_two_stars_are_is_taken_over() {
        assert_eq!(spelled("**.norm", "x.**.LayerNorm", "enc.l.7.norm.gamma").unwrap(), "x.enc.l.7.LayerNorm.gamma");
        assert_eq!(spelled("**.norm", "x.**.LayerNorm", "norm.gamma").unwrap(), "x.LayerNorm.gamma");
        assert_eq!(spelled("**.l.*", "**.b.*", "a.l.l.7").unwrap(), "a.b.l.7", "as few as it can");
        assert_eq!(Pattern::new("a.**.b").to_string(), "a.**.b");
    }
}
