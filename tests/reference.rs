//! EPL's own planning functions, case by case.
//!
//! `fixtures/epl_reference_cases.json` holds inputs and outputs that EPL itself computed, by kind. The environment
//! variable `EPL_REFERENCE_CASES` names another file of the same shape. Kinds whose function does not exist yet are
//! listed as skipped.

use std::collections::BTreeMap;
use std::path::PathBuf;

use epl::plan::fuse;
use serde_json::Value;

type Cases = BTreeMap<String, Vec<Value>>;

/// What a case's function returns here, in the case's own words.
type Answer = fn(&Value) -> Value;

/// The kinds that are built: the field that holds EPL's answer, and ours.
const KINDS: [(&str, &str, Answer); 1] = [("fusion_buckets", "buckets", fusion_buckets)];

fn fusion_buckets(case: &Value) -> Value {
    let tensors: Vec<(&str, usize)> = list(&case["tensors"]).iter().map(tensor).collect();
    fuse(&tensors, number(&case["max_splits"])).into()
}

/// `["float32", 10]`: ten elements, as a key and bytes.
fn tensor(value: &Value) -> (&str, usize) {
    let dtype = value[0].as_str().expect("a tensor names its type");
    let bits: usize = dtype.trim_start_matches(char::is_alphabetic).parse().expect("a type's name ends with its bits");
    (dtype, bits / 8 * number(&value[1]))
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> usize {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).expect("a number")
}

fn cases() -> Cases {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/epl_reference_cases.json");
    let path = std::env::var_os("EPL_REFERENCE_CASES").map_or(own, PathBuf::from);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_kind_that_is_built_answers_as_epl() {
    let mut faults = Vec::new();
    let mut answered = 0;
    for (kind, cases) in cases() {
        let Some((_, field, answer)) = KINDS.iter().find(|(built, ..)| *built == kind) else {
            println!("skipped: {kind} ({} cases), not built yet", cases.len());
            continue;
        };
        for case in &cases {
            answered += 1;
            let ours = answer(case);
            if ours != case[field] {
                faults.push(format!("{kind} {case}\n    ours {ours}"));
            }
        }
        println!("answered: {kind} ({} cases)", cases.len());
    }
    assert!(answered > 0, "the file has no case of {:?}", KINDS.map(|(kind, ..)| kind));
    assert!(faults.is_empty(), "{} of {answered} cases differ:\n{}", faults.len(), faults.join("\n"));
}
