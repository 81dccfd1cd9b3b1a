//! What was measured, in a file: a later run of the same program on the same machine reads it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use epl_comm::{ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::checkpoint::durable::Unpublished;
use crate::cost::{MeasuredCalls, Rates, SegmentTime};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::memory::Activations;
use crate::system::processor;

/// What is known of this program on this machine.
#[derive(Debug, Default)]
pub(super) struct Calibration {
    /// The file of `auto.calibration`, if one is given.
    file: Option<PathBuf>,
    /// Of which program, ranks and device.
    of: String,
    known: Known,
}

/// What is known of one program in one world.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// Segments, by what they are.
    segments: BTreeMap<String, MeasuredSegments>,
    /// Collectives, once they were measured.
    calls: Option<Vec<MeasuredCalls>>,
    /// How fast devices are beside each other, where segments were measured.
    #[serde(default)]
    speeds: Option<Vec<f64>>,
    /// By optimizer.
    rates: BTreeMap<String, Rates>,
}

/// The file: by program, machine and world.
type KnownOf = BTreeMap<String, Known>;

/// What the segments of a model take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeasuredSegments {
    /// By segment.
    pub times: Vec<SegmentTime>,
    /// None where they are not counted.
    pub activations: Option<Activations>,
}

impl Calibration {
    /// Reads the file of `auto.calibration`, if it is there. Collective: all know what the first rank reads.
    ///
    /// # Errors
    ///
    /// When the file is there and cannot be read, or holds something else; when there is no such folder.
    pub fn read(epl: &Epl) -> Result<Self> {
        let file = Some(&epl.config().auto.calibration).filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(file) = file else { return Ok(Self::default()) };
        let of = shared(epl.world(), || program(epl))?;
        let text = shared(epl.world(), || {
            let all = read(&file)?;
            // Before anything is measured that could not be kept.
            Unpublished::write(&file, |_| Ok(()))?;
            json(&all.get(&of).cloned().unwrap_or_default())
        })?;
        let known =
            serde_json::from_str(&text).map_err(|error| Error::file(&file, Error::invalid(error.to_string())))?;
        Ok(Self { file: Some(file), of, known })
    }

    /// Whether a file is read and written.
    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// What is known of so many segments.
    pub fn segments(&self, key: &str, count: usize) -> Option<&MeasuredSegments> {
        let is_whole = |known: &&MeasuredSegments| {
            known.times.len() == count && known.activations.as_ref().is_none_or(|known| known.segments.len() == count)
        };
        self.known.segments.get(key).filter(is_whole)
    }

    /// Remembers segments, as all ranks have agreed on them.
    pub fn remember(&mut self, key: String, measured: &MeasuredSegments) {
        self.known.segments.insert(key, measured.clone());
    }

    /// What is known of collectives, or what is measured of them.
    pub fn calls(&mut self, measure: impl FnOnce() -> Result<Vec<MeasuredCalls>>) -> Result<Vec<MeasuredCalls>> {
        if self.known.calls.is_none() {
            self.known.calls = Some(measure()?);
        }
        Ok(self.known.calls.clone().unwrap_or_default())
    }

    /// How fast devices are: as measured now, or as is known.
    pub fn speeds(&mut self, measured: Option<Vec<f64>>) -> Option<Vec<f64>> {
        self.known.speeds = measured.or_else(|| self.known.speeds.take());
        self.known.speeds.clone()
    }

    /// What is known of an optimizer, or what is measured of it.
    pub fn rates(&mut self, optimizer: String, measure: impl FnOnce() -> Result<Rates>) -> Result<Rates> {
        if let Some(known) = self.known.rates.get(&optimizer) {
            return Ok(*known);
        }
        let measured = measure()?;
        self.known.rates.insert(optimizer, measured);
        Ok(measured)
    }

    /// Writes what is known beside what the file has of other programs and worlds, by the first rank. Collective.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(self, world: &ProcessGroup) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        let write = || {
            // Another run may have written meanwhile.
            let mut all = read(&file)?;
            if all.get(&self.of) != Some(&self.known) {
                all.insert(self.of, self.known);
                let text = json(&all)?;
                Unpublished::write(&file, |next| next(text.as_bytes()))?.publish()?;
            }
            Ok(String::new())
        };
        shared(world, write).map(drop)
    }
}

/// What a file has; nothing, where there is none.
fn read(file: &Path) -> Result<KnownOf> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(KnownOf::new()),
        read => read.map_err(|error| Error::file(file, error))?,
    };
    serde_json::from_str(&text).map_err(|error| {
        let told = format!("no measures that auto.calibration wrote: {error}; name another file, or remove it");
        Error::file(file, Error::invalid(told))
    })
}

fn json(known: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(known).map_err(|error| Error::invalid(error.to_string()))
}

/// A text of the first rank, on all. Collective.
///
/// # Errors
///
/// What the first rank says, on all.
fn shared(world: &ProcessGroup, text: impl FnOnce() -> Result<String>) -> Result<String> {
    let (is_error, own) = match (world.rank() == 0).then(text) {
        Some(Ok(text)) => (0.0, text),
        Some(Err(error)) => (1.0, error.to_string()),
        None => (0.0, String::new()),
    };
    let told = world.all_reduce_values(&[own.len() as f64, is_error], ReduceOp::Max)?;
    let mut bytes: Vec<f64> = own.bytes().map(f64::from).collect();
    bytes.resize(told[0] as usize, 0.0);
    let bytes = world.all_reduce_values(&bytes, ReduceOp::Max)?;
    let text = String::from_utf8(bytes.into_iter().map(|byte| byte as u8).collect());
    let text = text.map_err(|error| Error::invalid(error.to_string()))?;
    if told[1] > 0.0 { Err(Error::invalid(text)) } else { Ok(text) }
}

/// What measures are of, beside a model: another program, machine, transport, other ranks or another device take another time.
fn program(epl: &Epl) -> Result<String> {
    let built = std::env::current_exe().and_then(std::fs::metadata).and_then(|file| {
        let time = file.modified()?.duration_since(UNIX_EPOCH).map_err(std::io::Error::other)?;
        Ok((file.len(), time.as_secs()))
    });
    let (bytes, time) = built.map_err(|error| {
        Error::invalid(format!(
            "auto.calibration keeps measures by program, and this one's file cannot be looked at: {error}; leave the option out"
        ))
    })?;
    Ok(format!(
        "{} of {bytes} bytes, built at {time}, with {:?}; on {}, {}, {} cores; workers {:?} on hosts {:?} over {}, {:?}, {} calls at once",
        env!("CARGO_PKG_VERSION"),
        std::env::args().skip(1).filter(|argument| !argument.contains("auto")).collect::<Vec<_>>(),
        epl_comm::host_name().unwrap_or_default(),
        processor(),
        std::thread::available_parallelism().map_or(1, usize::from),
        epl.cluster().workers_of_ranks(),
        epl.cluster().hosts_of_ranks(),
        epl.config().communication.transport,
        epl.place().device(),
        epl.world().lanes(),
    ))
}
