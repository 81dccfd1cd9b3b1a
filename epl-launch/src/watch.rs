//! What ranks tell of themselves while a run goes on, for `epl-launch --watch`.
//!
//! ```text
//! process: Reporter ── every half second ──▶ FOLDER/worker-W     what its ranks do: step, speed, memory, the call they are in
//! launcher: read(FOLDER) ──▶ waits_for: who waits for whom ──▶ the screen
//! ```
//!
//! The folder is that of `EPL_LAUNCH_WATCH`; without it nothing is told. A thread tells it, so that a rank that hangs is seen, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::system::resident;

/// The variable with the folder.
const FOLDER: &str = "EPL_LAUNCH_WATCH";
/// How often it is told.
const INTERVAL: Duration = Duration::from_millis(500);

/// What a process tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: usize,
    /// When it told this, since 1970.
    pub told: Duration,
    /// Bytes of host memory that are its own now, where the system tells.
    pub memory: Option<u64>,
    /// Of each of its ranks.
    pub ranks: Vec<RankStatus>,
    /// Whether its ranks have ended.
    pub has_ended: bool,
}

/// What a rank does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its number in the world.
    pub rank: usize,
    /// Steps that are done.
    pub step: u64,
    /// Steps of the run, where they are known.
    pub steps: Option<u64>,
    /// What the loss is a mean over, tokens or rows of all ranks, in a second.
    pub speed: Option<f64>,
    /// Bytes that its thread has allocated, where that is counted.
    pub memory: Option<u64>,
    /// The call that it is in.
    pub call: Option<OpenCall>,
    /// By group, the number of its last call there that has gone out.
    pub calls: Vec<(Group, u64)>,
}

/// A group of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    /// Its name; groups of other ranks may have the same.
    pub name: String,
    /// Its ranks in the world.
    pub members: Vec<usize>,
}

/// A call that has gone out, and is not over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenCall {
    /// Where.
    pub group: Group,
    /// Its number in the group, from 1.
    pub sequence: u64,
    /// What it is, in words.
    pub words: String,
    /// For how long.
    pub since: Duration,
}

/// For whom each rank waits that is in a call: those of its group that have not come to it, as far as they tell anything. A rank
/// for which all have come is in the map, and waits for none.
///
/// ```
/// use epl_launch::watch::{Group, OpenCall, RankStatus, waits_for};
///
/// let group = Group { name: "data".into(), members: vec![0, 1] };
/// let call = OpenCall { group: group.clone(), sequence: 7, ..OpenCall::default() };
/// let waits = RankStatus { call: Some(call), calls: vec![(group.clone(), 7)], ..RankStatus::default() };
/// let late = RankStatus { rank: 1, calls: vec![(group, 6)], ..RankStatus::default() };
/// assert_eq!(waits_for(&[waits, late])[&0], [1]);
/// ```
pub fn waits_for(ranks: &[RankStatus]) -> BTreeMap<usize, Vec<usize>> {
    let arrived: BTreeMap<(usize, &Group), u64> =
        ranks.iter().flat_map(|of| of.calls.iter().map(move |(group, last)| ((of.rank, group), *last))).collect();
    let known: BTreeSet<usize> = ranks.iter().map(|of| of.rank).collect();
    let waits = |of: &RankStatus| {
        let OpenCall { group, sequence, .. } = of.call.as_ref()?;
        let has_come = |rank: &usize| arrived.get(&(*rank, group)).is_some_and(|last| last >= sequence);
        let others = group.members.iter().filter(|rank| **rank != of.rank && known.contains(rank));
        Some((of.rank, others.filter(|rank| !has_come(rank)).copied().collect()))
    };
    ranks.iter().filter_map(waits).collect()
}

/// Tells what the ranks of this process do, until it is dropped: then that they have ended.
#[derive(Debug)]
pub struct Reporter {
    /// Dropped first, which ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Begins where the environment asks for it; `ranks` says what they do. A folder that cannot be written ends no run: nothing is
    /// told then.
    pub fn from_environment(worker: usize, ranks: impl FnMut() -> Vec<RankStatus> + Send + 'static) -> Option<Self> {
        let folder = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty())?;
        Self::to_folder(PathBuf::from(folder), worker, ranks).ok()
    }

    /// Begins to tell it to a folder that is there. Where `ranks` panics, of none from then on.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn to_folder(
        folder: PathBuf,
        worker: usize,
        ranks: impl FnMut() -> Vec<RankStatus> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let tell = move || {
            let mut ranks = Some(ranks);
            loop {
                let has_ended = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                let told = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let known = ranks.as_mut().and_then(|ranks| catch_unwind(AssertUnwindSafe(ranks)).ok());
                if known.is_none() {
                    // Who panicked is asked no more, as it would say so each time; the process is not silent for that.
                    ranks = None;
                }
                let ranks = known.unwrap_or_default();
                let status = WorkerStatus { worker, told, memory: resident(), ranks, has_ended };
                // The next one may be written.
                let _ = write(&folder, &status);
                if has_ended {
                    return;
                }
            }
        };
        let thread = Builder::new().name("watch".into()).spawn(tell)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes what a worker tells, whole, in the place of what it told before.
