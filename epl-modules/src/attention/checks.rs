//! What attention refuses.

use epl_comm::ProcessGroup;

use super::input::AttentionInput;
use crate::invalid::refuse;

/// Refuses heads that do not divide over the group.
pub(crate) fn check_heads(group: &ProcessGroup, path: &str, n_heads: usize) {
    check_divides(group, path, (n_heads, "heads"));
}

/// Refuses heads of keys and values that do not divide over the group, or that heads of queries cannot share evenly.
pub(super) fn check_kv_heads(group: &ProcessGroup, path: &str, [n_heads, n_kv_heads]: [usize; 2]) {
    if !n_heads.is_multiple_of(n_kv_heads) {
        refuse(format!(
            "{path}: {n_heads} heads do not divide into groups that share one of {n_kv_heads} heads of keys and values; use \
             an n_kv_heads that divides {n_heads}"
        ));
    }
    check_divides(group, path, (n_kv_heads, "heads of keys and values"));
}

fn check_divides(group: &ProcessGroup, path: &str, (count, what): (usize, &str)) {
    if count == 0 || !count.is_multiple_of(group.size()) {
        refuse(format!(
            "{path}: {count} {what} do not divide over {} ranks of the {} axis; use a {} size that divides {count}",
            group.size(),
            group.name(),
            group.name()
        ));
    }
}

/// Refuses a number that scores cannot be multiplied by.
pub(super) fn check_scale(path: &str, scale: f64) {
    if !scale.is_finite() {
        refuse(format!("{path}: attention with a scale of {scale}; it should be finite, head_dim^-0.5 is usual"));
    }
}

/// Refuses an input that has no position before another one, where a window is made of those.
pub(super) fn check_window(input: &AttentionInput, window: usize) {
    if !input.causal || input.memory.is_some() {
        let what = if input.memory.is_some() { "a memory" } else { "an input that is not causal" };
        refuse(format!(
            "attention with a window of {window} positions got {what}: make the input `causal`, or the layer without `window`"
        ));
    }
}

/// Refuses keys of another batch than the queries'.
pub(super) fn check_batch(queries: usize, keys: usize) {
    if queries != keys {
        refuse(format!(
            "attention of {queries} sequences got the keys of {keys}: give each its own memory, and `select` the rows of \
             a cache whose batch has changed"
        ));
    }
}

/// Refuses masks and biases that do not fit the scores.
pub(super) fn check_shapes(input: &AttentionInput, scores: [usize; 4]) {
    let [batch_size, heads, queries, keys] = scores;
    if let Some(padding) =
        input.padding.as_ref().map(|padding| padding.dims()).filter(|dims| *dims != [batch_size, keys])
    {
        refuse(format!("attention over {batch_size} x {keys} keys got a padding mask of {padding:?}"));
    }
    let windows = input.windows;
    if windows == 0 || !batch_size.is_multiple_of(windows) {
        refuse(format!("attention of {batch_size} sequences is not that of samples with {windows} windows each"));
    }
    let fits = |dims: &[usize; 4]| dims[1..] == scores[1..] && [1, windows, batch_size].contains(&dims[0]);
    if let Some(bias) = input.bias.as_ref().map(|bias| bias.dims()).filter(|dims| !fits(dims)) {
        let of_each = if windows > 1 { format!(", {windows}") } else { String::new() };
        refuse(format!(
            "attention with {heads} local heads, {queries} queries and {keys} keys got a bias of {bias:?}; it takes \
             [1{of_each} or {batch_size}, {heads}, {queries}, {keys}]; where dist.whole_layers leaves the layer whole, make it \
             `with_score_bias(true)`, so that its heads are divided as the bias is"
        ));
    }
}
