//! What values an option takes.

use std::fmt;

use toml::Value;

use super::path_number::PathNumber;

/// The values an option takes: used to check a value, to read one from text, and in the docs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ValueKind {
    /// `true` or `false`.
    Switch,
    /// An integer between two bounds, both allowed.
    Integer {
        /// The smallest value allowed.
        least: i64,
        /// The largest value allowed.
        most: i64,
    },
    /// A finite number of at least this.
    NumberAtLeast(f64),
    /// A finite number above this.
    NumberAbove(f64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of integers of at least zero.
    Integers,
    /// A list of words; an integer is one too.
    Words,
    /// A list of `path=number`, of numbers of at least zero.
    PathNumbers,
    /// Any text, such as the path of a file.
    Text,
    /// Device numbers separated by commas, none twice; empty for all devices.
    DeviceList,
    /// This word, or a value of the other kind.
    Or(&'static str, &'static ValueKind),
}

impl ValueKind {
    /// An integer of at least `least`.
    pub const fn at_least(least: i64) -> Self {
        ValueKind::Integer { least, most: i64::MAX }
    }

    /// The value as the option stores it (an integer given for a number becomes one), or `None`
    /// where the option does not take it.
    pub fn check(&self, value: &Value) -> Option<Value> {
        match (self, value) {
            (ValueKind::Or(word, _), Value::String(text)) if text == word => Some(value.clone()),
            (ValueKind::Or(_, kind), _) => kind.check(value),
            (ValueKind::Switch, Value::Boolean(_)) => Some(value.clone()),
            (ValueKind::Integer { least, most }, Value::Integer(given)) => {
                (least <= given && given <= most).then(|| value.clone())
            }
            (ValueKind::NumberAtLeast(_) | ValueKind::NumberAbove(_), Value::Integer(given)) => {
                // A longer integer would not survive the conversion.
                (given.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS)
                    .then_some(Value::Float(*given as f64))
                    .and_then(|number| self.check(&number))
            }
            (ValueKind::NumberAtLeast(least), Value::Float(given)) => {
                (given.is_finite() && given >= least).then(|| value.clone())
            }
            (ValueKind::NumberAbove(bound), Value::Float(given)) => {
                (given.is_finite() && given > bound).then(|| value.clone())
            }
            (ValueKind::Choice(words), Value::String(text)) => words.contains(&text.as_str()).then(|| value.clone()),
            (ValueKind::Integers, Value::Array(items)) => {
                items.iter().all(|item| item.as_integer().is_some_and(|number| number >= 0)).then(|| value.clone())
            }
            (ValueKind::Words, Value::Array(items)) => items.iter().map(word).collect::<Option<_>>().map(Value::Array),
            (ValueKind::PathNumbers, Value::Array(items)) => items
                .iter()
                .all(|item| item.as_str().is_some_and(|text| PathNumber::read(text).is_some()))
                .then(|| value.clone()),
            (ValueKind::Text, Value::String(_)) => Some(value.clone()),
            (ValueKind::DeviceList, Value::String(text)) => is_device_list(text).then(|| value.clone()),
            _ => None,
        }
    }

    /// Reads a value written as plain text (environment, command line), or `None` where the option
    /// does not take it. A word may stand in double quotes.
    pub fn read(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        let value = match self {
            ValueKind::Or(word, kind) => match unquoted(text) {
                given if given == *word => Value::String(given.to_string()),
                _ => return kind.read(text),
            },
            ValueKind::Switch => Value::Boolean(text.to_ascii_lowercase().parse().ok()?),
            ValueKind::Integer { .. } => Value::Integer(text.parse().ok()?),
            ValueKind::NumberAtLeast(_) | ValueKind::NumberAbove(_) => Value::Float(text.parse().ok()?),
            ValueKind::Choice(_) | ValueKind::DeviceList | ValueKind::Text => Value::String(unquoted(text).to_string()),
            ValueKind::Integers => {
                Value::Array(items(text).map(|item| item.parse().ok().map(Value::Integer)).collect::<Option<_>>()?)
            }
            ValueKind::Words | ValueKind::PathNumbers => {
                Value::Array(items(text).map(|item| Value::String(unquoted(item).to_string())).collect())
            }
        };
        self.check(&value)
    }
}

/// The items of `[0, 0, 1]` or `0,0,1`; none of `[]`.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_empty = inner.is_some_and(|inner| inner.trim().is_empty());
    inner.unwrap_or(text).split(',').map(str::trim).filter(move |_| !is_empty)
}

/// A word of a list, which must not be empty.
fn word(item: &Value) -> Option<Value> {
    let word = item.as_str().map(str::to_string).or_else(|| item.as_integer().map(|number| number.to_string()));
    word.filter(|word| !word.is_empty()).map(Value::String)
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text)
}

