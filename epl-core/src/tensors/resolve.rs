//! What an assignment map says about every parameter, or all that does not fit.

use core::fmt;
use std::collections::BTreeSet;
use std::ops::Range;

use super::map::{AssignMap, Assignment};
use super::source::WholeTensors;
use crate::error::{Error, Result};
use crate::plan::ParamRecord;

/// A part of a parameter, and where it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AssignedPart {
    pub stored: String,
    /// Of the stored tensor, a range of every dim.
    pub taken: Vec<Range<usize>>,
    /// Of the whole parameter, a range of every dim.
    pub put: Vec<Range<usize>>,
    /// Whether the first dim of ours is not stored: each entry is the stored tensor.
    pub repeated: bool,
}

/// The pieces of every parameter, to be laid over each other in their order; none of one that keeps its values.
///
/// # Errors
///
/// With all that is missing, unused, or of another shape. Nothing is read.
pub(super) fn resolve(
    records: &[ParamRecord],
    stored: &impl WholeTensors,
    map: &AssignMap,
) -> Result<Vec<Vec<AssignedPart>>> {
    let mut resolving = Resolving { stored, map, asked: BTreeSet::new(), faults: Faults::default() };
    resolving.check_map(records);
    let pieces: Vec<Vec<AssignedPart>> = records.iter().map(|record| resolving.pieces(record)).collect();
    let Resolving { mut faults, asked, .. } = resolving;
    let unused = |name: &String| !asked.contains(name) && !map.unused.iter().any(|allowed| allowed.covers(name));
    faults.unused = stored.names().into_iter().filter(unused).collect();
    faults.unused.sort();
    match faults.is_empty() {
        true => Ok(pieces),
        false => Err(Error::invalid(faults.to_string())),
    }
}

struct Resolving<'a, S> {
    stored: &'a S,
    map: &'a AssignMap,
    /// The stored tensors that fill something, or would if they had its shape.
    asked: BTreeSet<String>,
    faults: Faults,
}

impl<S: WholeTensors> Resolving<'_, S> {
    /// Finds what is wrong with the map itself.
    fn check_map(&mut self, records: &[ParamRecord]) {
        for Assignment { stored, ours, .. } in &self.map.assignments {
            let (found, asked) = (ours.stars(), stored.stars());
            if asked != 0 && asked != found {
                let reason =
                    format!("`{stored}` has {asked} stars and `{ours}` {found}; give both as many, or it none");
                self.faults.map.push(reason);
            }
            if !records.iter().any(|record| ours.covers(&record.name)) {
                self.faults.map.push(format!("the model has no parameter at `{ours}`"));
            }
        }
    }

    /// What fills a parameter: from the last assignment that fills all of it on.
    fn pieces(&mut self, record: &ParamRecord) -> Vec<AssignedPart> {
        let fit: Vec<(&Assignment, String)> =
            self.map.assignments.iter().filter_map(|assignment| fits(assignment, record)).collect();
        let fills = |(assignment, _): &(&Assignment, String)| assignment.put.is_empty();
        let whole = fit.iter().rposition(fills);
        let allowed = self.map.missing.iter().any(|allowed| allowed.covers(&record.name));
        if whole.is_none() && fit.is_empty() && !allowed {
            self.faults.missing.push(record.name.clone());
        }
        let mut pieces = Vec::new();
        for (assignment, name) in fit.into_iter().skip(whole.unwrap_or(0)) {
            let Some(info) = self.stored.info(&name) else {
                if !allowed {
                    self.faults.missing.push(format!("{} (from `{name}`)", record.name));
                }
                continue;
            };
            self.asked.insert(name.clone());
            match piece(assignment, name, &info.shape, record) {
                Ok(piece) => pieces.push(piece),
                Err(fault) => self.faults.shapes.push(fault),
            }
        }
        pieces
    }
}

/// The stored name that an assignment gives to a parameter, if it covers it.
fn fits<'a>(assignment: &'a Assignment, record: &ParamRecord) -> Option<(&'a Assignment, String)> {
    let found = assignment.ours.of(&record.name)?;
    Some((assignment, assignment.stored.spelled(&found)))
}

/// The piece of an assignment, if the shapes fit.
fn piece(
    assignment: &Assignment,
    stored: String,
    shape: &[usize],
    record: &ParamRecord,
) -> Result<AssignedPart, String> {
    let taken = narrowed(shape, &assignment.taken).map_err(|reason| format!("stored `{stored}` {reason}"))?;
    let put =
        narrowed(&record.global_shape, &assignment.put).map_err(|reason| format!("`{}` {reason}", record.name))?;
    let given: Vec<usize> = taken.iter().map(Range::len).collect();
    let needed: Vec<usize> = put.iter().map(Range::len).collect();
    let inside = if assignment.repeated { needed.get(1..) } else { Some(&needed[..]) };
    if inside != Some(&given) {
        let each = if assignment.repeated { ", for each entry of its first dim" } else { "" };
        return Err(format!("`{stored}` gives {given:?} where `{}` has {needed:?}{each}", record.name));
    }
    Ok(AssignedPart { stored, taken, put, repeated: assignment.repeated })
}

/// The range of every dim of a shape, of which some are given.
fn narrowed(shape: &[usize], given: &[(usize, Range<usize>)]) -> Result<Vec<Range<usize>>, String> {
    let mut ranges: Vec<Range<usize>> = shape.iter().map(|extent| 0..*extent).collect();
    for (dim, range) in given {
        match shape.get(*dim) {
            Some(extent) if range.start < range.end && range.end <= *extent => ranges[*dim] = range.clone(),
            _ => return Err(format!("has the shape {shape:?}, and {range:?} of dim {dim} was asked for")),
        }
    }
    Ok(ranges)
}

/// All that does not fit.
#[derive(Debug, Default)]
struct Faults {
    map: Vec<String>,
    missing: Vec<String>,
    unused: Vec<String>,
    shapes: Vec<String>,
}

impl Faults {
    fn is_empty(&self) -> bool {
        [&self.map, &self.missing, &self.unused, &self.shapes].into_iter().all(Vec::is_empty)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the stored tensors do not fit the model{}{}{}{}",
            listed("wrong in the map", &self.map),
            listed("of the model not stored (see `allow_missing`)", &self.missing),
            listed("stored and not used (see `allow_unused`)", &self.unused),
            listed("of another shape", &self.shapes)
        )
    }
}

/// `; 12 missing: a, b, c, d, e and 7 more`, or nothing: a part of an error's message.
pub fn listed<T: fmt::Display>(what: &str, items: &[T]) -> String {
    const SHOWN: usize = 5;
    if items.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = items.iter().take(SHOWN).map(T::to_string).collect();
    let more = match items.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("; {} {what}: {}{more}", items.len(), shown.join(", "))
}
