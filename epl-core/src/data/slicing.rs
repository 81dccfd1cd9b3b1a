//! Which input files a replica reads.
//!
//! EPL divides a list of files over its workers, each of which reads for as many replicas as it has. With `n` replicas
//! on a reader, `g` the greatest common divisor of all these numbers, there are `D = replicas ÷ g` parts, and a file
//! belongs to part `file mod D`. A reader takes `n ÷ g` parts. Two readers of 4 and 2 replicas, 6 files, so 3 parts:
//!
//! ```text
//! file      0  1  2  3  4  5
//! part      0  1  2  0  1  2
//! reader    0  0  1  0  0  1
//! ```
//!
//! Here every rank loads its own rows, so that a replica is a reader: [`FileSlices::of`].

use std::ops::Range;

use rand::seq::SliceRandom;

use super::epoch::generator;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::context::Context;

/// What becomes of the files that do not divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceRule {
    /// Some readers take one file more (`io.unbalanced_io_slicing`). It goes before `drop_last`.
    pub unbalanced: bool,
    /// They are left out (`io.drop_last_files`).
    pub drop_last: bool,
}

/// A list of files, divided over readers, or whole for each of them.
///
/// ```
/// # use epl_core::data::{FileSlices, SliceRule};
/// let slices = FileSlices::new(5, &[1, 1], SliceRule { unbalanced: true, drop_last: false }).unwrap();
/// assert_eq!(slices.lists(0), [vec![0, 2, 4], vec![1, 3]]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSlices {
    /// How many files there are.
    listed: usize,
    /// How many of them are read, by whomever.
    read: usize,
    /// How many replicas each reader reads for.
    readers: Vec<usize>,
    /// For how many replicas there is one part.
    share: usize,
    divided: bool,
}

impl FileSlices {
    /// Divides so many files over readers, each of which reads for so many replicas, as EPL does.
    ///
    /// With fewer files than parts, or with a remainder that the rule does not say anything of, every reader keeps all
    /// files: see [`warning`](Self::warning).
    ///
    /// # Errors
    ///
    /// When there is no file, no reader, or a reader without a replica.
    pub fn new(files: usize, readers: &[usize], rule: SliceRule) -> Result<Self> {
        if files == 0 || readers.is_empty() || readers.contains(&0) {
            return Err(Error::invalid(format!(
                "{files} files are to be divided over readers with {readers:?} replicas; there must be a file and a \
                 reader, and every reader needs a replica"
            )));
        }
        let share = readers.iter().copied().fold(0, greatest_common_divisor);
        let parts = readers.iter().sum::<usize>() / share;
        let rest = files % parts;
        let divided = files >= parts && (rest == 0 || rule.unbalanced || rule.drop_last);
        let dropped = if divided && !rule.unbalanced { rest } else { 0 };
        Ok(Self { listed: files, read: files - dropped, readers: readers.to_vec(), share, divided })
    }

    /// Files that every replica reads: without `io.slicing`.
    ///
    /// # Errors
    ///
    /// When there is no file or no replica.
    pub fn whole(files: usize, replicas: usize) -> Result<Self> {
        Self::new(files, &[replicas], SliceRule::default())
    }

    /// What the options `io.*` say, for the replicas of this context.
    ///
    /// # Errors
    ///
    /// When there is no file.
    pub fn of(files: usize, config: &Config, context: &Context) -> Result<Self> {
        let (io, replicas) = (&config.io, context.replicas());
        if !io.slicing {
            return Self::whole(files, replicas);
        }
        let rule = SliceRule { unbalanced: io.unbalanced_io_slicing, drop_last: io.drop_last_files };
        Self::new(files, &vec![1; replicas], rule)
    }

    /// How many files are read: the first so many of the list.
    pub fn files(&self) -> usize {
        self.read
    }

    /// How many replicas read.
    pub fn replicas(&self) -> usize {
        self.readers.iter().sum()
    }

    /// Whether a file is read by one of several readers.
    pub fn is_divided(&self) -> bool {
        self.divided && self.readers.len() > 1
    }

    /// The replicas that read a file.
    ///
    /// # Panics
    ///
    /// When the file is not one of [`files`](Self::files).
    pub fn replicas_of(&self, file: usize) -> Range<usize> {
        assert!(file < self.read, "file {file} is not among the {} that are read", self.read);
        if !self.divided {
            return 0..self.replicas();
        }
        let part = file % self.parts();
        let mut first = 0;
        for replicas in &self.readers {
            if part < (first + replicas) / self.share {
                return first..first + replicas;
            }
            first += replicas;
        }
        unreachable!("a part is below the sum of all readers' parts")
    }

