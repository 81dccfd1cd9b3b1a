//! Which segments are run again in backward, as the options `gradient_checkpoint.*` say.

use std::ops::Range;

use super::ParamRecord;
use super::stages::{costs, kinds};
use crate::config::{CheckpointType, Config};
use crate::error::{Error, Result};
use crate::pipeline::Stages;
use crate::recompute::{SegmentMemory, epl_auto};

/// The runs of segments of which only the entrance is kept. Never the last segment, whose backward follows at once.
pub(crate) fn runs(
    records: &[ParamRecord],
    segments: usize,
    stages: &Stages,
    config: &Config,
) -> Result<Vec<Range<usize>>> {
    let said = &config.gradient_checkpoint;
    if let (Some(kept), false) = (&said.kept, said.r#type == CheckpointType::Collection) {
        return Err(Error::invalid(format!(
            "gradient_checkpoint.kept = {kept:?} needs gradient_checkpoint.type = collection, and that is {:?}; set it, or \
             leave gradient_checkpoint.kept out",
            said.r#type.to_string()
        )));
    }
    if said.r#type == CheckpointType::Off && (said.end_taskgraph != -1 || said.check_gradients) {
        return Err(Error::invalid(format!(
            "gradient_checkpoint.end_taskgraph = {} and check_gradients = {} say something of recomputation, and there is \
             none; set gradient_checkpoint.type",
            said.end_taskgraph, said.check_gradients
        )));
    }
    let chosen = match said.r#type {
        CheckpointType::Off => return Ok(Vec::new()),
        CheckpointType::Collection => between(kept(segments, config)?, segments),
        CheckpointType::Auto => automatic(records, segments)?,
    };
    let covered = covered_parts(stages, config)?;
    let runs = stages.parts()[..covered].iter().flat_map(|part| {
        let end = part.end.min(segments - 1);
        chosen.iter().map(move |run| run.start.max(part.start)..run.end.min(end)).filter(|run| !run.is_empty())
    });
    let runs: Vec<Range<usize>> = runs.collect();
    match runs.is_empty() {
        false => Ok(runs),
        true => Err(Error::invalid(format!(
            "gradient_checkpoint.type = {} leaves nothing to run again in a model of {segments} segments, of which the \
             last is always stored; cut the model into more segments, or leave the option out",
            config.gradient_checkpoint.r#type
        ))),
    }
}

/// The segments whose entrance the user keeps.
fn kept(segments: usize, config: &Config) -> Result<Vec<usize>> {
    let kept = config.gradient_checkpoint.kept.clone().unwrap_or_default();
    if kept.is_empty() {
        return Err(Error::invalid(
            "gradient_checkpoint.type = collection keeps what enters the segments that gradient_checkpoint.kept names, \
             and none is named; name some, or set gradient_checkpoint.type = auto",
        ));
    }
    match kept.iter().find(|segment| **segment >= segments) {
        Some(segment) => Err(Error::invalid(format!(
            "gradient_checkpoint.kept names segment {segment} of a model of {segments} segments, which count from 0; \
             name those below {segments}"
        ))),
        None => Ok(kept),
    }
}

/// Everything between two kept entrances is one run; what enters the first segment is the batch.
fn between(mut kept: Vec<usize>, segments: usize) -> Vec<Range<usize>> {
    kept.extend([0, segments]);
    kept.sort_unstable();
    kept.dedup();
    kept.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// EPL's choice, where a segment's activations are as many as its parameters suggest.
fn automatic(records: &[ParamRecord], segments: usize) -> Result<Vec<Range<usize>>> {
    let memory = |cost: f64| SegmentMemory { activation_bytes: cost as u64 + 1, carry_bytes: 1, forward_cost: cost };
    let memory: Vec<SegmentMemory> = costs(records, segments).into_iter().map(memory).collect();
    let chosen = epl_auto(&memory, &kinds(records, segments));
    Ok(chosen.map_err(|error| Error::invalid(format!("gradient_checkpoint.type = auto: {error}")))?.runs().to_vec())
}

/// How many parts, each a task graph, are covered.
fn covered_parts(stages: &Stages, config: &Config) -> Result<usize> {
    let parts = stages.parts().len();
    match usize::try_from(config.gradient_checkpoint.end_taskgraph) {
        Err(_) => Ok(parts),
        Ok(last) if last < parts => Ok(last + 1),
        Ok(last) => Err(Error::invalid(format!(
            "gradient_checkpoint.end_taskgraph = {last} is the last part of the pipeline to be covered, and there are \
             {parts}, which count from 0; set it below {parts}, or -1 for all"
        ))),
    }
}
