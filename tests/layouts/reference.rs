//! EPL's own planning functions, case by case.
//!
//! `fixtures/epl_reference_cases.json` holds inputs and outputs that EPL itself computed, by kind. The environment
//! variable `EPL_REFERENCE_CASES` names another file of the same shape. Kinds whose function does not exist yet are
//! listed as skipped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use epl::data::{FileSlices, SliceRule};
use epl::plan::fuse;
use epl::schedule::partition::{PartitionError, epl as of_epl};
use epl::schedule::{Cost, Schedule, Verified, simulate};
use serde_json::Value;

type Cases = BTreeMap<String, Vec<Value>>;

/// What a case's function returns here, in the case's own words.
type Answer = fn(&Value) -> Value;

/// The kinds that are built: a field that holds EPL's answer, and ours.
const KINDS: [(&str, &str, Answer); 10] = [
    ("fusion_buckets", "buckets", fusion_buckets),
    ("io_slicing", "per_rank_sorted", io_slicing),
    ("partition_buckets", "out", |case| {
        let size = number(&case["bucket_size"]) as u64;
        serde_json::json!(of_epl::partition_buckets(&weights(case), size, number(&case["num_stages"])))
    }),
    ("partition_balance", "out", |case| {
        indices(of_epl::partition_balance(&weights(case), number(&case["num_stages"])))
    }),
    ("partition_balance", "sizes", |case| {
        sizes(of_epl::partition_balance(&weights(case), number(&case["num_stages"])))
    }),
    ("partition_stages", "out", |case| indices(of_epl::partition_stages(&weights(case), number(&case["n"])))),
    ("partition_stages", "sizes", |case| sizes(of_epl::partition_stages(&weights(case), number(&case["n"])))),
    ("pipeline_schedules", "order", |case| schedule(case).to_string().lines().collect::<Vec<_>>().into()),
    ("pipeline_schedules", "peak_in_flight", |case| {
        let schedule = schedule(case);
        (0..number(&case["stages"])).map(|stage| schedule.peak_in_flight(stage)).collect::<Vec<_>>().into()
    }),
    // Of a forward of 1 and a backward of 2.
    ("pipeline_schedules", "makespan", |case| {
        let costs = vec![Cost::USUAL; number(&case["stages"])];
        simulate(&schedule(case), &costs).expect("one cost a stage").makespan().into()
    }),
];

fn weights(case: &Value) -> Vec<u64> {
    list(&case["weights"]).iter().map(|weight| number(weight) as u64).collect()
}

fn indices(parts: Result<Vec<Range<usize>>, PartitionError>) -> Value {
    parts.expect("a partition").into_iter().map(|part| part.collect::<Vec<_>>()).collect::<Vec<_>>().into()
}

fn sizes(parts: Result<Vec<Range<usize>>, PartitionError>) -> Value {
    parts.expect("a partition").iter().map(Range::len).collect::<Vec<_>>().into()
}

fn schedule(case: &Value) -> Verified {
    let all = [Schedule::PreferForward, Schedule::PreferBackward, Schedule::PreferBackwardOptimizer];
    let named = all.into_iter().find(|schedule| schedule.to_string().to_lowercase() == case["schedule"]);
    let named = named.unwrap_or_else(|| panic!("no schedule is called {}", case["schedule"]));
    named.verified(number(&case["stages"]), number(&case["micro_batches"])).expect("a schedule")
}

fn fusion_buckets(case: &Value) -> Value {
    let tensors: Vec<(&str, usize)> = list(&case["tensors"]).iter().map(tensor).collect();
    fuse(&tensors, number(&case["max_splits"])).into()
}

/// What every worker reads, whatever the order.
fn io_slicing(case: &Value) -> Value {
    let switch = |key: &str| case[key].as_bool().expect("a switch");
    let rule = SliceRule { unbalanced: switch("unbalanced"), drop_last: switch("drop_last") };
    let workers: Vec<usize> = list(&case["gpus_per_worker"]).iter().map(number).collect();
    let slices = FileSlices::new(number(&case["num_files"]), &workers, rule).expect("files");
    let names = |mut files: Vec<usize>| {
        files.sort_unstable();
        files.into_iter().map(|file| format!("f{file}")).collect::<Vec<_>>()
    };
    slices.lists(7).into_iter().map(names).collect::<Vec<_>>().into()
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
        if !KINDS.iter().any(|(built, ..)| *built == kind) {
            println!("skipped: {kind} ({} cases), not built yet", cases.len());
            continue;
        }
        for (_, field, answer) in KINDS.iter().filter(|(built, ..)| *built == kind) {
            for case in &cases {
                answered += 1;
                let ours = answer(case);
                if ours != case[field] {
                    faults.push(format!("{kind} {case}\n    ours {ours}"));
                }
            }
            println!("answered: {kind} ({} cases, {field})", cases.len());
        }
    }
    assert!(answered > 0, "the file has no case of {:?}", KINDS.map(|(kind, ..)| kind));
    assert!(faults.is_empty(), "{} of {answered} cases differ:\n{}", faults.len(), faults.join("\n"));
}
