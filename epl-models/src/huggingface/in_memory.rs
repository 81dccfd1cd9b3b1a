//! Gradients under the names that `transformers` 5 has in memory, of weights that it saves under those of earlier versions.

use std::ops::Range;

use burn::tensor::TensorData;

use super::error::Result;
use super::tensor_file::TensorFile;

/// Parts of names as they are saved, and as they are in memory.
const RENAMED: [(&str, &str); 13] = [
    ("vit.encoder.layer.", "vit.layers."),
    ("decoder.decoder_encoder.layer.", "decoder.decoder_layers."),
    (".attention.attention.query.", ".attention.q_proj."),
    (".attention.attention.key.", ".attention.k_proj."),
    (".attention.attention.value.", ".attention.v_proj."),
    (".attention.self.query.", ".attention.q_proj."),
    (".attention.self.key.", ".attention.k_proj."),
    (".attention.self.value.", ".attention.v_proj."),
    (".attention.self.relative_position_bias_table", ".attention.relative_position_bias.relative_position_bias_table"),
    (".attention.output.dense.", ".attention.o_proj."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
    (".block_sparse_moe.", ".mlp."),
];

/// Weights of an expert as they are saved; what all experts have together in memory; and which part of that it is, of how many.
const EXPERTS: [(&str, &str, usize, usize); 6] = [
    ("w1.weight", "gate_up_proj", 0, 2),
    ("w3.weight", "gate_up_proj", 1, 2),
    ("w2.weight", "down_proj", 0, 1),
    ("gate_proj.weight", "gate_up_proj", 0, 2),
    ("up_proj.weight", "gate_up_proj", 1, 2),
    ("down_proj.weight", "down_proj", 0, 1),
];

/// Some rows of the gradient of a weight of that name, if it stands in the file under the name that the weight has in memory.
///
/// # Errors
///
/// When it cannot be read.
pub(super) fn rows(file: &TensorFile, name: &str, rows: Range<usize>) -> Result<Option<TensorData>> {
    let name = RENAMED.iter().fold(name.to_string(), |name, (saved, in_memory)| name.replace(saved, in_memory));
    let stored = format!("grad.{name}");
    if file.shape(&stored).is_some() {
        return Ok(Some(file.rows(&stored, rows)?));
    }
    let Some((layer, expert, [part, of], stored)) = of_expert(&name) else { return Ok(None) };
    let stored = format!("grad.{layer}.experts.{stored}");
    let Some([_, height, width]) = file.shape(&stored).and_then(|shape| <[usize; 3]>::try_from(shape).ok()) else {
        return Ok(None);
    };
    let first = part * height / of;
    let whole: Vec<f32> = file.rows(&stored, expert..expert + 1)?.iter().collect();
    let own = whole[(first + rows.start) * width..(first + rows.end) * width].to_vec();
    Ok(Some(TensorData::new(own, [rows.len(), width])))
}

/// The layer, the number and the part of an expert's weight, and what it is part of.
fn of_expert(name: &str) -> Option<(&str, usize, [usize; 2], &'static str)> {
    let (layer, rest) = name.split_once(".experts.")?;
    let (expert, weight) = rest.split_once('.')?;
    let (_, stored, part, of) = EXPERTS.iter().find(|(saved, ..)| *saved == weight)?;
    Some((layer, expert.parse().ok()?, [*part, *of], stored))
}
