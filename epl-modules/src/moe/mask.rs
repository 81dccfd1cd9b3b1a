//! Which tokens of a batch are real, on the host.

use std::sync::Arc;

use burn::tensor::{Bool, Tensor};

use crate::invalid::refuse;

/// Which tokens of a batch are real and which are padding, on the host, which decides by it how much room experts have.
///
/// A model that knows its lengths makes it without waiting for the device. A clone shares its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenMask {
    length: usize,
    real: Arc<[bool]>,
}

impl TokenMask {
    /// Of each token of sequences of `length` tokens whether it is real.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when they are not so many whole sequences.
    pub fn new(real: Vec<bool>, length: usize) -> Self {
        if !real.len().is_multiple_of(length.max(1)) {
            refuse(format!("{} tokens are no sequences of {length}: give as many for each sequence", real.len()));
        }
        Self { length, real: real.into() }
    }

    /// A batch without padding: `groups` sequences of `length` tokens.
    pub fn all(groups: usize, length: usize) -> Self {
        Self { length, real: vec![true; groups * length].into() }
    }

    /// Sequences of these lengths, padded behind to `length` tokens.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a sequence is longer than that.
    pub fn from_lengths(lengths: &[usize], length: usize) -> Self {
        if let Some((sequence, real)) = lengths.iter().enumerate().find(|(_, real)| **real > length) {
            refuse(format!(
                "sequence {sequence} has {real} tokens, but the batch is padded to {length}: pad it to at least {real}, \
                 or cut the sequence"
            ));
        }
        let real = lengths.iter().flat_map(|real| (0..length).map(move |token| token < *real)).collect();
        Self { length, real }
    }

    /// The opposite of a padding mask. It waits for the device.
    ///
    /// # Shapes
    ///
    /// - padding: `[batch, seq]`, true where the token is padding
    pub fn from_padding(padding: Tensor<2, Bool>) -> Self {
        let [_, length] = padding.dims();
        Self::new(padding.into_data().iter::<bool>().map(|padding| !padding).collect(), length)
    }

    /// How many sequences there are.
    pub fn groups(&self) -> usize {
        self.real.len().checked_div(self.length).unwrap_or(0)
    }

    /// How many tokens a padded sequence has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// How many real tokens each sequence has.
    pub fn real_tokens(&self) -> Vec<usize> {
        let of = |group: &[bool]| group.iter().filter(|real| **real).count();
        self.real.chunks(self.length.max(1)).map(of).collect()
    }

    /// Whether each token is real, one sequence after the other.
    pub fn as_slice(&self) -> &[bool] {
        &self.real
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn three_ways_to_say_the_same() {
        let expected = [true, true, false, false, false, false, true, true, true];
        let lengths = TokenMask::from_lengths(&[2, 0, 3], 3);
        assert_eq!(lengths.as_slice(), expected);
        assert_eq!((lengths.groups(), lengths.length()), (3, 3));
        let padding: Vec<Vec<bool>> = expected.chunks(3).map(|row| row.iter().map(|real| !real).collect()).collect();
        let rows = [0, 1, 2].map(|row| [padding[row][0], padding[row][1], padding[row][2]]);
        assert_eq!(TokenMask::from_padding(Tensor::from_data(rows, &Device::flex())), lengths);
        assert_eq!(TokenMask::all(2, 3), TokenMask::from_lengths(&[3, 3], 3));
        assert_eq!(TokenMask::new(expected.to_vec(), 3), lengths);
        assert_eq!(TokenMask::all(2, 0).groups(), 0);
        let error = epl_comm::catch(|| TokenMask::new(vec![true; 5], 3)).expect_err("5 is not 3 or 6");
        assert!(error.to_string().contains("5 tokens are no sequences of 3"), "{error}");
    }
    #[test]
    fn a_sequence_longer_than_the_batch_is_refused() {
        let error = epl_comm::catch(|| TokenMask::from_lengths(&[2, 7], 3)).expect_err("7 tokens do not fit");
        assert!(error.to_string().contains("sequence 1 has 7 tokens, but the batch is padded to 3"), "{error}");
    }
}
