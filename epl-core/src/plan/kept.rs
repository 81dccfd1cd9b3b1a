//! Which segments are run again in backward, as the options `gradient_checkpoint.*` say.

use std::ops::Range;

use epl_comm::ThreadMemory;

use super::stages::{costs, kinds};
use crate::config::{CheckpointType, Config, ZeroLevel};
use crate::error::{Error, Result};
use crate::memory::{Tier, Tiers};
use crate::params::ParamRecord;
use crate::plan::recompute::{SegmentMemory, epl_auto};
use crate::schedule::Stages;

/// The runs of segments of which only the entrance is kept. Never the last segment, whose backward follows at once.
pub(crate) fn runs(
    records: &[ParamRecord],
    names: &[String],
    stages: &Stages,
    config: &Config,
) -> Result<Vec<Range<usize>>> {
    let (said, segments) = (&config.gradient_checkpoint, names.len());
    check_collection(config)?;
    let parks = match (config.zero.level, Tiers::from_config(config).parameters) {
        (ZeroLevel::V3, _) => Some("zero.level = v3 gathers the parameters of one segment at a time"),
        (_, Tier::Device) => None,
        (_, Tier::Host | Tier::Disk) => Some("offloaded parameters are on the device for one segment at a time"),
    };
    if said.r#type == CheckpointType::Off && (said.end_taskgraph != -1 || (said.check_gradients && parks.is_none())) {
        return Err(Error::invalid(format!(
            "gradient_checkpoint.end_taskgraph = {} and check_gradients = {} say something of recomputation, and there is \
             none; set gradient_checkpoint.type",
            said.end_taskgraph, said.check_gradients
        )));
    }
    if let Some(why) = parks {
        return each(why, stages, segments, config);
    }
    if said.budget.is_some() {
        check_budget(stages, config)?;
        return Ok(Vec::new());
    }
    let chosen = match said.r#type {
        CheckpointType::Off => return Ok(Vec::new()),
        CheckpointType::Collection => match &said.runs {
            Some(words) => said_runs(words, segments, config)?,
            None => between(kept(names, config)?, segments),
        },
        CheckpointType::Auto => automatic(records, segments)?,
    };
    let covered = covered_parts(stages, config)?;
    let runs = stages.parts()[..covered].iter().flat_map(|part| {
        let end = part.end.min(segments - 1);
        let own = chosen.partition_point(|run| run.end <= part.start)..chosen.partition_point(|run| run.start < end);
        let own = chosen.get(own).unwrap_or_default();
        own.iter().map(move |run| run.start.max(part.start)..run.end.min(end)).filter(|run| !run.is_empty())
    });
    let runs: Vec<Range<usize>> = runs.collect();
    match runs.is_empty() {
        false => Ok(runs),
        true => Err(Error::invalid(format!(
            "gradient_checkpoint.type = {} leaves nothing to run again: the last segment is always stored, and the model has \
             {segments}; cut it into more, such as a `Chain`, or leave the option out",
            config.gradient_checkpoint.r#type
        ))),
    }
}

/// Refuses what only a collection has.
fn check_collection(config: &Config) -> Result<()> {
    let said = &config.gradient_checkpoint;
    let points = [("kept", &said.kept), ("runs", &said.runs)];
    if let Some((key, Some(words))) = points.iter().find(|(_, words)| words.is_some())
        && said.r#type != CheckpointType::Collection
    {
        return Err(Error::invalid(format!(
            "gradient_checkpoint.{key} = {words:?} needs gradient_checkpoint.type = collection, and that is {:?}; set it, or \
             leave gradient_checkpoint.{key} out",
            said.r#type.to_string()
        )));
    }
    Ok(())
}

