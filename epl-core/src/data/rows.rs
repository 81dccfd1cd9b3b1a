//! Batches that can be cut by rows.

use std::hash::Hasher;
use std::ops::Range;

use burn::tensor::kind::Basic;
use burn::tensor::{Tensor, s};

use siphasher::sip::SipHasher13;

use super::cut::BatchShard;
use crate::engine::{Engine, Given, MicroBatch, StepReport};
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::offload::is_host;

/// A batch whose first dim counts its rows. [`batch!`](crate::batch) writes it for a struct.
pub trait Rows: Sized {
    /// How many rows there are.
    ///
    /// # Errors
    ///
    /// When its parts have different numbers of rows.
    fn rows(&self) -> Result<usize>;

    /// How many rows it has as a part of a batch; none of a part that is not there, as an `Option` may be.
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    fn rows_of_part(&self) -> Result<Option<usize>> {
        self.rows().map(Some)
    }

    /// Some of the rows.
    #[must_use]
    fn narrow(&self, rows: Range<usize>) -> Self;

    /// Feeds the values to a digest, by which ranks see whether they have the same batch. Where nothing is fed, as by default,
    /// and of a list, they compare the numbers of rows only.
    fn digest(&self, _digest: &mut Digest) {}
}

/// What tells a batch from others.
#[derive(Clone, Debug, Default)]
pub struct Digest {
    hasher: SipHasher13,
    /// Whether all values count, those on an accelerator, too. To read these waits for all that the device has to compute.
    in_full: bool,
}

/// At most about so many values of a tensor count where not all do.
const SAMPLED: usize = 4096;

impl Digest {
    /// Takes in some bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
    }

    /// One in which all values count, also those on an accelerator.
    pub fn in_full() -> Self {
        Self { in_full: true, ..Self::default() }
    }

    /// What it has become.
    pub fn finish(&self) -> u64 {
        self.hasher.finish()
    }

    /// Takes in the shape of a tensor, and its values: in an engine's first step all, later some thousand of those that are in
    /// host memory, and none on an accelerator.
    pub fn feed_tensor<const D: usize, K: Basic>(&mut self, tensor: &Tensor<D, K>) {
        self.feed(format!("{:?} {:?}", tensor.dtype(), tensor.dims()).as_bytes());
        if self.in_full {
            self.feed(tensor.to_data().as_bytes());
        } else if is_host(&tensor.device()) {
            let values = tensor.clone().flatten::<1>(0, D - 1);
            self.feed(values.slice(s![..;stride(tensor.shape().num_elements())]).to_data().as_bytes());
        }
    }
}

