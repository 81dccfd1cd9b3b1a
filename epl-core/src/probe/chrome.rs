//! A trace in the format that Perfetto and `chrome://tracing` read.
//!
//! ```text
//! rank 0 (data 0, pipeline 0)          a process
//!   rank     ▮forward 0▮▮backward 0▮   a thread: what the rank itself does
//!   data       ▮all_reduce▮            a thread a group: its collectives, also those that go on by themselves
//!   memory     ▁▃▅▅▃▁                  a counter: how much there was of something, one kind upon the other
//! ```
//!
//! The format is described in Google's *Trace Event Format*; times are in microseconds from the first event.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use epl_comm::{Event, EventKind, Rank, Trace};
use serde_json::{Map, Value, json};

use crate::checkpoint::durable::replace;
use crate::error::{Error, Result};

/// The thread of what a rank itself does; those of groups come behind it.
const RANK: usize = 0;

/// Writes a trace to a file. One that is there is replaced when the new one is whole.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_trace(trace: &Trace, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let text = serde_json::to_vec(&document(trace)).map_err(|error| Error::file(path, error))?;
    replace(path, &text)
}

fn document(trace: &Trace) -> Value {
    let events = trace.events();
    let Some(begin) = events.iter().map(|event| event.begin).min() else {
        return json!({ "traceEvents": [] });
    };
    let mut groups = GroupThreads::default();
    let mut all: Vec<Value> = events.iter().map(|event| entry(event, begin, &mut groups)).collect();
    all.extend(groups.names(&trace.names()));
    json!({ "displayTimeUnit": "ms", "traceEvents": all })
}

/// The threads of a rank's groups, by rank and name.
#[derive(Default)]
struct GroupThreads(BTreeMap<usize, BTreeMap<String, usize>>);

impl GroupThreads {
    fn thread(&mut self, rank: usize, group: &str) -> usize {
        let threads = self.0.entry(rank).or_default();
        let next = threads.len() + RANK + 1;
        *threads.entry(group.to_string()).or_insert(next)
    }

    /// The names of all processes and threads.
    fn names(&self, ranks: &BTreeMap<Rank, String>) -> Vec<Value> {
        let name = |what: &str, rank: usize, thread: usize, name: &str| json!({ "ph": "M", "name": what, "pid": rank, "tid": thread, "args": { "name": name } });
        let of_rank = |(rank, groups): (&usize, &BTreeMap<String, usize>)| {
            let process = match ranks.get(&Rank(*rank)) {
                Some(name) => format!("rank {rank} ({name})"),
                None => format!("rank {rank}"),
            };
            let mut names = vec![name("process_name", *rank, RANK, &process), name("thread_name", *rank, RANK, "rank")];
            names.extend(groups.iter().map(|(group, thread)| name("thread_name", *rank, *thread, group)));
            names
        };
        self.0.iter().flat_map(of_rank).collect()
    }
}