/// Every segment by itself, where the parameters of one are whole at a time: a graph would keep them.
fn each(why: &str, stages: &Stages, segments: usize, config: &Config) -> Result<Vec<Range<usize>>> {
    if let Some(budget) = config.gradient_checkpoint.budget {
        return Err(Error::invalid(format!(
            "gradient_checkpoint.budget = {budget} chooses what is run again, and {why}, so that every segment is run again; \
             leave the budget out, or set zero.level = v2 and offload.parameters = device"
        )));
    }
    if config.gradient_checkpoint.r#type != CheckpointType::Off {
        return Err(Error::invalid(format!(
            "gradient_checkpoint.type = {} chooses what is run again, and {why}, so that every segment is run again; leave \
             gradient_checkpoint.type out, or set zero.level = v2 and offload.parameters = device",
            config.gradient_checkpoint.r#type
        )));
    }
    if segments == 1 {
        return Err(Error::invalid(format!(
            "{why}, and the model is 1 segment; cut it into a `Chain`, or set zero.level = v2 and offload.parameters = device"
        )));
    }
    let last = segments - 1;
    Ok(stages
        .parts()
        .iter()
        .flat_map(|part| part.start..part.end.min(last))
        .map(|segment| segment..segment + 1)
        .collect())
}

/// Whether the first step can choose what is run again.
fn check_budget(stages: &Stages, config: &Config) -> Result<()> {
    let said = &config.gradient_checkpoint;
    let budget = said.budget.unwrap_or_default();
    let refused = |reason: String| Err(Error::invalid(format!("gradient_checkpoint.budget = {budget}: {reason}")));
    if said.r#type != CheckpointType::Auto {
        return refused(format!(
            "it is for gradient_checkpoint.type = auto, and that is {:?}",
            said.r#type.to_string()
        ));
    }
    if said.end_taskgraph != -1 {
        return refused(format!(
            "what it covers is chosen by what is stored, and end_taskgraph = {} says it too; leave one out",
            said.end_taskgraph
        ));
    }
    if stages.chunks() > 1 {
        return refused(format!(
            "each stage runs {} parts of the model, whose activations are stored side by side; set pipeline.num_chunks = 1, \
             or leave the budget out",
            stages.chunks()
        ));
    }
    match ThreadMemory::now() {
        Some(_) => Ok(()),
        None => refused(
            "activations cannot be measured without `epl_comm::CountingAllocator` as the program's `#[global_allocator]`; \
             install it, or leave the budget out"
                .to_string(),
        ),
    }
}

/// The runs that `gradient_checkpoint.runs` names.
fn said_runs(words: &[String], segments: usize, config: &Config) -> Result<Vec<Range<usize>>> {
    let refused = |reason: String| Err(Error::invalid(format!("gradient_checkpoint.runs = {words:?}: {reason}")));
    if config.gradient_checkpoint.kept.is_some() {
        return refused("gradient_checkpoint.kept says it, too; leave one of both out".to_string());
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    for word in words {
        let ends = word.split_once("..").and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
        let before = runs.last().map_or(0, |run| run.end);
        match ends {
            Some(run) if before <= run.start && run.start < run.end && run.end < segments => runs.push(run),
            _ => {
                return refused(format!(
                    "{word:?} is no run behind segment {before} of a model of {segments}, whose last segment is always stored; give \
                     runs such as \"0..2\" in their order, which end at {} at most",
                    segments.saturating_sub(1)
                ));
            }
        }
    }
    Ok(runs)
}

/// The segments whose entrance the user keeps: those of a name, or the one of a number.
fn kept(names: &[String], config: &Config) -> Result<Vec<usize>> {
    let kept = config.gradient_checkpoint.kept.clone().unwrap_or_default();
    if kept.is_empty() {
        return Err(Error::invalid(
            "gradient_checkpoint.type = collection keeps what enters the segments that gradient_checkpoint.kept names, \
             and none is named; name some, or set gradient_checkpoint.type = auto",
        ));
    }
    let found = kept.iter().map(|word| {
        let of_name: Vec<usize> = (0..names.len()).filter(|segment| names[*segment] == *word).collect();
        let of_number = word.parse().ok().filter(|segment: &usize| *segment < names.len());
        match of_name.is_empty() {
            false => Ok(of_name),
            true => of_number.map(|segment| vec![segment]).ok_or_else(|| {
                Error::invalid(format!(
                    "gradient_checkpoint.kept names segment {word} of a model of {} segments, which count from 0 and are \
                     called {}; name some of them",
                    names.len(),
                    names.join(", ")
                ))
            }),
        }
    });
    Ok(found.collect::<Result<Vec<_>>>()?.concat())
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