fn is_device_list(text: &str) -> bool {
    let mut seen = Vec::new();
    text.is_empty()
        || text.split(',').all(|item| {
            item.trim().parse::<usize>().is_ok_and(|device| {
                let new = !seen.contains(&device);
                seen.push(device);
                new
            })
        })
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueKind::Switch => write!(f, "true or false"),
            ValueKind::Integer { least, most } if *most == i64::MAX => {
                write!(f, "an integer ≥ {least}")
            }
            ValueKind::Integer { least, most } => write!(f, "an integer from {least} to {most}"),
            ValueKind::NumberAtLeast(least) => write!(f, "a number ≥ {least}"),
            ValueKind::NumberAbove(bound) => write!(f, "a number > {bound}"),
            ValueKind::Choice(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                f.write_str(&quoted.join(" or "))
            }
            ValueKind::Integers => write!(f, "a list of integers ≥ 0 such as [0, 1, 1, 2]"),
            ValueKind::Words => write!(f, "a list of words or integers such as [embedding, 3]"),
            ValueKind::PathNumbers => {
                write!(f, "a list of path=number with numbers ≥ 0 such as [\"**.bias=0\", \"head=0.1\"]")
            }
            ValueKind::Text => write!(f, "a text"),
            ValueKind::DeviceList => write!(f, "device numbers such as \"0,4,7\", none twice, or \"\""),
            ValueKind::Or(word, kind) => write!(f, "\"{word}\" or {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAYBE: ValueKind = ValueKind::Or("none", &ValueKind::at_least(1));

    #[test]
    fn text_is_read_by_kind() {
        assert_eq!(ValueKind::Switch.read("True"), Some(Value::Boolean(true)));
        assert_eq!(ValueKind::Switch.read("1"), None);
        assert_eq!(ValueKind::at_least(1).read(" 4 "), Some(Value::Integer(4)));
        assert_eq!(ValueKind::at_least(1).read("0"), None);
        assert_eq!(ValueKind::at_least(1).read("4.0"), None);
        assert_eq!(ValueKind::NumberAtLeast(0.0).read("3e-5"), Some(Value::Float(3e-5)));
        assert_eq!(ValueKind::NumberAtLeast(0.0).read("nan"), None);
        assert_eq!(ValueKind::NumberAbove(0.0).read("inf"), None);
        assert_eq!(MAYBE.read("\"none\""), Some("none".into()));
        assert_eq!(MAYBE.read("3"), Some(Value::Integer(3)));
        assert_eq!(MAYBE.read("None"), None);
        let list = Some(Value::Array(vec![Value::Integer(0), Value::Integer(1)]));
        assert_eq!(ValueKind::Integers.read("[0, 1]"), list);
        assert_eq!(ValueKind::Integers.read("0,1"), list);
        assert_eq!(ValueKind::Integers.read("0,-1"), None);
        let words = Some(Value::Array(vec!["head".into(), "3".into()]));
        assert_eq!(ValueKind::Words.read("[\"head\", 3]"), words);
        assert_eq!(ValueKind::Words.read("head,3"), words);
        assert_eq!(ValueKind::Words.check(&Value::Array(vec!["head".into(), 3.into()])), words);
        assert_eq!(ValueKind::Words.read(""), None);
        let numbers = Some(Value::Array(vec!["**.bias=0".into(), "=1e-2".into()]));
        assert_eq!(ValueKind::PathNumbers.read("[\"**.bias=0\", =1e-2]"), numbers);
        assert_eq!(ValueKind::PathNumbers.read("**.bias=0,=1e-2"), numbers);
        assert_eq!(ValueKind::PathNumbers.read("**.bias"), None);
        assert_eq!(ValueKind::PathNumbers.check(&Value::Array(vec!["a=-1".into()])), None);
        for kind in [ValueKind::Words, ValueKind::PathNumbers, ValueKind::Integers] {
            assert_eq!(kind.read("[]"), Some(Value::Array(Vec::new())), "what takes back a list");
        }
        assert_eq!(ValueKind::Words.check(&Value::Array(vec![1.5.into()])), None);
    }

    #[test]
    fn values_are_checked() {
        let number = ValueKind::NumberAbove(0.0);
        assert_eq!(number.check(&Value::Integer(2)), Some(Value::Float(2.0)));
        assert_eq!(number.check(&Value::Integer(i64::MAX)), None);
        assert_eq!(number.check(&Value::Integer(0)), None);
        assert_eq!(number.check(&"2".into()), None);
        for (text, good) in [("", true), ("0,4,7", true), ("0,0", false), ("0,", false)] {
            assert_eq!(ValueKind::DeviceList.check(&text.into()).is_some(), good, "{text}");
        }
    }
}
