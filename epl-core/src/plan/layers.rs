//! Layers by number, as LiBai names the stages of its layers.

use std::ops::Range;

use super::owners::owners;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::params::ParamRecord;
use crate::schedule::partition::{PartitionError, custom_stage_ids, layer_stage};

/// The layer that each segment is of, and what the options say about layers.
pub(super) struct Numbered {
    /// The layer of each segment.
    layers: Vec<isize>,
    /// How many layers there are.
    count: usize,
    /// The stage of each layer, where it is given.
    stages: Option<Vec<usize>>,
}

/// What `Place::with_layer_idx` and the options `dist.pipeline_num_layers` and `dist.custom_pipeline_stage_id` say; none
/// where nothing is said. Where no layer is numbered, the segments are the layers.
pub(super) fn of_segments(records: &[ParamRecord], segments: usize, config: &Config) -> Result<Option<Numbered>> {
    let (count, stages) = (config.dist.pipeline_num_layers, config.dist.custom_pipeline_stage_id.clone());
    if let (Some(count), Some(stages)) = (count, &stages)
        && count != stages.len()
    {
        return Err(Error::invalid(format!(
            "dist.pipeline_num_layers = {count}, and dist.custom_pipeline_stage_id names the stages of {} layers; leave \
             the number out",
            stages.len()
        )));
    }
    let given = stages.as_ref().map(Vec::len).or(count);
    let Some(layers) = numbers(records, segments)? else {
        let Some(count) = given else { return Ok(None) };
        if count != segments {
            let key = if stages.is_some() { "dist.custom_pipeline_stage_id" } else { "dist.pipeline_num_layers" };
            return Err(Error::invalid(format!(
                "{key} is for {count} layers, and the model is a chain of {segments} segments; give one number for each \
                 segment, or number the layers by `Place::with_layer_idx`"
            )));
        }
        return Ok(Some(Numbered { layers: (0..segments as isize).collect(), count, stages }));
    };
    let highest = layers.iter().max().copied().unwrap_or_default();
    let count = given.unwrap_or((highest + 1).max(1) as usize);
    match highest < count as isize {
        true => Ok(Some(Numbered { layers, count, stages })),
        false => Err(Error::invalid(format!(
            "`Place::with_layer_idx` numbers a layer {highest}, and the options speak of {count} layers, which count from \
             0; give at least {}",
            highest + 1
        ))),
    }
}

/// The layer of each segment; none where no layer is numbered.
fn numbers(records: &[ParamRecord], segments: usize) -> Result<Option<Vec<isize>>> {
    if records.iter().all(|record| record.layer_idx.is_none()) {
        return Ok(None);
    }
    let mut layers: Vec<isize> = Vec::new();
    for segment in 0..segments {
        layers.push(match owners(records, segment, |record| record.layer_idx) {
            (None, _) => layers.last().copied().unwrap_or_default(),
            (Some((layer, _)), None) => layer,
            (Some((layer, param)), Some((other, second))) => {
                return Err(Error::invalid(format!(
                    "segment {segment} uses `{param}` of layer {layer} and `{second}` of layer {other}; a stage runs whole \
                     segments: cut the segment in two, or give both one number"
                )));
            }
        });
    }
    Ok(Some(layers))
}

impl Numbered {
    /// The segments of every stage.
    pub fn parts(&self, stages: usize) -> Result<Vec<Range<usize>>, PartitionError> {
        let stage = |&layer: &isize| match (&self.stages, usize::try_from(layer)) {
            (Some(given), Ok(layer)) => Ok(given[layer]),
            // -1 is the last stage.
            _ => layer_stage(layer, self.count, stages),
        };
        custom_stage_ids(&self.layers.iter().map(stage).collect::<Result<Vec<_>, _>>()?, stages)
    }
}
