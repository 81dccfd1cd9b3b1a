//! What TensorBoard shows of a run.
//!
//! Its format: records of TensorFlow (`tfrecord`), each an `Event` of Protocol Buffers, of which scalars need five fields
//! (`tensorflow/core/util/event.proto`, `summary.proto`).

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::hook::Hook;
use crate::trainer::record::{Evaluation, StepRecord};
use crate::trainer::run::Run;

/// Writes each step's numbers as events that TensorBoard reads: `tensorboard --logdir FOLDER`.
///
/// | tag | value |
/// |---|---|
/// | `loss`, `lr`, … | as in [`MetricsLog`](super::MetricsLog), what is known |
/// | `terms/NAME`, `weights/NAME` | the loss terms, and their weights |
/// | `metrics/NAME` | the layers' metrics; of several numbers each, `metrics/NAME/0` and on |
/// | `valid_loss`, … | what an evaluation found |
///
/// Each run has a file of its own, and tells TensorBoard to forget what an earlier one wrote of the steps that are made again: of one
/// that begins anew all.
///
/// ```
/// # use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, nn::{Linear, LinearConfig}, optim::SgdConfig};
/// # use burn::tensor::{Device, Tensor};
/// # use epl_core::{Config, Trainer, WithLoss, data::{ShuffledSampler, TrainData}, launch, trainer::TensorBoard};
/// # #[derive(Clone)]
/// # struct Column;
/// # impl Batcher<f32, Tensor<2>> for Column {
/// #     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<2> {
/// #         Tensor::<1>::from_floats(items.as_slice(), device).unsqueeze_dim(1)
/// #     }
/// # }
/// # let data = TrainData::new(InMemDataset::new(vec![1.0, 2.0, 3.0, 4.0]), Column, ShuffledSampler::new(4, 2, 7)?)?;
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// let runs = folder.path().join("runs"); // `tensorboard --logdir runs` shows it
/// launch(&Config::new().with("train.steps", 3)?, |epl| {
///     let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
///     let trainer = Trainer::build(&epl, |at| WithLoss::new(LinearConfig::new(1, 1).init(at), loss), &SgdConfig::new())?;
///     trainer.with_hook(TensorBoard::new(&runs)).quiet().fit(&data).map(drop)
/// })?;
/// let files: Vec<_> = std::fs::read_dir(&runs).expect("it is made").map(|file| file.unwrap().file_name()).collect();
/// assert!(files.len() == 1 && files[0].to_string_lossy().starts_with("events.out.tfevents."));
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorBoard {
    folder: PathBuf,
    /// Whether a run that begins anew takes the place of an earlier one.
    replaces: bool,
    file: Option<(PathBuf, File)>,
}

/// How the names of files begin that TensorBoard reads.
const BEGIN: &str = "events.out.tfevents.";
/// The format's version, which the first event of a file says.
const VERSION: &str = "brain.Event:2";

impl TensorBoard {
    /// Events in a file of this folder. Nothing is touched until the run begins.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), replaces: false, file: None }
    }

    /// Whether a run that begins anew removes the events of an earlier one.
    #[must_use]
    pub fn replacing(mut self, replaces: bool) -> Self {
        self.replaces = replaces;
        self
    }

    /// Makes the file of a run that goes on after so many steps.
    ///
    /// # Errors
    ///
    /// When it cannot be made, or those of an earlier run that is replaced not be removed.
    pub fn open(&mut self, done: u64) -> Result<()> {
        fs::create_dir_all(&self.folder).map_err(|error| Error::file(&self.folder, error))?;
        if done == 0 && self.replaces {
            self.clear()?;
        }
        let now = since_epoch();
        // Readers go through files in the order of these names.
        let name = format!("{BEGIN}{:010}.{:09}.{}", now as u64, (now.fract() * 1e9) as u64, std::process::id());
        let path = self.folder.join(name);
        let file = File::create_new(&path).map_err(|error| Error::file(&path, error))?;
        self.file = Some((path, file));
        self.append(0, &field(3, VERSION.as_bytes()))?;
        // A session's start, which is the first value of its enumeration.
        self.append(done + 1, &field(7, &[1 << 3, 1]))
    }

    /// Removes the events of an earlier run.
    fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.folder).map_err(|error| Error::file(&self.folder, error))? {
            let path = entry.map_err(|error| Error::file(&self.folder, error))?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(BEGIN.as_bytes())) {
                fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
            }
        }
        Ok(())
    }

    /// Writes numbers of a step.
    ///
    /// # Errors
    ///
    /// When the file cannot be written: it keeps what it had.
    pub fn add(&mut self, step: u64, scalars: &[(String, f64)]) -> Result<()> {
        let value = |(tag, value): &(String, f64)| {
            let value = [&[2 << 3 | 5][..], &(*value as f32).to_le_bytes()].concat();
            field(1, &[field(1, tag.as_bytes()), value].concat())
        };
        self.append(step, &field(5, &scalars.iter().flat_map(value).collect::<Vec<u8>>()))
    }

    /// Writes an event, whole or not at all.
    fn append(&mut self, step: u64, what: &[u8]) -> Result<()> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let event = [&[1 << 3 | 1][..], &since_epoch().to_le_bytes(), &[2 << 3], &varint(step), what].concat();
        let start = file.seek(SeekFrom::End(0)).map_err(|error| Error::file(&*path, error))?;
        file.write_all(&record(&event)).map_err(|error| {
            // A reader would take the rest of the file for a damaged one; what also fails here, it does.
            let _ = file.set_len(start);
            Error::file(&*path, error)
        })
    }
}

