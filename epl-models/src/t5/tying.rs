//! Which stored tensors of a folder are one: the embedding's names, and the head.

use crate::huggingface::{Error, Folder, Result};

/// The embedding goes by several names; the others are then copies of it.
pub(super) const EMBEDDINGS: [&str; 3] =
    ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
pub(super) const HEAD: &str = "lm_head.weight";

/// Rows that are compared at a time.
const ROWS: usize = 4096;

/// The name of the embedding.
///
/// # Errors
///
/// When it is stored by several names with different values, or cannot be read.
pub(super) fn embedding(folder: &Folder) -> Result<&'static str> {
    let mut stored = EMBEDDINGS.into_iter().filter(|name| folder.shape(name).is_some());
    let Some(first) = stored.next() else { return Ok(EMBEDDINGS[0]) };
    for copy in stored {
        if !equal(folder, first, copy)? {
            let path = folder.path().to_path_buf();
            let reason = format!(
                "`{first}` and `{copy}` should be one embedding, but differ; store the one that the model uses alone"
            );
            return Err(Error::Contradiction { path, reason });
        }
    }
    Ok(first)
}

/// Whether the head is a weight of its own, not the embedding.
///
/// ```text
/// tie_word_embeddings   lm_head.weight is      the head is
/// false                 stored                 its own, whatever its values
/// false                 missing                a contradiction
/// true                  missing, or a copy     the embedding
/// true                  something else         a contradiction
/// ```
///
/// With `scale_decoder_outputs`, `transformers` keeps there what `tie_word_embeddings` was, writes `true` to the
/// latter for every T5, and stores a head only when it is not the embedding. So with that key a missing head is the
/// embedding, and one that is something else its own.
///
/// # Errors
///
/// When `config.json` and the weights contradict each other, or cannot be read.
pub(super) fn has_own_head(folder: &Folder, embedding: &str) -> Result<bool> {
    let (json, key) = (folder.config(), "tie_word_embeddings");
    let (tied, newer) = (json.flag_or(key, true)?, json.has("scale_decoder_outputs"));
    if folder.shape(HEAD).is_none() {
        return match tied {
            true => Ok(false),
            false => Err(json.error(key, format!("is false, but no `{HEAD}` is stored; store it, or write true"))),
        };
    }
    if !tied || (newer && !json.flag_or("scale_decoder_outputs", true)?) {
        return Ok(true);
    }
    match equal(folder, HEAD, embedding)? {
        true => Ok(false),
        false if newer => Ok(true),
        false => Err(json.error(
            key,
            format!("is true, but `{HEAD}` differs from `{embedding}`; write false to use it, or store it no more"),
        )),
    }
}

/// Whether two tensors are stored with the same shape and the same bytes.
fn equal(folder: &Folder, a: &str, b: &str) -> Result<bool> {
    let shape = folder.shape(a);
    if shape != folder.shape(b) {
        return Ok(false);
    }
    let rows = shape.and_then(|shape| shape.first()).copied().unwrap_or_default();
    for start in (0..rows).step_by(ROWS) {
        let range = start..(start + ROWS).min(rows);
        if folder.rows(a, range.clone())?.as_bytes() != folder.rows(b, range)?.as_bytes() {
            return Ok(false);
        }
    }
    Ok(true)
}
