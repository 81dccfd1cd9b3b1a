//! Which tensors share a bucket, as EPL decides it.

use std::collections::BTreeMap;

/// Packs tensors into buckets: those of one key together, in the order given, up to total bytes ÷ (`max_splits` − 1)
/// a bucket; with `max_splits` = 1 one bucket a key.
///
/// A tensor is `(key, bytes)`; the buckets hold indices into `tensors` and come in the order of their keys. A bucket
/// is closed before it would exceed its share, so a tensor larger than that is alone, and there may be more than
/// `max_splits` buckets. This is the function of EPL's `coalesced_tensors`: its cases are `fusion_buckets` in
/// `fixtures/epl_reference_cases.json`.
///
/// ```
/// use epl_core::plan::fuse;
///
/// let tensors = [("float32", 640), ("float32", 64), ("float32", 1024), ("int32", 64)];
/// assert_eq!(fuse(&tensors, 3), [vec![0, 1], vec![2], vec![3]]);
/// ```
pub fn fuse<K: Ord + Copy>(tensors: &[(K, usize)], max_splits: usize) -> Vec<Vec<usize>> {
    let total: usize = tensors.iter().map(|(_, bytes)| bytes).sum();
    // A fraction of a byte is part of the share, as in EPL.
    let share = if max_splits < 2 { f64::INFINITY } else { total as f64 / (max_splits - 1) as f64 };
    let mut by_key: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for (index, (key, _)) in tensors.iter().enumerate() {
        by_key.entry(*key).or_default().push(index);
    }
    by_key.into_values().flat_map(|indices| fill(&indices, |index| tensors[index].1, share)).collect()
}

/// Cuts a list where the bytes would exceed `share`.
fn fill(indices: &[usize], bytes: impl Fn(usize) -> usize, share: f64) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut held = 0;
    for &index in indices {
        held += bytes(index);
        match buckets.last_mut() {
            Some(bucket) if held as f64 <= share => bucket.push(index),
            _ => {
                buckets.push(vec![index]);
                held = bytes(index);
            }
        }
    }
    buckets
}
