//! Which stored tensor is which parameter: written once, read in both directions.

use super::source::Source;

/// What stands in a name for a number, such as that of a layer.
const NUMBER: char = '*';

/// What stands in a stored name for the number of an equal part, such as an expert.
const PART: char = '#';

/// Pairs of names, that of a parameter and that of its stored tensor, with `*` for numbers that both have.
///
/// ```
/// use epl_models::huggingface::{NameTable, Source};
///
/// let table = NameTable::new()
///     .same("layers.*.norm.gamma", "model.layer.*.norm.weight")
///     .transposed("head.weight", "lm_head.weight")
///     .stacked("layers.*.experts.input", "model.layer.*.experts.expert_#.wi.weight", 8);
/// assert_eq!(table.source("layers.3.norm.gamma"), Some(Source::Same("model.layer.3.norm.weight".into())));
/// assert_eq!(table.paths("model.layer.3.experts.expert_7.wi.weight"), ["layers.3.experts.input"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    ours: String,
    stored: String,
    form: StoredForm,
}

/// How a parameter is stored.
#[derive(Clone, Copy, Debug)]
enum StoredForm {
    Same,
    Transposed,
    /// One part, of so many along the last dim.
    Part(usize, usize),
    /// So many parts along its first dim, each transposed.
    Stacked(usize),
}

impl NameTable {
    /// No names.
    pub fn new() -> Self {
        Self::default()
    }

    /// A parameter that is stored as it is.
    #[must_use]
    pub fn same(self, ours: &str, stored: &str) -> Self {
        self.with(ours, stored, StoredForm::Same)
    }

    /// A weight that PyTorch stores as `[outputs, inputs]`, and Burn as `[inputs, outputs]`.
    #[must_use]
    pub fn transposed(self, ours: &str, stored: &str) -> Self {
        self.with(ours, stored, StoredForm::Transposed)
    }

    /// Weights of so many equal linear layers, which are one parameter here, along a new first dim; `#` in the stored name
    /// is their number.
    #[must_use]
    pub fn stacked(self, ours: &str, stored: &str, parts: usize) -> Self {
        self.with(ours, stored, StoredForm::Stacked(parts))
    }

    /// Parameters that are stored as one tensor, beside each other along its last dim and in this order.
    #[must_use]
    pub fn beside(self, ours: &[&str], stored: &str) -> Self {
        let numbered = ours.iter().enumerate();
        numbered.fold(self, |table, (part, path)| table.with(path, stored, StoredForm::Part(part, ours.len())))
    }

    /// A linear layer with its bias.
    #[must_use]
    pub fn linear(self, ours: &str, stored: &str) -> Self {
        let of = |at: &str, field: &str| format!("{at}.{field}");
        self.transposed(&of(ours, "weight"), &of(stored, "weight")).same(&of(ours, "bias"), &of(stored, "bias"))
    }

    fn with(mut self, ours: &str, stored: &str, form: StoredForm) -> Self {
        self.rules.push(Rule { ours: ours.to_string(), stored: stored.to_string(), form });
        self
    }

    /// Where the parameter at a path is stored.
    pub fn source(&self, path: &str) -> Option<Source> {
        let (rule, numbers) = self.rules.iter().find_map(|rule| Some((rule, numbers(&rule.ours, path)?)))?;
        let stored = |part: Option<usize>| spelled(&rule.stored, &numbers.stars, part);
        Some(match rule.form {
            StoredForm::Same => Source::Same(stored(None)),
            StoredForm::Transposed => Source::Transposed(stored(None)),
            StoredForm::Part(part, of) => Source::Part { name: stored(None), part, of },
            StoredForm::Stacked(parts) => {
                Source::Stacked((0..parts).map(|part| Source::Transposed(stored(Some(part)))).collect())
            }
        })
    }

    /// The paths of the parameters that a stored tensor is, is a part of, or is put together from; none if it is no parameter.
    pub fn paths(&self, stored: &str) -> Vec<String> {
        let path = |rule: &Rule| {
            let numbers = numbers(&rule.stored, stored)?;
            let known = match (rule.form, numbers.part) {
                (StoredForm::Stacked(parts), Some(part)) => part < parts,
                (_, part) => part.is_none(),
            };
            known.then(|| spelled(&rule.ours, &numbers.stars, None))
        };
        self.rules.iter().filter_map(path).collect()
    }
}

/// The numbers that a name has where a pattern leaves them open.
#[derive(Debug, Default)]
struct Numbers {
    stars: Vec<usize>,
    part: Option<usize>,
}

/// The open numbers of a name; nothing when the pattern is of another one.
fn numbers(pattern: &str, name: &str) -> Option<Numbers> {
    let (mut numbers, mut rest) = (Numbers::default(), name);
    for (at, letter) in pattern.char_indices() {
        if letter != NUMBER && letter != PART {
            rest = rest.strip_prefix(letter)?;
            continue;
        }
        let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        let written = &rest[..digits];
        let number: usize = written.parse().ok()?;
        // One number is written in one way only.
        if number.to_string() != written {
            return None;
        }
        match &pattern[at..=at] {
            "*" => numbers.stars.push(number),
            _ => numbers.part = Some(number),
        }
        rest = &rest[digits..];
    }
    rest.is_empty().then_some(numbers)
}

/// A pattern with numbers in it.
fn spelled(pattern: &str, stars: &[usize], part: Option<usize>) -> String {
    let mut stars = stars.iter();
    let mut name = String::with_capacity(pattern.len());
    for letter in pattern.chars() {
        let number = match letter {
            NUMBER => stars.next().copied(),
            PART => part,
            _ => None,
        };
        match number {
            Some(number) => name.push_str(&number.to_string()),
            None => name.push(letter),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> NameTable {
        NameTable::new().same("stages.*.layers.*.gamma", "s.*.l.*.weight").linear("head", "out").stacked(
            "moe.*.input",
            "m.*.e_#.wi",
            2,
        )
    }

    #[test]
    fn names_are_found_in_both_directions() {
        for (path, stored) in [("stages.1.layers.10.gamma", "s.1.l.10.weight"), ("head.bias", "out.bias")] {
            assert_eq!(table().source(path), Some(Source::Same(stored.into())));
            assert_eq!(table().paths(stored), [path]);
        }
        assert_eq!(table().source("head.weight"), Some(Source::Transposed("out.weight".into())));
        let parts = [0, 1].map(|part| Source::Transposed(format!("m.4.e_{part}.wi")));
        assert_eq!(table().source("moe.4.input"), Some(Source::Stacked(parts.to_vec())));
        assert_eq!(table().paths("m.4.e_1.wi"), ["moe.4.input"]);
        let table = NameTable::new().beside(&["q.*", "k.*"], "qk.*");
        assert_eq!(table.source("k.3"), Some(Source::Part { name: "qk.3".into(), part: 1, of: 2 }));
        assert_eq!(table.paths("qk.3"), ["q.3", "k.3"]);
    }

    #[test]
    fn other_names_are_not() {
        for path in ["stages.x.layers.1.gamma", "stages.1.layers.1.gamma.x", "stages.01.layers.1.gamma", "head", ""] {
            assert_eq!(table().source(path), None, "{path}");
        }
        for stored in ["s.1.l.weight", "m.4.e_2.wi", "out.weight.x"] {
            assert_eq!(table().paths(stored), [""; 0], "{stored}");
        }
    }
}