fn entry(event: &Event, begin: Instant, groups: &mut GroupThreads) -> Value {
    let micros = |from: Instant, to: Instant| (to - from).as_nanos() as f64 / 1000.0;
    let (rank, at, lasts) = (event.rank.0, micros(begin, event.begin), micros(event.begin, event.end));
    groups.0.entry(rank).or_default();
    match &event.kind {
        EventKind::Mark(what) => {
            json!({ "ph": "i", "s": "t", "name": what, "cat": "mark", "ts": at, "pid": rank, "tid": RANK })
        }
        EventKind::Span(what) => {
            let category = what.split(' ').next().unwrap_or_default();
            json!({ "ph": "X", "name": what, "cat": category, "ts": at, "dur": lasts, "pid": rank, "tid": RANK })
        }
        EventKind::Counter { name, amounts } => {
            let amounts = amounts.iter().map(|(kind, amount)| (kind.clone(), (*amount).into()));
            let amounts: Map<String, Value> = amounts.collect();
            json!({ "ph": "C", "name": name, "cat": "counter", "ts": at, "pid": rank, "tid": RANK, "args": amounts })
        }
        EventKind::Collective { group, sequence, operation, dtype, shape } => {
            let elements: usize = shape.iter().product();
            let thread = groups.thread(rank, group);
            json!({
                "ph": "X", "name": operation.to_string(), "cat": "collective", "ts": at, "dur": lasts, "pid": rank,
                "tid": thread, "args": {
                    "group": group, "call": sequence, "dtype": format!("{dtype:?}"), "shape": shape.to_vec(),
                    "bytes": elements * dtype.size(),
                }
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use burn::tensor::{Device, Tensor};
    use epl_comm::{ReduceOp, local};

    use super::*;

    #[test]
    fn spans_marks_and_collectives_stand_where_they_belong() {
        let trace = Trace::new();
        let ran = local::run(2, |group| {
            let group = group.traced(&trace);
            let rank = group.global(group.rank());
            let span = trace.span(rank, || "forward 0 segment 1".into());
            trace.name(rank, format!("stage {}", rank.0));
            trace.mark(rank, "start bucket 0");
            trace.count(rank, "memory (bytes)", vec![("parameters".into(), 40), ("gradients".into(), rank.0 as u64)]);
            group.all_reduce(Tensor::<1>::ones([3], &Device::flex()), ReduceOp::Sum)?;
            sleep(Duration::from_millis(1));
            drop(span);
            Ok::<_, epl_comm::Error>(())
        });
        assert!(ran.is_ok());
        let document = document(&trace);
        let events = document["traceEvents"].as_array().unwrap();
        let of = |rank: usize, phase: &str, name: &str| -> Vec<&Value> {
            let is = |event: &&Value| event["pid"] == rank && event["ph"] == phase && event["name"] == name;
            events.iter().filter(is).collect()
        };
        for Rank(rank) in [Rank(0), Rank(1)] {
            let span = of(rank, "X", "forward 0 segment 1")[0];
            assert_eq!((&span["cat"], &span["tid"]), (&json!("forward"), &json!(RANK)));
            assert!(span["dur"].as_f64().unwrap() >= 1000.0, "microseconds: {span}");
            let sum = of(rank, "X", "all_reduce(sum)")[0];
            assert_eq!(
                (&sum["tid"], &sum["args"]["bytes"], &sum["args"]["shape"]),
                (&json!(1), &json!(12), &json!([3]))
            );
            let (ts, dur) =
                (|event: &Value| event["ts"].as_f64().unwrap(), |event: &Value| event["dur"].as_f64().unwrap());
            assert!(ts(span) <= ts(sum) && ts(sum) + dur(sum) <= ts(span) + dur(span));
            assert_eq!(of(rank, "i", "start bucket 0").len(), 1);
            let counted = of(rank, "C", "memory (bytes)")[0];
            assert_eq!(counted["args"], json!({ "parameters": 40, "gradients": rank }));
            assert!((ts(span)..=ts(span) + dur(span)).contains(&ts(counted)));
            let names: Vec<&Value> = of(rank, "M", "thread_name").iter().map(|name| &name["args"]["name"]).collect();
            assert_eq!(names, [&json!("rank"), &json!("world")]);
            let process = &of(rank, "M", "process_name")[0]["args"]["name"];
            assert_eq!(process, &json!(format!("rank {rank} (stage {rank})")));
        }
    }

    #[test]
    fn a_trace_is_never_half_written() {
        let folder = tempfile::tempdir().unwrap();
        let [path, before] = ["trace.json", "before.json"].map(|name| folder.path().join(name));
        std::fs::write(&path, "before").unwrap();
        std::fs::hard_link(&path, &before).unwrap();
        write_trace(&Trace::new(), &path).unwrap();
        assert_eq!(std::fs::read_to_string(&before).unwrap(), "before", "the file that was there is not written to");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), r#"{"traceEvents":[]}"#);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn nothing_is_an_empty_list() {
        assert_eq!(document(&Trace::new()), json!({ "traceEvents": [] }));
    }
}
