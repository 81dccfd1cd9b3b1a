//! Where two checkpoints differ: tensor by tensor, whatever layouts wrote them.

use std::fmt;

use burn::tensor::TensorData;

use super::differences::differences;
use super::index::TensorEntry;
use super::reader::Checkpoint;
use crate::error::Result;

/// One thing in which two checkpoints differ.
#[derive(Clone, Debug, PartialEq)]
pub enum Compared {
    /// Only one of them has this tensor or number.
    Only {
        /// Its name.
        name: String,
        /// Whether it is the first.
        first: bool,
    },
    /// A tensor is of another type or shape.
    Kind {
        /// Its name.
        name: String,
        /// In the first, in words.
        first: String,
        /// In the second.
        second: String,
    },
    /// A tensor has other elements.
    Elements {
        /// Its name.
        name: String,
        /// How many differ, to the bit.
        differ: usize,
        /// Of how many.
        of: usize,
        /// The largest difference.
        largest: f64,
        /// The largest element of the second.
        scale: f64,
    },
    /// A number, or what else there is to know, is another.
    State(String),
}

/// All differences. Two tensors are in memory at a time.
///
/// ```no_run
/// use epl_core::checkpoint::{Checkpoint, compare};
///
/// for difference in compare(&Checkpoint::open("a/step-10")?, &Checkpoint::open("b/step-10")?)? {
///     println!("{difference}");
/// }
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// When one of them is damaged.
pub fn compare(first: &Checkpoint, second: &Checkpoint) -> Result<Vec<Compared>> {
    let mut found = Vec::new();
    let (a, b) = (first.index(), second.index());
    let only = |name: &String, first: bool| Compared::Only { name: name.clone(), first };
    for (name, entry) in &a.tensors {
        match b.tensors.get(name) {
            None => found.push(only(name, true)),
            Some(other) if (other.dtype, &other.shape) != (entry.dtype, &entry.shape) => {
                found.push(Compared::Kind { name: name.clone(), first: words(entry), second: words(other) });
            }
            Some(_) => found.extend(elements(name, &first.read_whole(name)?, &second.read_whole(name)?)),
        }
    }
    found.extend(b.tensors.keys().filter(|name| !a.tensors.contains_key(*name)).map(|name| only(name, false)));
    for (name, value) in &a.scalars {
        match b.scalars.get(name) {
            None => found.push(only(name, true)),
            Some(other) if other == value => {}
            Some(other) => found.push(Compared::State(format!("`{name}` {value}, now {other}"))),
        }
    }
    found.extend(b.scalars.keys().filter(|name| !a.scalars.contains_key(*name)).map(|name| only(name, false)));
    let (state, other) = (serde_json::json!(a.state), serde_json::json!(b.state));
    found.extend(differences(&state, &other).iter().map(|difference| Compared::State(difference.to_string())));
    Ok(found)
}

fn elements(name: &str, a: &TensorData, b: &TensorData) -> Option<Compared> {
    let size = a.dtype().size();
    let differ = a.as_bytes().chunks(size).zip(b.as_bytes().chunks(size)).filter(|(a, b)| a != b).count();
    // What is no number in one of them alone is as far from the other as can be.
    let apart = |(a, b): (f64, f64)| if a.is_nan() != b.is_nan() { f64::INFINITY } else { (a - b).abs() };
    let largest = a.iter::<f64>().zip(b.iter::<f64>()).map(apart).fold(0.0, f64::max);
    let scale = b.iter::<f64>().map(f64::abs).fold(0.0, f64::max);
    (differ > 0).then(|| Compared::Elements { name: name.to_string(), differ, of: a.num_elements(), largest, scale })
}

fn words(entry: &TensorEntry) -> String {
    format!("{:?} of {:?}", entry.dtype, entry.shape)
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only { name, first } => write!(f, "`{name}` only in the {}", if *first { "first" } else { "second" }),
            Self::Kind { name, first, second } => write!(f, "`{name}` {first}, now {second}"),
            Self::Elements { name, differ, of, largest, scale } => {
                write!(f, "`{name}` {differ} of {of} elements, by at most {largest:.3e} of {scale:.3e}")
            }
            Self::State(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_in_one_of_them_is_far() {
        let of = |values: [f32; 3]| TensorData::new(values.to_vec(), [3]);
        let known = of([1.0, f32::NAN, 3.0]);
        assert!(elements("w", &known, &known).is_none());
        let told = |other: [f32; 3]| elements("w", &of(other), &known).unwrap().to_string();
        assert_eq!(told([1.5, f32::NAN, 3.0]), "`w` 1 of 3 elements, by at most 5.000e-1 of 3.000e0");
        assert_eq!(told([f32::NAN, f32::NAN, 3.5]), "`w` 2 of 3 elements, by at most inf of 3.000e0");
    }
}