/// The distance between values that are to stand for so many. It is prime to their number, so that they are not all of the
/// same columns, which an image may have black.
fn stride(values: usize) -> isize {
    let is_prime_to = |stride: &usize| gcd(*stride, values) == 1;
    let found = (values.div_ceil(SAMPLED)..=values).find(is_prime_to);
    found.unwrap_or(1) as isize
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<const D: usize, K: Basic> Rows for Tensor<D, K> {
    fn rows(&self) -> Result<usize> {
        Ok(self.dims()[0])
    }

    fn narrow(&self, rows: Range<usize>) -> Self {
        self.clone().slice_dim(0, rows)
    }

    fn digest(&self, digest: &mut Digest) {
        digest.feed_tensor(self);
    }
}

impl<T: Rows> Rows for Option<T> {
    fn rows(&self) -> Result<usize> {
        self.as_ref().map_or_else(|| equal(&[None]), Rows::rows)
    }

    fn rows_of_part(&self) -> Result<Option<usize>> {
        self.as_ref().map_or(Ok(None), Rows::rows_of_part)
    }

    fn narrow(&self, rows: Range<usize>) -> Self {
        self.as_ref().map(|part| part.narrow(rows))
    }

    fn digest(&self, digest: &mut Digest) {
        digest.feed(&[u8::from(self.is_some())]);
        if let Some(part) = self {
            part.digest(digest);
        }
    }
}

impl<T: Clone> Rows for Vec<T> {
    fn rows(&self) -> Result<usize> {
        Ok(self.len())
    }

    fn narrow(&self, rows: Range<usize>) -> Self {
        self[rows].to_vec()
    }
}

/// Makes a struct whose fields are all tensors, lists, batches themselves, or options of these, a [`Batch`](crate::Batch), whose
/// tensors are cast under mixed precision, and [`Rows`], of which [`Engine::train_batch`](crate::Engine::train_batch) gives each
/// rank its own; or a tuple.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// #[derive(Clone, Debug)]
/// struct Images { pixels: Tensor<4>, weights: Option<Tensor<1>>, classes: Tensor<1, Int> }
///
/// epl_core::batch!(Images { pixels, weights, classes });
/// ```
#[macro_export]
macro_rules! batch {
    ($batch:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::Batch for $batch {
            fn in_half(&self, half: $crate::HalfPrecision) -> Option<Self> {
                $(let $field = $crate::Batch::in_half(&self.$field, half);)+
                [$($field.is_some()),+]
                    .contains(&true)
                    .then(|| Self { $($field: $field.unwrap_or_else(|| self.$field.clone())),+ })
            }

            fn float_types(&self, types: &mut $crate::model::batch::FloatTypes) {
                $(types.field(stringify!($field), &self.$field);)+
            }
        }

        impl $crate::data::Rows for $batch {
            fn rows(&self) -> $crate::Result<usize> {
                $crate::data::rows::equal(&[$($crate::data::Rows::rows_of_part(&self.$field)?),+])
            }

            fn rows_of_part(&self) -> $crate::Result<Option<usize>> {
                let parts = [$($crate::data::Rows::rows_of_part(&self.$field)?),+];
                let is_there = parts.iter().any(Option::is_some);
                is_there.then(|| $crate::data::rows::equal(&parts)).transpose()
            }

            fn narrow(&self, rows: core::ops::Range<usize>) -> Self {
                Self { $($field: $crate::data::Rows::narrow(&self.$field, rows.clone())),+ }
            }

            fn digest(&self, digest: &mut $crate::data::rows::Digest) {
                $($crate::data::Rows::digest(&self.$field, digest);)+
            }
        }
    };
    ($($part:ident: $index:tt),+) => {
        impl<$($part: $crate::Batch + Clone),+> $crate::Batch for ($($part,)+) {
            #[allow(non_snake_case, reason = "what is made of a part has the name of its type")]
            fn in_half(&self, half: $crate::HalfPrecision) -> Option<Self> {
                $(let $part = $crate::Batch::in_half(&self.$index, half);)+
                [$($part.is_some()),+]
                    .contains(&true)
                    .then(|| ($($part.unwrap_or_else(|| self.$index.clone()),)+))
            }

            fn float_types(&self, types: &mut $crate::model::batch::FloatTypes) {
                $(types.field(stringify!($index), &self.$index);)+
            }
        }

        impl<$($part: $crate::data::Rows),+> $crate::data::Rows for ($($part,)+) {
            fn rows(&self) -> $crate::Result<usize> {
                $crate::data::rows::equal(&[$($crate::data::Rows::rows_of_part(&self.$index)?),+])
            }

            fn rows_of_part(&self) -> $crate::Result<Option<usize>> {
                let parts = [$($crate::data::Rows::rows_of_part(&self.$index)?),+];
                let is_there = parts.iter().any(Option::is_some);
                is_there.then(|| $crate::data::rows::equal(&parts)).transpose()
            }

            fn narrow(&self, rows: core::ops::Range<usize>) -> Self {
                ($($crate::data::Rows::narrow(&self.$index, rows.clone()),)+)
            }

            fn digest(&self, digest: &mut $crate::data::rows::Digest) {
                $($crate::data::Rows::digest(&self.$index, digest);)+
            }
        }
    };
}

batch!(A: 0, B: 1);
batch!(A: 0, B: 1, C: 2);
batch!(A: 0, B: 1, C: 2, D: 3);

impl<M: Model> Engine<M>
where
    M::Batch: Rows,
{
    /// Makes one step on a batch that every rank has whole, the same on each: each rank runs its rows of it, in
    /// `pipeline.num_micro_batch` micro-batches. Collective.
    ///
    /// Ranks compare their numbers of rows and a digest of the values' bits ([`Rows::digest`]): in an engine's first step of
    /// all values, in later ones of some thousand of each tensor, if it is Flex's. A batch that ranks compute each for
    /// themselves, to other roundings, has a type of its own that feeds the digest nothing.
    ///
    /// Samples are numbered from this engine's first such step. A run that is saved and resumed takes its batches from a
    /// [`Loader`](super::Loader), whose position is saved.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step) and [`micro_batches`]; when ranks have different batches, before anything is updated.
    pub fn train_batch(&mut self, batch: &M::Batch, rate: f64) -> Result<StepReport> {
        self.train_batches(core::slice::from_ref(batch), rate)
    }

    /// [`train_batch`](Self::train_batch) of several batches in one step, each of which is cut by itself: `pipeline.num_micro_batch`
    /// micro-batches of each. Collective.
    ///
    /// # Errors
    ///
    /// As [`train_batch`](Self::train_batch).
    pub fn train_batches(&mut self, batches: &[M::Batch], rate: f64) -> Result<StepReport> {
        let (share, (first, has_compared)) = (BatchShard::of(self.context(), self.num_micro_batch())?, self.drawn());
        let mut digest = Digest { in_full: !has_compared, ..Digest::default() };
        let (mut rows, mut cut) = (0, Vec::new());
        for batch in batches {
            if self.context().world().size() > 1 {
                batch.digest(&mut digest);
            }
            cut.extend(micro_batches(batch, share, first + rows as u64)?);
            rows += batch.rows()?;
        }
        let given = Given::whole(rows, digest.finish());
        let report = self.step_given(cut, given, rate)?;
        self.draw(rows as u64);
        Ok(report)
    }
}

/// The number of rows of all parts of a batch.
///
/// # Errors
///
/// When it is not the same of all.
#[doc(hidden)]
pub fn equal(parts: &[Option<usize>]) -> Result<usize> {
    let mut known = parts.iter().flatten();
    let Some(first) = known.next() else {
        return Err(Error::invalid("a batch of which no part is there has no number of rows; give one part at least"));
    };
    match known.find(|other| *other != first) {
        None => Ok(*first),
        Some(second) => {
            Err(Error::invalid(format!("parts of one batch have {first} and {second} rows; give all the same number")))
        }
    }
}

/// A rank's micro-batches of a batch that every rank has whole; `first` is the global number of its first sample.
///
/// # Errors
///
/// A batch without a row, or with parts of different numbers of rows.
pub fn micro_batches<B: Rows>(batch: &B, share: BatchShard, first: u64) -> Result<Vec<MicroBatch<B>>> {
    let rows = batch.rows()?;
    if rows == 0 {
        return Err(Error::invalid("a batch without a row; give at least one"));
    }
    let micro_batch = |range: Range<usize>| {
        let is_empty = range.is_empty();
        // Something must run: see `MicroBatch`.
        let range = if is_empty { 0..1 } else { range };
        let samples: Vec<u64> = range.clone().map(|row| first + row as u64).collect();
        MicroBatch { batch: batch.narrow(range), samples: samples.into(), empty: is_empty }
    };
    Ok(share.rows(rows).into_iter().map(micro_batch).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_sample_of_values_is_spread_over_all_columns() {
        for shape in [[1024, 28, 28], [64, 224, 224], [3, 5, 7], [1, 1, 1], [0, 4, 4], [4099, 1, 1], [2, 2, 4099]] {
            let values: usize = shape.iter().product();
            let stride = stride(values) as usize;
            let sample: Vec<usize> = (0..values).step_by(stride).collect();
            assert!(sample.len() <= SAMPLED && sample.len() >= values.min(SAMPLED / 2), "{shape:?}: {}", sample.len());
            let columns: HashSet<usize> = sample.iter().map(|value| value % shape[2]).collect();
            assert!(
                columns.len() == shape[2].min(values) || columns.len() >= SAMPLED / 2,
                "{shape:?}: {}",
                columns.len()
            );
        }
    }

    #[test]
    fn a_sample_tells_batches_apart() {
        let of = |tensor: Tensor<2>, in_full: bool| {
            let mut digest = Digest { in_full, ..Digest::default() };
            tensor.digest(&mut digest);
            digest.hasher.finish()
        };
        let device = burn::tensor::Device::flex();
        let batch = |rows: usize, first: f32| Tensor::<2>::ones([rows, 40], &device) * first;
        for in_full in [true, false] {
            assert_eq!(of(batch(300, 1.0), in_full), of(batch(300, 1.0), in_full));
            assert_ne!(of(batch(300, 1.0), in_full), of(batch(300, 2.0), in_full));
            assert_ne!(of(batch(300, 1.0), in_full), of(batch(299, 1.0), in_full));
            assert_eq!(of(batch(0, 1.0), in_full), of(batch(0, 1.0), in_full));
        }
    }

    #[test]
    fn a_part_may_be_missing() -> Result<()> {
        let device = burn::tensor::Device::flex();
        let rows = |rows: usize| Tensor::<2>::ones([rows, 3], &device);
        let digest = |batch: &(Tensor<2>, Option<Tensor<2>>)| {
            let mut digest = Digest { in_full: true, ..Digest::default() };
            batch.digest(&mut digest);
            digest.hasher.finish()
        };
        let (without, with) = ((rows(4), None), (rows(4), Some(rows(4))));
        assert_eq!([without.rows()?, with.rows()?], [4, 4]);
        assert_ne!(digest(&without), digest(&with));
        assert_eq!(with.narrow(1..3).1.map(|part| part.dims()), Some([2, 3]));
        assert!(without.narrow(1..3).1.is_none());
        assert!((rows(4), Some(rows(3))).rows().is_err_and(|error| error.to_string().contains("4 and 3 rows")));
        assert!((None::<Tensor<2>>, None::<Tensor<2>>).rows().is_err());
        assert_eq!((rows(4), (None::<Tensor<2>>, None::<Tensor<2>>)).rows()?, 4);
        Ok(())
    }

    #[test]
    fn replicas_and_micro_batches_share_the_rows_of_all_parts() -> Result<()> {
        let batch = (vec![1, 2, 3, 4, 5], vec!["a", "b", "c", "d", "e"]);
        let share = |replica| BatchShard::new(replica, 2, 2);
        let cut = [micro_batches(&batch, share(0)?, 10)?, micro_batches(&batch, share(1)?, 10)?].concat();
        let rows: Vec<_> = cut.iter().map(|micro| (micro.batch.0.clone(), micro.samples.to_vec())).collect();
        let expected = [(vec![1, 2], vec![10, 11]), (vec![3], vec![12]), (vec![4], vec![13]), (vec![5], vec![14])];
        assert_eq!(rows, expected);
        assert_eq!(cut[3].batch.1, ["e"]);
        Ok(())
    }

    #[test]
    fn a_replica_without_a_row_gets_a_stand_in() -> Result<()> {
        let cut = micro_batches(&vec![7], BatchShard::new(1, 2, 1)?, 0)?;
        assert!(cut[0].empty && cut[0].batch == [7]);
        Ok(())
    }

    #[test]
    fn parts_of_different_lengths_and_empty_batches_are_refused() {
        let said = |batch: (Vec<u8>, Vec<u8>)| micro_batches(&batch, BatchShard::whole(), 0).unwrap_err().to_string();
        assert!(said((vec![1, 2], vec![1])).contains("2 and 1 rows"));
        assert!(said((vec![], vec![])).contains("without a row"));
    }
}
