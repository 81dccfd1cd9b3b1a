//! What the panic of a layer probably means.

use std::ops::Range;

use burn::tensor::DType;

use super::rank::Engine;
use crate::error::{Error, Result};
use crate::model::precision::HalfPrecision;
use crate::model::segment::Model;

/// Runs `f`, in which segments of a micro-batch are run; a layer's panic in it is an error that names the segment and says what
/// it probably means, where something is known of that.
pub(super) fn explained<T, M: Model>(
    engine: &Engine<M>,
    segments: &Range<usize>,
    batch: &M::Batch,
    f: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match epl_comm::catch(f) {
        Ok(result) => result,
        Err(epl_comm::Error::Panic { message }) => Err(of_panic(engine, segments, batch, message)),
        Err(other) => Err(other.into()),
    }
}

fn of_panic<M: Model>(engine: &Engine<M>, segments: &Range<usize>, batch: &M::Batch, message: String) -> Error {
    let plan = &engine.plan;
    // The one that was entered last; behind the last one is the loss.
    let segment = engine.context.segment().clamp(segments.start, segments.end - 1);
    let half = plan.half_in(segment);
    let dtype = plan.records().iter().find(|record| record.segments.contains(&segment)).map(|record| record.dtype);
    let types = engine.model().batch_tensors().float_types(batch);
    let is_of_types = message.to_lowercase().contains("dtype");
    let wrong = dtype.filter(|_| is_of_types).and_then(|dtype| wrong_types(&types, dtype));
    let mut meanings: Vec<String> = match (wrong, half, dtype) {
        (Some(wrong), _, _) => vec![wrong],
        (None, Some(half), _) if is_of_types => vec![mixed(half)],
        (None, None, Some(dtype)) if is_of_types => vec![format!(
            "two types meet there, and its parameters are {dtype:?}: cast what it gets or makes to that type"
        )],
        _ => Vec::new(),
    };
    let is_divided = plan.stages.count() > 1;
    if is_divided && may_be_of_empty(&message) {
        meanings.push(empty("another stage holds it"));
    } else if plan.params.gathers() && may_be_of_empty(&message) {
        meanings.push(empty("it was not gathered for that segment"));
    }
    if meanings.is_empty() && !is_divided {
        return epl_comm::Error::Panic { message }.into();
    }
    let stage = if is_divided { format!("stage {}, ", plan.stage()) } else { String::new() };
    let half = half.map(|half| format!(" in {:?}", half.dtype())).unwrap_or_default();
    let panicked = format!("{stage}segment `{}`{half} panicked: {message}", plan.segments[segment]);
    Error::invalid([vec![panicked], meanings].concat().join("; "))
}

/// What of the batch has another type than the parameters; 16 bits are the engine's own doing, or the user's.
fn wrong_types(types: &[(String, DType)], parameters: DType) -> Option<String> {
    let is_wrong = |(_, dtype): &&(String, DType)| *dtype != parameters && matches!(dtype, DType::F64 | DType::F32);
    let wrong: Vec<String> = types.iter().filter(is_wrong).map(|(field, dtype)| shown(field, *dtype)).collect();
    (!wrong.is_empty()).then(|| {
        format!(
            "in its batch {}, and its parameters are {parameters:?}: cast to that type where the batch is made",
            wrong.join(", ")
        )
    })
}

fn shown(field: &str, dtype: DType) -> String {
    match field {
        "" => format!("all is {dtype:?}"),
        field => format!("`{field}` is {dtype:?}"),
    }
}

fn mixed(half: HalfPrecision) -> String {
    format!(
        "if it mixes types: under amp.level = O1 a segment computes in {:?}, so that a layer which makes f32 tensors of its own, \
         or a batch that is no `Batch`, does not fit; cast there, keep one layer in f32 by `Place::full_precision`, with casts \
         around it, or name one of its parameters in amp.full_precision, so that its segment gets f32",
        half.dtype()
    )
}

/// Whether a panic can be that of a parameter without an element, of which each dim is 0: it speaks of shapes, or of a 0.
fn may_be_of_empty(message: &str) -> bool {
    let words = ["shape", "empty", "dimension", "broadcast"];
    let message = message.to_lowercase();
    let mut numbers = message.split(|letter: char| !letter.is_alphanumeric() && letter != '.');
    words.iter().any(|word| message.contains(word)) || numbers.any(|number| number == "0")
}

fn empty(why: &str) -> String {
    format!(
        "if a parameter is empty there, {why}: name it among those that the segment uses (`segments_of`, or the fields of a \
         `Chain`)"
    )
}
