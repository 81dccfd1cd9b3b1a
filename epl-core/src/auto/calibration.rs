//! What was measured, in a file: a later run of the same program on the same machine reads it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use epl_comm::{ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use super::together::all;
use crate::checkpoint::durable::Unpublished;
use crate::cost::{MeasuredCalls, Rates, SegmentTime};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::memory::Activations;
use crate::plan::SplitFinding;
use crate::stable_hash::stable_hash;
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
    /// Which segments can run in slices, by what they are and what they were run on.
    #[serde(default)]
    findings: BTreeMap<String, Vec<SplitFinding>>,
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
        Self::read_on(epl, &machine(epl))
    }

    /// The same, where this rank's machine is called so.
    fn read_on(epl: &Epl, machine: &str) -> Result<Self> {
        let file = Some(&epl.config().auto.calibration).filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(file) = file else { return Ok(Self::default()) };
        let machines = machines(epl.world(), machine)?;
        let of = shared(epl.world(), || program(epl, machines))?;
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

    /// What was found of so many segments.
    pub fn findings(&self, key: &str, count: usize) -> Option<&[SplitFinding]> {
        self.known.findings.get(key).filter(|known| known.len() == count).map(Vec::as_slice)
    }

    /// Remembers what was found, as all ranks have agreed on it.
    pub fn remember_findings(&mut self, key: String, found: &[SplitFinding]) {
        self.known.findings.insert(key, found.to_vec());
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

    /// What is known of an optimizer, or what is measured of it: all ranks measure, or none does. Collective.
    pub fn rates(
        &mut self,
        world: &ProcessGroup,
        optimizer: String,
        measure: impl FnOnce() -> Result<Rates>,
    ) -> Result<Rates> {
        let known = self.known.rates.get(&optimizer).copied();
        let is_known = all(world, known.is_some())?;
        if let Some(known) = known.filter(|_| is_known) {
            return Ok(known);
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

/// A text of the first rank, on all; in a world that is only thought of each rank has its own, as it is told nothing. Collective.
///
/// # Errors
///
/// What the first rank says, on all.
fn shared(world: &ProcessGroup, text: impl FnOnce() -> Result<String>) -> Result<String> {
    let (is_error, own) = match (world.rank() == 0 || world.is_dry()).then(text) {
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

/// What this rank's machine is called: its host, processor and device.
fn machine(epl: &Epl) -> String {
    format!(
        "{} {} {} {:?}",
        epl_comm::host_name().unwrap_or_default(),
        processor(),
        std::thread::available_parallelism().map_or(1, usize::from),
        epl.place().device(),
    )
}

/// A number that another machine of any rank changes. Collective.
fn machines(world: &ProcessGroup, own: &str) -> Result<u64> {
    let own = stable_hash(own);
    let mut told = vec![0.0; 2 * world.size()];
    // Each half of a hash is a whole number that f64 has.
    told[2 * world.rank()..][..2].copy_from_slice(&[(own >> 32) as f64, (own & 0xffff_ffff) as f64]);
    Ok(stable_hash(&format!("{:?}", world.all_reduce_values(&told, ReduceOp::Max)?)))
}

/// The arguments of a program that may change what is measured: not those that say something of a search, such as `auto.measure=3`,
/// `--auto` or `--set auto.measure=3`.
fn arguments(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for argument in all {
        let said = argument.trim_start_matches('-');
        if said != "auto" && !said.starts_with("auto.") {
            kept.push(argument);
        } else if kept.last().is_some_and(|before| before == "--set") {
            kept.pop();
        }
    }
    kept
}

/// Variables of the environment by which the same program takes another time.
fn environment(all: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    // Where ranks of NCCL meet is another place in every run.
    let matters = |name: &str| {
        ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"].contains(&name) || name.starts_with("NCCL_") && name != "NCCL_COMM_ID"
    };
    let mut kept: Vec<(String, String)> = all.filter(|(name, _)| matters(name)).collect();
    kept.sort();
    kept
}

/// What measures are of, beside a model: another program, machine, transport, other ranks or another device take another time.
fn program(epl: &Epl, machines: u64) -> Result<String> {
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
        "{} of {bytes} bytes, built at {time}, with {:?} and {:?}; on {}, {}, {} cores, of all ranks {machines:016x}; workers {:?} on \
         hosts {:?} over {}, {:?}, {} calls at once{}",
        env!("CARGO_PKG_VERSION"),
        arguments(std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned())),
        environment(
            std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()))
        ),
        epl_comm::host_name().unwrap_or_default(),
        processor(),
        std::thread::available_parallelism().map_or(1, usize::from),
        epl.cluster().workers_of_ranks(),
        epl.cluster().hosts_of_ranks(),
        epl.config().communication.transport,
        epl.place().device(),
        epl.world().lanes(),
        if epl.world().is_dry() { ", only thought of" } else { "" },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;
    use crate::launch;

    #[test]
    fn what_was_measured_on_equal_machines_is_not_used_beside_a_slow_one() {
        let folder = tempfile::tempdir().unwrap();
        let keep = format!("auto.calibration={}", folder.path().join("costs.json").display());
        let said = ["cluster.ranks=2".to_string(), "auto.auto_parallel=true".to_string(), keep];
        let is_known = launch(&Layers::new().command_line(said).unwrap().resolve().unwrap(), |epl| {
            let read = |second| Calibration::read_on(&epl, if epl.world().rank() == 1 { second } else { "fast" });
            let mut equal = read("fast")?;
            equal.calls(|| Ok(Vec::new()))?;
            equal.write(epl.world())?;
            let is_known = |mut known: Calibration| {
                let mut is_known = true;
                known.calls(|| {
                    is_known = false;
                    Ok(Vec::new())
                })?;
                Ok::<_, Error>(is_known)
            };
            Ok([is_known(read("fast")?)?, is_known(read("slow")?)?])
        });
        assert_eq!(is_known.unwrap(), [[true, false]; 2]);
    }

    #[test]
    fn what_says_something_of_a_search_alone_is_left_out() {
        let of = |words: &str| arguments(words.split(' ').map(str::to_string)).join(" ");
        assert_eq!(
            of("--auto --rows 4 auto.measure=3 --set auto.calibration=costs.json --set zero.level=v1"),
            "--rows 4 --set zero.level=v1"
        );
        assert_eq!(of("--model autoencoder --data /data/automobiles"), "--model autoencoder --data /data/automobiles");
        let of =
            |all: &[(&str, &str)]| environment(all.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        let kept = of(&[("RAYON_NUM_THREADS", "2"), ("HOME", "/root"), ("NCCL_COMM_ID", "a:1"), ("NCCL_ALGO", "Ring")]);
        assert_eq!(kept.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["NCCL_ALGO", "RAYON_NUM_THREADS"]);
    }
}
