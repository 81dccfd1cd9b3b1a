//! Where two values of JSON disagree, such as configurations, one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

/// A value on which what was saved and what is now disagree.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference<'a> {
    /// The keys that lead to it, joined by dots; empty where the configuration is one value.
    key: String,
    saved: Option<&'a Value>,
    now: Option<&'a Value>,
}

/// All differences, in the order of their keys.
pub(crate) fn differences<'a>(saved: &'a Value, now: &'a Value) -> Vec<Difference<'a>> {
    let (saved, now) = (flat(saved), flat(now));
    let keys: BTreeSet<&String> = saved.keys().chain(now.keys()).collect();
    let pairs = keys.into_iter().map(|key| (key, saved.get(key).copied(), now.get(key).copied()));
    let differ = pairs.filter(|(_, saved, now)| !is_same(*saved, *now));
    differ.map(|(key, saved, now)| Difference { key: key.clone(), saved, now }).collect()
}

/// The values that are no objects, by the keys that lead to them.
fn flat(value: &Value) -> BTreeMap<String, &Value> {
    let Value::Object(fields) = value else {
        return BTreeMap::from([(String::new(), value)]);
    };
    let field = |(key, value): (&String, _)| {
        let inner = flat(value).into_iter();
        let key = key.clone();
        inner.map(move |(rest, value)| (if rest.is_empty() { key.clone() } else { format!("{key}.{rest}") }, value))
    };
    fields.iter().flat_map(field).collect()
}

fn is_same(a: Option<&Value>, b: Option<&Value>) -> bool {
    let float = |value: Option<&Value>| value.filter(|value| value.is_f64()).and_then(Value::as_f64);
    match (float(a), float(b)) {
        // A number that was written and read again may have lost its last bit.
        (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * a.abs(),
        _ => a == b,
    }
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: Option<&Value>| value.map_or("not given".to_string(), Value::to_string);
        if !self.key.is_empty() {
            write!(f, "`{}` ", self.key)?;
        }
        write!(f, "{}, now {}", show(self.saved), show(self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(saved: Value, now: Value) -> Vec<String> {
        differences(&saved, &now).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn values_are_compared_one_by_one() {
        let saved = json!({"train": {"seed": 1, "steps": 20, "clip_norm": 0.5}, "old": true});
        let now = json!({"train": {"seed": 1, "steps": 30, "clip_norm": 0.25}, "new": "x"});
        let expected = [
            "`new` not given, now \"x\"",
            "`old` true, now not given",
            "`train.clip_norm` 0.5, now 0.25",
            "`train.steps` 20, now 30",
        ];
        assert_eq!(shown(saved.clone(), now), expected);
        assert!(shown(saved.clone(), saved).is_empty());
        assert_eq!(shown(json!("AdamW"), json!("SGD")), ["\"AdamW\", now \"SGD\""]);
    }

    #[test]
    fn a_number_may_lose_its_last_bit_on_the_way_through_a_file() {
        assert!(shown(json!(0.1), json!(0.1 + f64::EPSILON / 16.0)).is_empty());
        assert_eq!(shown(json!(1), json!(2)).len(), 1);
        assert_eq!(shown(json!(u64::MAX), json!(u64::MAX - 1)).len(), 1);
        assert_eq!(shown(json!(1e-9), json!(2e-9)).len(), 1);
    }
}
