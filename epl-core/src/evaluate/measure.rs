//! What a measure is: sums over samples, and the named values that follow from them.

use crate::error::{Error, Result};

/// Named values, such as `("bleu", 31.4)`.
pub type Values = Vec<(String, f64)>;

/// Adds values to those that are there.
///
/// # Errors
///
/// When there is one of the same name.
pub fn join(values: &mut Values, more: Values) -> Result<()> {
    for (name, value) in more {
        if values.iter().any(|(known, _)| *known == name) {
            return Err(Error::invalid(format!(
                "two evaluations returned a value called `{name}`; give one of them another name"
            )));
        }
        values.push((name, value));
    }
    Ok(())
}

/// A measure of outputs `O` over a whole validation set.
///
/// Whatever is a sum over samples, or follows from such sums, can be one: a share, a mean, F1, BLEU. A mean of the
/// batches' means is none: batches have different numbers of samples.
///
/// ```
/// use epl_core::Result;
/// use epl_core::evaluate::{Measure, Values};
///
/// /// The mean length of what was written.
/// struct MeanLength;
///
/// impl Measure<Vec<String>> for MeanLength {
///     fn sums(&self) -> usize {
///         2
///     }
///
///     fn add(&self, texts: &Vec<String>, sums: &mut [f64]) -> Result<()> {
///         sums[0] += texts.iter().map(|text| text.len() as f64).sum::<f64>();
///         sums[1] += texts.len() as f64;
///         Ok(())
///     }
///
///     fn values(&self, sums: &[f64]) -> Result<Values> {
///         Ok(vec![("mean_length".to_string(), sums[0] / sums[1])])
///     }
/// }
/// ```
pub trait Measure<O> {
    /// How many sums it keeps: the same on every rank, also on one that has no sample.
    fn sums(&self) -> usize;

    /// Adds what a forward gave for the samples of one micro-batch. Never called for a stand-in, and so without
    /// collectives: those belong into the forward.
    ///
    /// # Errors
    ///
    /// When the output cannot be measured.
    fn add(&self, output: &O, sums: &mut [f64]) -> Result<()>;

    /// What follows from the sums over all samples of all replicas.
    ///
    /// # Errors
    ///
    /// When nothing follows, as no sample was counted.
    fn values(&self, sums: &[f64]) -> Result<Values>;
}

impl<O, T: Measure<O> + ?Sized> Measure<O> for Box<T> {
    fn sums(&self) -> usize {
        (**self).sums()
    }

    fn add(&self, output: &O, sums: &mut [f64]) -> Result<()> {
        (**self).add(output, sums)
    }

    fn values(&self, sums: &[f64]) -> Result<Values> {
        (**self).values(sums)
    }
}

/// `sum ÷ count`, for a measure called `name` that counts `what`.
///
/// # Errors
///
/// When nothing was counted.
pub fn mean(name: &str, sum: f64, count: f64, what: &str) -> Result<f64> {
    if count > 0.0 {
        return Ok(sum / count);
    }
    Err(Error::invalid(format!(
        "`{name}` was to be measured over 0 {what}; give the evaluation data that have some, or leave the measure out"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_an_empty_count_is_refused() {
        let mut values = vec![("a".to_string(), 1.0)];
        join(&mut values, vec![("b".to_string(), 2.0)]).unwrap();
        assert!(join(&mut values, vec![("a".to_string(), 3.0)]).unwrap_err().to_string().contains("`a`"));
        assert_eq!(mean("accuracy", 3.0, 4.0, "rows").unwrap(), 0.75);
        let text = mean("accuracy", 0.0, 0.0, "rows").unwrap_err().to_string();
        assert!(text.contains("`accuracy` was to be measured over 0 rows"), "{text}");
    }
}
