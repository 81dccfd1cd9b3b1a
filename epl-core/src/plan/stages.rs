//! Which segments a stage runs: as the scopes say, or as the options do, or chosen from the parameters.

use std::ops::Range;

use super::layers;
use super::owners::owners;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::params::ParamRecord;
use crate::schedule::Stages;
use crate::schedule::partition::{self, PartitionError};
use crate::topology::layout::Layout;

/// Divides `segments` segments, which use these parameters, over `stages` stages.
pub(crate) fn stages(
    records: &[ParamRecord],
    segments: usize,
    stages: usize,
    layout: Option<&Layout>,
    config: &Config,
) -> Result<Stages> {
    let chunks = config.pipeline.num_chunks;
    let scopes = layout.filter(|layout| layout.stages() > 1);
    if stages == 1 && chunks > 1 {
        return Err(Error::invalid(format!(
            "pipeline.num_chunks = {chunks} gives each of several pipeline stages as many parts, and there is 1 stage; set \
             pipeline.num_chunks = 1, or dist.pipeline_parallel_size above 1"
        )));
    }
    if let Some(cuts) = &config.pipeline.cuts {
        return cut_at(cuts, segments, (stages, chunks), scopes.is_some(), config);
    }
    if let (Some(_), true) = (layout, config.auto.auto_parallel) {
        return Err(Error::invalid(format!(
            "auto.auto_parallel = true chooses {} stages for a model without scopes, and scopes are opened in this one; leave \
             one of both out",
            config.stages()
        )));
    }
    let given = config.dist.custom_pipeline_stage_id.as_ref().map(Vec::len).or(config.dist.pipeline_num_layers);
    let given = given.filter(|_| stages == 1 || scopes.is_some());
    if let Some(ids) = given {
        let who = if stages == 1 { "there is" } else { "scopes make" };
        return Err(Error::invalid(format!(
            "dist.custom_pipeline_stage_id or dist.pipeline_num_layers is for the stages of {ids} layers, and {who} {stages} \
             without it; leave it out, or set dist.pipeline_parallel_size and open no scope"
        )));
    }
    if stages == 1 {
        return Ok(Stages::one(segments));
    }
    let refused = |error: &dyn core::fmt::Display| Error::invalid(format!("{stages} pipeline stages: {error}"));
    let parts = match (scopes, layers::of_segments(records, segments, config)) {
        (Some(layout), _) => by_task_graph(records, segments, layout)?,
        (None, numbered) => match numbered? {
            Some(numbered) => numbered.parts(stages).map_err(|error| refused(&error))?,
            None => chosen(records, segments, stages, chunks).map_err(|error| refused(&error))?,
        },
    };
    if parts.len() != stages * chunks {
        return Err(Error::invalid(format!(
            "pipeline.num_chunks = {chunks} needs {} parts on {stages} stages, and {} are given; leave the choice of \
             parts out, or set pipeline.num_chunks = 1",
            stages * chunks,
            parts.len()
        )));
    }
    Ok(Stages::new(parts, stages))
}

/// As `pipeline.cuts` says.
fn cut_at(
    cuts: &[usize],
    segments: usize,
    (stages, chunks): (usize, usize),
    has_scopes: bool,
    config: &Config,
) -> Result<Stages> {
    let refused = |reason: String| Err(Error::invalid(format!("pipeline.cuts = {cuts:?}: {reason}")));
    let others = [
        (has_scopes, "scopes that make stages"),
        (config.dist.custom_pipeline_stage_id.is_some(), "dist.custom_pipeline_stage_id"),
        (config.dist.pipeline_num_layers.is_some(), "dist.pipeline_num_layers"),
    ];
    if let Some((_, other)) = others.into_iter().find(|(is_there, _)| *is_there) {
        return refused(format!("{other} say where stages are cut, too; leave one of both out"));
    }
    if cuts.len() + 1 != stages * chunks {
        return refused(format!(
            "{} cuts make {} parts, and there is room for {} (pipeline stages × pipeline.num_chunks = {stages} × {chunks}); give {}, or \
             another dist.pipeline_parallel_size",
            cuts.len(),
            cuts.len() + 1,
            stages * chunks,
            stages * chunks - 1
        ));
    }
    let ends: Vec<usize> = [&[0], cuts, &[segments]].concat();
    if ends.windows(2).any(|pair| pair[0] >= pair[1]) {
        return refused(format!(
            "they are the first segments of the parts behind the first, of a model of {segments} segments, which count from 0; let \
             them ascend between 1 and {}",
            segments.saturating_sub(1)
        ));
    }
    match stages {
        1 => Ok(Stages::one(segments)),
        _ => Ok(Stages::new(ends.windows(2).map(|pair| pair[0]..pair[1]).collect(), stages)),
    }
}

/// Repeated blocks evenly, else the least largest cost.
fn chosen(
    records: &[ParamRecord],
    segments: usize,
    stages: usize,
    chunks: usize,
) -> Result<Vec<Range<usize>>, PartitionError> {
    let (costs, kinds) = (costs(records, segments), kinds(records, segments));
    let parts = partition::parts_of(&costs, &kinds, stages, chunks)?;
    Ok(parts.into_iter().map(|part| part.segments).collect())
}

/// A segment is run where the task graph of its parameters is; one without parameters, where the one before it is.
fn by_task_graph(records: &[ParamRecord], segments: usize, layout: &Layout) -> Result<Vec<Range<usize>>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let name = |graph: usize| &layout.task_graphs()[graph].name;
    for segment in 0..segments {
        let last = parts.len().saturating_sub(1);
        let graph = match owners(records, segment, |record| record.task_graph) {
            (None, _) => last,
            (Some((graph, _)), None) => graph,
            (Some((graph, param)), Some((other, second))) => {
                return Err(Error::invalid(format!(
                    "segment {segment} uses `{param}` of task graph `{}` and `{second}` of task graph `{}`; a stage runs \
                     whole segments: cut the segment in two, or make both in one scope",
                    name(graph),
                    name(other)
                )));
            }
        };
        match graph {
            graph if graph == parts.len() => parts.push(segment..segment + 1),
            graph if graph == last => parts[last].end = segment + 1,
            graph => {
                return Err(Error::invalid(format!(
                    "segment {segment} is of task graph {graph} (`{}`), and the one before it of task graph {last} \
                     (`{}`); open the scopes in the order in which the segments run",
                    name(graph),
                    name(last)
                )));
            }
        }
    }
    match parts.len() == layout.task_graphs().len() {
        true => Ok(parts),
        false => Err(Error::invalid(format!(
            "{} task graphs make as many stages, and the model's segments are in {} of them; cut the model into a \
             chain with at least one segment in each scope",
            layout.task_graphs().len(),
            parts.len()
        ))),
    }
}

/// The elements of the parameters that a segment uses: forward and backward take about as long.
pub(super) fn costs(records: &[ParamRecord], segments: usize) -> Vec<f64> {
    let uses = |segment: usize| records.iter().filter(move |record| record.segments.contains(&segment));
    // A table is looked up, not multiplied with.
    let cost = |record: &ParamRecord| if record.table { 0 } else { record.global_numel() };
    (0..segments).map(|segment| uses(segment).map(cost).sum::<usize>() as f64).collect()
}

/// The shapes of the parameters that only this segment uses: equal for repeated blocks.
pub(super) fn kinds(records: &[ParamRecord], segments: usize) -> Vec<Vec<&[usize]>> {
    let own = |segment: usize| records.iter().filter(move |record| record.segments == [segment]);
    (0..segments).map(|segment| own(segment).map(|record| &*record.global_shape).collect()).collect()
}
