//! One trace of the traces of several processes, whose clocks are brought together by what all of them waited for.
//!
//! ```text
//! file 0   ────────▮ all_reduce 7 ▮────      no rank leaves a collective before every rank has come:
//! file 1   ──▮ all_reduce 7 ▮──────────      begin₁ + offset ≤ end₀, and begin₀ ≤ end₁ + offset
//! ```
//!
//! Each collective of all ranks so gives an interval for the offset of a file; of their intersection the middle is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::checkpoint::durable::replace;
use crate::error::{Error, Result};

/// The group of all ranks.
const WORLD: &str = "world";
/// Collectives whose result needs every member.
const OF_ALL: [&str; 5] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"];

/// By so many microseconds clocks may drift in a trace.
const MOST_APART: f64 = 10_000.0;

/// Joins the files that the processes of a run have written for `profile.trace`, each with the ranks of one process, into one:
/// the clocks of all are those of the first. The uncertainty of each offset, in microseconds, is returned.
///
/// ```
/// # use epl_core::probe::join_traces;
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let [first, second, joined] = ["trace.json", "trace-1.json", "joined.json"].map(|name| folder.path().join(name));
/// // The same all-reduce on two ranks, whose clocks are 5 s apart.
/// for (path, rank, begin) in [(&first, 0, 100.0), (&second, 1, 5_000_102.0)] {
///     let call = serde_json::json!({ "ph": "X", "name": "all_reduce(sum)", "pid": rank, "tid": 1, "ts": begin, "dur": 10.0,
///         "args": { "group": "world", "call": 1 } });
///     std::fs::write(path, serde_json::json!({ "traceEvents": [call] }).to_string()).expect("it is written");
/// }
/// let uncertain = join_traces(&[&first, &second], &joined)?;
/// assert_eq!(uncertain, [0.0, 10.0]); // each has come before the other left: within so many microseconds
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// When a file cannot be read, is no trace of EPL's, has a rank that another one has, no collective of all ranks in common with the
/// first, or such that no clock explains, as of another run; when the new file cannot be written.
pub fn join_traces<P: AsRef<Path>>(files: &[P], to: impl AsRef<Path>) -> Result<Vec<f64>> {
    let Some((first, others)) = files.split_first() else {
        return Err(Error::invalid("no trace; give the files of all processes"));
    };
    let mut first = ProcessTrace::read(first.as_ref())?;
    let (mut all, mut uncertain) = (core::mem::take(&mut first.events), vec![0.0]);
    let mut known = first.ranks.clone();
    for place in others.iter().map(AsRef::as_ref) {
        let mut other = ProcessTrace::read(place)?;
        if let Some(rank) = known.intersection(&other.ranks).next() {
            return Err(Error::file(
                place,
                format!("rank {rank} is in another file, too; give each process's once, of one run"),
            ));
        }
        let [from, to] = first.offset_of(&other).ok_or_else(|| {
            Error::file(
                place,
                "has no collective of all ranks in common with the first file; trace the same steps in all processes \
                 (profile.trace_skip, trace_steps)",
            )
        })?;
        if from - to > MOST_APART {
            return Err(Error::file(
                place,
                format!(
                    "in some collective a rank leaves {:.0} ms before another has come, by whatever clocks: it is of another run than \
                     the first file, or of a call that failed",
                    (from - to) / 1000.0
                ),
            ));
        }
        uncertain.push((to - from).abs() / 2.0);
        other.events.iter_mut().for_each(|event| delay(event, (from + to) / 2.0));
        all.append(&mut other.events);
        known.append(&mut other.ranks);
    }
    let begin = all.iter().filter_map(|event| event["ts"].as_f64()).fold(f64::INFINITY, f64::min);
    all.iter_mut().for_each(|event| delay(event, -begin));
    let document = json!({ "displayTimeUnit": "ms", "traceEvents": all });
    let text = serde_json::to_vec(&document).map_err(|error| Error::file(to.as_ref(), error))?;
    replace(to.as_ref(), &text)?;
    Ok(uncertain)
}

/// Moves an event by so many microseconds, if it has a time.
fn delay(event: &mut Value, by: f64) {
    if let Some(at) = event["ts"].as_f64() {
        event["ts"] = json!(at + by);
    }
}

/// What the file of one process has.
struct ProcessTrace {
    events: Vec<Value>,
    ranks: BTreeSet<u64>,
    /// Of the collectives of all ranks, by the number of the call: when the last of this file's ranks came, and the first left.
    met: BTreeMap<u64, [f64; 2]>,
}

impl ProcessTrace {
    fn read(file: &Path) -> Result<Self> {
        let text = fs::read(file).map_err(|error| Error::file(file, error))?;
        let mut document: Value = serde_json::from_slice(&text).map_err(|error| Error::file(file, error))?;
        let events = document.get_mut("traceEvents").and_then(Value::as_array_mut).map(core::mem::take);
        let events = events.ok_or_else(|| Error::file(file, "has no `traceEvents`"))?;
        let (mut ranks, mut met) = (BTreeSet::new(), BTreeMap::<u64, [f64; 2]>::new());
        for event in &events {
            ranks.extend(event["pid"].as_u64());
            let name = event["name"].as_str().unwrap_or_default();
            let waits = OF_ALL.iter().any(|known| name.split('(').next() == Some(known));
            let numbers = (event["args"]["call"].as_u64(), event["ts"].as_f64(), event["dur"].as_f64());
            if let (true, (Some(call), Some(begin), Some(lasts))) = (waits && event["args"]["group"] == WORLD, numbers)
            {
                let [came, left] = met.entry(call).or_insert([f64::NEG_INFINITY, f64::INFINITY]);
                (*came, *left) = (came.max(begin), left.min(begin + lasts));
            }
        }
        Ok(Self { events, ranks, met })
    }