    /// The files of every reader. Where they are not divided, each has all of them, as often as it has parts, in an
    /// order of its own that follows from the seed.
    pub fn lists(&self, seed: u64) -> Vec<Vec<usize>> {
        let mut first = 0;
        let mut list = |(number, replicas): (usize, &usize)| {
            let mine = first;
            first += replicas;
            if self.divided {
                return (0..self.read).filter(|file| self.replicas_of(*file).start == mine).collect();
            }
            let mut all: Vec<usize> = (0..self.read).collect::<Vec<_>>().repeat(replicas / self.share);
            all.shuffle(&mut generator(seed, number as u64));
            all
        };
        self.readers.iter().enumerate().map(&mut list).collect()
    }

    /// Why files that were to be divided are not, and which option would divide them.
    pub fn warning(&self) -> Option<String> {
        if self.divided {
            return None;
        }
        let (files, parts) = (self.listed, self.parts());
        let remedy = match files >= parts {
            true => format!(
                "set io.unbalanced_io_slicing = true, so that some read one file more, or io.drop_last_files = true, so \
                 that the last {} are left out",
                files % parts
            ),
            false => format!("give at least {parts} files, or leave io.slicing out"),
        };
        Some(format!(
            "{files} files do not divide into {parts} parts, so that every replica reads all of them; {remedy}"
        ))
    }

    fn parts(&self) -> usize {
        self.replicas() / self.share
    }
}

/// The number of the first sample of each file, where they follow each other.
pub(super) fn starts(sizes: &[usize]) -> Vec<usize> {
    let mut next = 0;
    let start = |size: &usize| {
        next += size;
        next - size
    };
    sizes.iter().map(start).collect()
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => greatest_common_divisor(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNBALANCED: SliceRule = SliceRule { unbalanced: true, drop_last: false };
    const DROP: SliceRule = SliceRule { unbalanced: false, drop_last: true };

    #[test]
    fn readers_of_different_sizes_take_neighbouring_parts() {
        let slices = FileSlices::new(6, &[4, 2], SliceRule::default()).unwrap();
        assert_eq!(slices.lists(0), [vec![0, 1, 3, 4], vec![2, 5]]);
        assert_eq!((slices.replicas_of(4), slices.replicas_of(5)), (0..4, 4..6));
        assert!(slices.is_divided() && slices.warning().is_none());
    }

    #[test]
    fn a_remainder_is_shared_out_or_dropped_or_nothing_is_divided() {
        let lists = |rule| FileSlices::new(5, &[1, 1], rule).unwrap().lists(0);
        assert_eq!(lists(UNBALANCED), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(lists(DROP), [vec![0, 2], vec![1, 3]]);
        assert_eq!(lists(SliceRule { unbalanced: true, drop_last: true }), lists(UNBALANCED));
        let whole = FileSlices::new(5, &[1, 1], SliceRule::default()).unwrap();
        assert!(!whole.is_divided());
        assert_eq!((whole.files(), whole.replicas_of(3)), (5, 0..2));
        let warning = whole.warning().unwrap();
        assert!(warning.contains("5 files") && warning.contains("2 parts"), "{warning}");
        assert!(warning.contains("unbalanced_io_slicing") && warning.contains("the last 1 are"), "{warning}");
        for mut list in whole.lists(3) {
            list.sort_unstable();
            assert_eq!(list, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn fewer_files_than_parts_are_not_divided_whatever_the_rule() {
        let slices = FileSlices::new(2, &[1, 1, 1], DROP).unwrap();
        let warning = slices.warning().unwrap();
        assert!(!slices.is_divided() && warning.contains("at least 3 files"), "{warning}");
        assert_eq!(slices.files(), 2);
    }

    #[test]
    fn a_single_reader_has_all_files() {
        let slices = FileSlices::whole(3, 4).unwrap();
        assert_eq!((slices.lists(0), slices.replicas_of(2)), (vec![vec![0, 1, 2]], 0..4));
        assert!(!slices.is_divided() && slices.warning().is_none());
    }

    #[test]
    fn nothing_to_divide_is_refused() {
        for (files, readers) in [(0, &[1][..]), (1, &[]), (1, &[1, 0])] {
            let message = FileSlices::new(files, readers, DROP).unwrap_err().to_string();
            assert!(message.contains(&format!("{files} files")), "{message}");
        }
    }
}
