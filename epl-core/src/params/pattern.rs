//! Paths of parameters in which `*` stands for any one name.

use core::fmt;

use strsim::jaro_winkler;

use crate::error::{Error, Result};
use crate::params::record::ParamRecord;

/// How any one name is written.
const ANY: &str = "*";

/// Names joined by dots, of which `*` is any one name. It covers the path that it spells, and all below that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<PatternPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPart {
    Name(String),
    Any,
}

impl PatternPart {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Any => None,
        }
    }
}

/// What a path has at the stars of a pattern, and below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match<'a> {
    any: Vec<&'a str>,
    rest: Vec<&'a str>,
}

impl Pattern {
    /// Nothing stands for the whole model.
    pub fn new(text: &str) -> Self {
        let part = |name: &str| if name == ANY { PatternPart::Any } else { PatternPart::Name(name.to_string()) };
        Self(text.split('.').filter(|name| !name.is_empty()).map(part).collect())
    }

    /// How many names may be any.
    pub fn stars(&self) -> usize {
        self.0.iter().filter(|part| **part == PatternPart::Any).count()
    }

    /// What a path has at the stars and below; nothing when the pattern does not cover it.
    pub fn of<'a>(&self, path: &'a str) -> Option<Match<'a>> {
        let mut names = path.split('.');
        let mut any = Vec::new();
        for part in &self.0 {
            match (part, names.next()?) {
                (PatternPart::Any, name) => any.push(name),
                (PatternPart::Name(own), name) if own == name => {}
                _ => return None,
            }
        }
        Some(Match { any, rest: names.collect() })
    }

    /// Whether it covers a path.
    pub fn covers(&self, path: &str) -> bool {
        self.of(path).is_some()
    }

    /// The path that another pattern's match spells here: its stars in their order, and what is below.
    pub fn spelled(&self, found: &Match<'_>) -> String {
        let mut any = found.any.iter().copied();
        let spelled = |part: &PatternPart| part.name().unwrap_or_else(|| any.next().unwrap_or(ANY)).to_string();
        let own: Vec<String> = self.0.iter().map(spelled).collect();
        own.into_iter().chain(found.rest.iter().map(ToString::to_string)).collect::<Vec<_>>().join(".")
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|part| part.name().unwrap_or(ANY)).collect();
        f.write_str(&names.join("."))
    }
}

/// How many paths are named that are like one that is not there.
const NEAREST: usize = 3;

/// The numbers of the records that a pattern covers, which the option or setting `what` names.
///
/// # Errors
///
/// When there is none: the paths that are most like it.
pub(crate) fn covered(said: &str, records: &[ParamRecord], what: &str) -> Result<Vec<usize>> {
    let pattern = Pattern::new(said);
    let covered: Vec<usize> = (0..records.len()).filter(|number| pattern.covers(&records[*number].name)).collect();
    if !covered.is_empty() {
        return Ok(covered);
    }
    let mut nearest: Vec<&str> = records.iter().map(|record| &*record.name).collect();
    nearest.sort_by(|a, b| jaro_winkler(said, b).total_cmp(&jaro_winkler(said, a)));
    let nearest: Vec<String> = nearest.iter().take(NEAREST).map(|name| format!("`{name}`")).collect();
    Err(Error::invalid(format!(
        "{what}: no parameter is at `{said}`; the nearest are {}, and `*` stands for one name between dots",
        nearest.join(", ")
    )))
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
}