    /// Between which numbers that lies which is added to the other's times. Clocks that drift may leave nothing between: then the
    /// first is the larger one.
    fn offset_of(&self, other: &Self) -> Option<[f64; 2]> {
        let bounds = self.met.iter().filter_map(|(call, [came, left])| {
            let [other_came, other_left] = other.met.get(call)?;
            Some([came - other_left, left - other_came])
        });
        bounds.reduce(|[from, to], [other_from, other_to]| [from.max(other_from), to.min(other_to)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that does so many collectives of all ranks, by a clock that is ahead.
    fn trace(rank: u64, calls: &[(u64, f64, f64)], ahead: f64) -> Value {
        let call = |(call, begin, end): &(u64, f64, f64)| {
            json!({ "ph": "X", "name": "all_reduce(sum)", "ts": begin + ahead, "dur": end - begin, "pid": rank, "tid": 1,
                "args": { "group": WORLD, "call": call } })
        };
        let mut events: Vec<Value> = calls.iter().map(call).collect();
        events.push(json!({ "ph": "X", "name": "forward 0", "ts": 10.0 + ahead, "dur": 3.0, "pid": rank, "tid": 0 }));
        events.push(json!({ "ph": "C", "name": "memory (bytes)", "ts": 13.0 + ahead, "pid": rank, "tid": 0,
            "args": { "buffers": rank } }));
        events.push(json!({ "ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": { "name": "rank" } }));
        json!({ "traceEvents": events })
    }

    fn joined(traces: &[Value]) -> Result<(Vec<f64>, Value)> {
        let folder = tempfile::tempdir().unwrap();
        let file = |number: usize| folder.path().join(format!("{number}.json"));
        let files: Vec<_> = (0..traces.len()).map(file).collect();
        for (file, trace) in files.iter().zip(traces) {
            fs::write(file, trace.to_string()).unwrap();
        }
        let to = folder.path().join("joined.json");
        let uncertain = join_traces(&files, &to)?;
        Ok((uncertain, serde_json::from_slice(&fs::read(to).unwrap()).unwrap()))
    }

    #[test]
    fn clocks_are_brought_together_by_what_all_ranks_waited_for() {
        // Either rank comes last once.
        let first = trace(0, &[(4, 20.0, 31.0), (5, 49.0, 51.0)], 0.0);
        let second = trace(1, &[(4, 29.0, 31.5), (5, 40.0, 50.5)], 7e6);
        let third = trace(2, &[(4, 30.0, 31.2), (5, 45.0, 50.8), (6, 60.0, 61.0)], -250.0);
        let (uncertain, document) = joined(&[first, second, third]).unwrap();
        assert!(uncertain.iter().all(|one| *one < 2.0), "{uncertain:?}");
        let events = document["traceEvents"].as_array().unwrap();
        let of = |name: &str, call: Option<u64>| -> Vec<[f64; 2]> {
            let is = |event: &&Value| event["name"] == name && call.is_none_or(|call| event["args"]["call"] == call);
            let times = |event: &Value| {
                let begin = event["ts"].as_f64().unwrap();
                [begin, begin + event["dur"].as_f64().unwrap_or(0.0)]
            };
            events.iter().filter(is).map(times).collect()
        };
        for call in [4, 5] {
            let spans = of("all_reduce(sum)", Some(call));
            assert_eq!(spans.len(), 3);
            let (last, first) = spans
                .iter()
                .fold((f64::MIN, f64::MAX), |(last, first), [begin, end]| (last.max(*begin), first.min(*end)));
            assert!(last <= first, "all have come before one leaves: {spans:?}");
        }
        let begins: Vec<f64> = of("forward 0", None).iter().map(|[begin, _]| *begin).collect();
        assert!(begins.iter().all(|begin| (begin - begins[0]).abs() < 2.0), "{begins:?}");
        assert!(begins.iter().all(|begin| *begin >= 0.0) && begins.contains(&0.0), "{begins:?}");
        for (counted, begin) in of("memory (bytes)", None).iter().zip(&begins) {
            assert!((counted[0] - begin - 3.0).abs() < 1e-6, "a counter goes with its rank: {counted:?}");
        }
        let counted: Vec<&Value> =
            events.iter().filter(|event| event["ph"] == "C").map(|event| &event["args"]).collect();
        assert_eq!(counted, [0, 1, 2].map(|rank| json!({ "buffers": rank })).iter().collect::<Vec<_>>());
        assert_eq!(events.len(), 5 + 5 + 6);
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let one = trace(0, &[(4, 20.0, 31.0)], 0.0);
        let failed = |other: &Value| joined(&[one.clone(), other.clone()]).unwrap_err().to_string();
        assert!(failed(&trace(0, &[(4, 20.0, 31.0)], 0.0)).contains("rank 0 is in another file, too"));
        assert!(failed(&trace(1, &[(5, 20.0, 31.0)], 0.0)).contains("no collective of all ranks in common"));
        assert!(failed(&json!({})).contains("has no `traceEvents`"));
        let one = trace(0, &[(4, 20.0, 31.0), (5, 1e6, 1e6 + 9.0)], 0.0);
        let other = trace(1, &[(4, 20.0, 31.0), (5, 2e6, 2e6 + 9.0)], 0.0);
        assert!(joined(&[one, other]).unwrap_err().to_string().contains("it is of another run"));
        assert!(joined(&[]).unwrap_err().to_string().contains("give the files of all processes"));
    }
}
