//! Whole tensors that can be read by name, in slices.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{DType, TensorData};

use super::slice::cut;
use crate::error::{Error, Result};

/// What is known of a tensor before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The shape of the whole.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: DType,
}

impl TensorInfo {
    /// The range of every dim.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        self.shape.iter().map(|extent| 0..*extent).collect()
    }

    /// The bytes of the whole.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Whole tensors by name, read when asked for, one at a time.
///
/// ```
/// use std::collections::BTreeMap;
/// use burn::tensor::TensorData;
/// use epl_core::tensors::WholeTensors;
///
/// let stored = BTreeMap::from([("w".to_string(), TensorData::new(vec![1.0, 2.0, 3.0, 4.0], [2, 2]))]);
/// assert_eq!(stored.read("w", &[0..2, 1..2])?, TensorData::new(vec![2.0, 4.0], [2, 1]));
/// # Ok::<_, epl_core::Error>(())
/// ```
pub trait WholeTensors {
    /// The names of all tensors, in any order.
    fn names(&self) -> Vec<String>;

    /// What is known of a tensor; nothing when there is none of this name.
    fn info(&self, name: &str) -> Option<TensorInfo>;

    /// A range of every dim of a tensor.
    ///
    /// # Errors
    ///
    /// When there is no such tensor, the ranges do not lie in it, or it cannot be read.
    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData>;

    /// The whole of a tensor.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_whole(&self, name: &str) -> Result<TensorData> {
        let info = self.info(name).ok_or_else(|| not_stored(name))?;
        self.read(name, &info.ranges())
    }
}

/// What the engine's [`parameters`](crate::Engine::parameters) are.
impl WholeTensors for BTreeMap<String, TensorData> {
    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.get(name).map(|data| TensorInfo { shape: data.shape().to_vec(), dtype: data.dtype() })
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
        let data = self.get(name).ok_or_else(|| not_stored(name))?;
        check_ranges(name, &data.shape().to_vec(), ranges)?;
        Ok(cut(data.clone(), ranges))
    }
}

impl<T: WholeTensors + ?Sized> WholeTensors for &T {
    fn names(&self) -> Vec<String> {
        T::names(self)
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        T::info(self, name)
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
        T::read(self, name, ranges)
    }
}

/// That there is no tensor of a name.
pub(super) fn not_stored(name: &str) -> Error {
    Error::Parameter { name: name.to_string(), reason: "is not among the stored tensors".to_string() }
}

/// Refuses ranges that do not lie in a tensor's shape: for those who implement [`WholeTensors`].
///
/// # Errors
///
/// [`Error::Parameter`] with both.
pub fn check_ranges(name: &str, shape: &[usize], ranges: &[Range<usize>]) -> Result<()> {
    let inside = |(extent, range): (&usize, &Range<usize>)| range.start <= range.end && range.end <= *extent;
    if shape.len() == ranges.len() && shape.iter().zip(ranges).all(inside) {
        return Ok(());
    }
    let reason = format!("has the shape {shape:?}, and {ranges:?} of it was asked for");
    Err(Error::Parameter { name: name.to_string(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> BTreeMap<String, TensorData> {
        BTreeMap::from([("w".to_string(), TensorData::new((0..6).collect::<Vec<i64>>(), [2, 3]))])
    }

    #[test]
    fn whole_or_in_slices() {
        assert_eq!(stored().read_whole("w").unwrap(), stored()["w"]);
        let slice = stored().read("w", &[1..2, 1..3]).unwrap();
        assert_eq!(slice, TensorData::new(vec![4_i64, 5], [1, 2]));
        assert_eq!(stored().info("w").unwrap().bytes(), 48);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let message = |ranges: &[Range<usize>]| stored().read("w", ranges).unwrap_err().to_string();
        assert!(message(&[0..3, 0..3]).contains("`w`: has the shape [2, 3], and [0..3, 0..3] of it was asked for"));
        let one_dim = 0..2;
        assert!(message(core::slice::from_ref(&one_dim)).contains("[0..2] of it"));
        assert!(stored().read_whole("v").unwrap_err().to_string().contains("`v`: is not among the stored tensors"));
    }
}
