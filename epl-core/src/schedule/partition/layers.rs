//! LiBai's two ways of naming the stage of a layer: a list, and the layer's index.

use std::ops::Range;

use super::PartitionError;
use super::repeated::consecutive;

/// The layers of every stage, from `dist.custom_pipeline_stage_id`: one stage number a layer.
///
/// ```
/// # use epl_core::schedule::partition;
/// assert_eq!(partition::custom_stage_ids(&[0, 0, 0, 1], 2)?, [0..3, 3..4]);
/// # Ok::<(), partition::PartitionError>(())
/// ```
///
/// # Errors
///
/// The numbers must begin at 0, never decrease, leave no stage out, and end at the last stage.
pub fn custom_stage_ids(ids: &[usize], stages: usize) -> Result<Vec<Range<usize>>, PartitionError> {
    filled(ids.len(), stages)?;
    let mut sizes = vec![0; stages];
    let mut before = None;
    for (layer, &stage) in ids.iter().enumerate() {
        if stage >= stages {
            return Err(PartitionError::StageBeyond { layer, stage, stages });
        }
        follows(layer, before, stage)?;
        sizes[stage] += 1;
        before = Some(stage);
    }
    match before {
        Some(stage) if stage + 1 < stages => Err(PartitionError::EndsEarly { layer: ids.len() - 1, stage, stages }),
        _ => Ok(consecutive(&sizes)),
    }
}

/// Whether a layer's stage is that of the layer before it, or the next.
fn follows(layer: usize, before: Option<usize>, stage: usize) -> Result<(), PartitionError> {
    match before {
        None if stage > 0 => Err(PartitionError::StartsLater { stage }),
        Some(before) if stage < before => Err(PartitionError::GoesBack { layer, stage, before }),
        Some(before) if stage > before + 1 => Err(PartitionError::LeavesOut { layer, stage, before }),
        _ => Ok(()),
    }
}

/// The stage of a layer, by its index: `num_layers` (`dist.pipeline_num_layers`) divided evenly; -1 is the last stage.
///
/// Where they do not divide, the last stages take one layer more each, as in LiBai: a later stage holds fewer
/// micro-batches. LiBai departs from even where layers do divide, with at least 4 stages and 8 layers: it moves some
/// from the last stage to the middle (24 layers on 4 stages: 6, 7, 7, 4). Here they stay even; the list of
/// [`custom_stage_ids`] says otherwise.
///
/// ```
/// # use epl_core::schedule::partition;
/// let stages: Result<Vec<usize>, _> = (0..6).map(|layer| partition::layer_stage(layer, 6, 4)).collect();
/// assert_eq!(stages?, [0, 1, 2, 2, 3, 3]);
/// assert_eq!(partition::layer_stage(-1, 6, 4)?, 3);
/// # Ok::<(), partition::PartitionError>(())
/// ```
///
/// # Errors
///
/// No stage, fewer layers than stages, or an index that is neither -1 nor that of a layer.
pub fn layer_stage(layer_idx: isize, num_layers: usize, stages: usize) -> Result<usize, PartitionError> {
    filled(num_layers, stages)?;
    let beyond = PartitionError::LayerBeyond { layer: layer_idx, layers: num_layers };
    let layer = match usize::try_from(layer_idx) {
        Ok(layer) if layer < num_layers => layer,
        Err(_) if layer_idx == -1 => num_layers - 1,
        _ => return Err(beyond),
    };
    let (each, larger) = (num_layers / stages, num_layers % stages);
    let smaller = stages - larger;
    Ok(match layer.checked_sub(smaller * each) {
        Some(rest) => smaller + rest / (each + 1),
        None => layer / each,
    })
}

/// Whether every stage can have a layer.
fn filled(layers: usize, stages: usize) -> Result<(), PartitionError> {
    match stages {
        0 => Err(PartitionError::Zero { what: "the number of stages" }),
        _ if layers < stages => Err(PartitionError::TooFewLayers { layers, stages }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(ids: &[usize], stages: usize) -> String {
        custom_stage_ids(ids, stages).unwrap_err().to_string()
    }

    #[test]
    fn a_list_gives_each_stage_its_layers() {
        assert_eq!(custom_stage_ids(&[0, 1, 1, 1, 2], 3).unwrap(), [0..1, 1..4, 4..5]);
        assert_eq!(custom_stage_ids(&[0, 0], 1).unwrap(), [0..2]);
    }

    #[test]
    fn a_wrong_list_names_the_layer_and_both_numbers() {
        assert_eq!(fault(&[1, 1], 2), "layer 0 is on stage 1; it must be on stage 0, the first");
        assert_eq!(
            fault(&[0, 1, 0], 2),
            "layer 2 is on stage 0, after stage 1 of the layer before it; \
             stages cannot decrease: put it on stage 1 or later"
        );
        assert_eq!(
            fault(&[0, 2, 2], 3),
            "layer 1 is on stage 2, and the layer before it on stage 0: \
             stage 1 has no layer; put layer 1 on stage 0 or 1"
        );
        assert_eq!(
            fault(&[0, 0, 1], 3),
            "layer 2, the last, is on stage 1 of 3 stages: stage 2 has no layer; \
             spread the layers up to stage 2, or use 2 stages"
        );
        assert_eq!(fault(&[0, 2], 2), "layer 1 is on stage 2, but 2 stages end at stage 1; name a stage from 0 to 1");
        assert!(fault(&[0], 2).starts_with("1 layers cannot fill 2 stages;"));
        assert!(fault(&[], 0).starts_with("the number of stages is 0"));
    }

    #[test]
    fn layers_are_even_and_later_stages_take_the_remainder() {
        for (layers, stages, sizes) in [(24, 4, vec![6, 6, 6, 6]), (7, 3, vec![2, 2, 3]), (3, 3, vec![1, 1, 1])] {
            let mut found = vec![0; stages];
            (0..layers).for_each(|layer| found[layer_stage(layer, layers as usize, stages).unwrap()] += 1);
            assert_eq!(found, sizes);
        }
    }

    #[test]
    fn an_index_that_is_no_layer_is_an_error() {
        let text = layer_stage(6, 6, 2).unwrap_err().to_string();
        assert!(text.starts_with("layer index 6 is not one of 6 layers; use 0 to 5, or -1"), "{text}");
        assert!(layer_stage(-2, 6, 2).is_err());
        assert!(layer_stage(-1, 1, 2).is_err());
        assert!(layer_stage(0, 6, 0).is_err());
    }
}