fn since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A record with its length, and checksums of both.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let masked = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

/// A field of Protocol Buffers that holds bytes, a text or a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

impl<M: Model> Hook<M> for TensorBoard {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.open(run.step())
    }

    fn after_step(&mut self, run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        run.forgive(self.add(record.step, &record.scalars()));
        Ok(())
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        let values: Vec<_> = evaluation.values.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        run.forgive(self.add(evaluation.step, &values));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(board: &TensorBoard) -> Vec<u8> {
        fs::read(&board.file.as_ref().unwrap().0).unwrap()
    }

    /// The events of a file, each without its time, as its checksums say.
    fn events(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let (whole, rest) = bytes.split_at(16 + length);
            assert_eq!(super::record(&whole[12..12 + length]), whole);
            assert_eq!(whole[12], 9);
            events.push(whole[21..12 + length].to_vec());
            bytes = rest;
        }
        events
    }

    /// `tools/check_tensorboard.py` has TensorBoard's own reader read a run's.
    #[test]
    fn a_record_is_that_of_tensorflow() {
        // By the checksums of the package `tensorboard`.
        let expected = [3, 0, 0, 0, 0, 0, 0, 0, 176, 153, 73, 14, 97, 98, 99, 110, 87, 241, 33];
        assert_eq!(super::record(b"abc"), expected);
        assert_eq!(varint(300), [0xac, 2]);
        assert_eq!(field(3, b"x"), [0x1a, 1, b'x']);
    }

    #[test]
    fn a_run_has_a_file_and_says_where_it_begins() {
        let folder = tempfile::tempdir().unwrap();
        let count = || fs::read_dir(folder.path().join("events")).unwrap().count();
        let mut board = TensorBoard::new(folder.path().join("events"));
        board.open(0).unwrap();
        board.add(300, &[("loss".into(), 2.0)]).unwrap();
        let first = events(&bytes(&board));
        assert_eq!(first[0], [&[0x10, 0, 0x1a, 13][..], VERSION.as_bytes()].concat());
        let value = [&[0x0a, 4][..], b"loss", &[0x15], &2f32.to_le_bytes()].concat();
        // Also of one that begins anew: an earlier one in the folder may have come to no checkpoint.
        assert_eq!(first[1], [0x10, 1, 0x3a, 2, 8, 1]);
        assert_eq!(first[2], [&[0x10, 0xac, 2, 0x2a, 13, 0x0a, 11][..], &value].concat());
        board.open(7).unwrap();
        assert_eq!(events(&bytes(&board))[1], [0x10, 8, 0x3a, 2, 8, 1]);
        assert_eq!(count(), 2);
        let other = folder.path().join("events/notes");
        fs::write(&other, "").unwrap();
        let mut board = board.replacing(true);
        board.open(7).unwrap();
        assert_eq!(count(), 4, "what is resumed is not replaced");
        board.open(0).unwrap();
        assert_eq!((count(), other.exists(), events(&bytes(&board)).len()), (2, true, 2));
    }

    #[test]
    fn an_event_follows_the_last_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::new(folder.path());
        board.open(0).unwrap();
        let (whole, file) = (bytes(&board).len() as u64, &mut board.file.as_mut().unwrap().1);
        // As where the disk was full.
        file.write_all(b"half of an event").and_then(|()| file.set_len(whole)).unwrap();
        board.add(1, &[("loss".into(), 1.0)]).unwrap();
        assert_eq!(events(&bytes(&board)).len(), 3);
    }

    /// Every write to this file finds the disk full.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_does_not_fit_is_told() {
        let full = File::options().append(true).open("/dev/full").unwrap();
        let mut board = TensorBoard { file: Some(("/dev/full".into(), full)), ..TensorBoard::new("") };
        assert!(board.add(1, &[("loss".into(), 1.0)]).unwrap_err().to_string().contains("/dev/full"));
    }
}