fn write(folder: &Path, status: &WorkerStatus) -> io::Result<()> {
    let bytes = postcard::to_stdvec(status).map_err(io::Error::other)?;
    let (whole, part) =
        (folder.join(format!("worker-{}", status.worker)), folder.join(format!("part-{}", status.worker)));
    fs::write(&part, bytes)?;
    fs::rename(part, whole)
}

/// What workers have told to a folder, by their numbers; what cannot be read is left out.
pub fn read(folder: &Path) -> Vec<WorkerStatus> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_worker = files.filter(|file| file.file_name().to_string_lossy().starts_with("worker-"));
    let status = |file: fs::DirEntry| postcard::from_bytes::<WorkerStatus>(&fs::read(file.path()).ok()?).ok();
    let mut all: Vec<WorkerStatus> = of_worker.filter_map(status).collect();
    all.sort_by_key(|status| status.worker);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, members: &[usize]) -> Group {
        Group { name: name.into(), members: members.to_vec() }
    }

    /// A rank that has made so many calls in each of these groups, and is in the last one of the first of them.
    fn rank(rank: usize, is_in: bool, calls: &[(&Group, u64)]) -> RankStatus {
        let open = |(group, sequence): &(&Group, u64)| OpenCall {
            group: (*group).clone(),
            sequence: *sequence,
            ..OpenCall::default()
        };
        let call = calls.first().filter(|_| is_in).map(open);
        let calls = calls.iter().map(|(group, last)| ((*group).clone(), *last)).collect();
        RankStatus { rank, call, calls, ..RankStatus::default() }
    }

    #[test]
    fn who_has_not_come_is_waited_for() {
        let all = group("world", &[0, 1, 2]);
        let waits =
            waits_for(&[rank(0, true, &[(&all, 5)]), rank(1, true, &[(&all, 5)]), rank(2, false, &[(&all, 4)])]);
        assert_eq!(waits, BTreeMap::from([(0, vec![2]), (1, vec![2])]));
        // Who has made no call of the group, too; and nobody, where all have come.
        let waits = waits_for(&[rank(0, true, &[(&all, 1)]), rank(1, false, &[]), rank(2, true, &[(&all, 1)])]);
        assert_eq!(waits, BTreeMap::from([(0, vec![1]), (2, vec![1])]));
        let waits = waits_for(&[0, 1, 2].map(|number| rank(number, true, &[(&all, 3)])));
        assert_eq!(waits, BTreeMap::from([(0, vec![]), (1, vec![]), (2, vec![])]));
    }

    #[test]
    fn groups_of_one_name_are_told_apart_and_who_tells_nothing_is_not_blamed() {
        let (first, second, all) = (group("data", &[0, 1]), group("data", &[2, 3]), group("world", &[0, 1, 2, 3]));
        // Rank 1 is in a call of all, which comes before its seventh of the first group; rank 3 says nothing.
        let one = rank(1, true, &[(&all, 2), (&first, 6)]);
        let waits = waits_for(&[rank(0, true, &[(&first, 7)]), one, rank(2, true, &[(&second, 9)])]);
        assert_eq!(waits, BTreeMap::from([(0, vec![1]), (1, vec![0, 2]), (2, vec![])]));
    }

    #[test]
    fn what_is_told_is_read_and_the_end_is_told() {
        let folder = std::env::temp_dir().join(format!("epl-watch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("worker-9"), b"half").unwrap();
        let status =
            || vec![RankStatus { rank: 3, step: 4, steps: Some(9), speed: Some(2.5), ..RankStatus::default() }];
        drop(Reporter::to_folder(folder.clone(), 2, status).unwrap());
        let read = read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let [told] = &read[..] else { panic!("{read:?}") };
        assert_eq!((told.worker, &told.ranks, told.has_ended), (2, &status(), true));
        assert!(!told.told.is_zero() && (told.memory.is_some() || !cfg!(target_os = "linux")));
    }

    #[test]
    fn a_process_whose_ranks_cannot_be_told_is_there() {
        let folder = std::env::temp_dir().join(format!("epl-watch-panics-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        drop(Reporter::to_folder(folder.clone(), 1, || panic!("expected by a test")).unwrap());
        let read = read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let [told] = &read[..] else { panic!("{read:?}") };
        assert!((told.worker, told.has_ended) == (1, true) && told.ranks.is_empty(), "{told:?}");
    }
}
