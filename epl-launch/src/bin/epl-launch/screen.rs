//! `--watch`: one screen for all ranks, on the first machine; on another one for those of that.
//!
//! ```text
//! worker  rank     step  tokens/s   memory  what it does
//!      0     0  120/800      3120   1.2 GB  runs
//!            1  120/800      3120           waits 3.1 s for rank 3 in all_reduce(sum) of f32 [1024], call 12 of group `data`
//!      1     2  120/800      3120   1.2 GB  waits 3.1 s for rank 3 in all_reduce(sum) of f32 [1024], call 7 of group `world`
//!            3  119/800      3120           runs
//! ```
//!
//! A process tells of all its ranks, so that all of them are silent where it is.
//!
//! On a terminal it stands below the workers' lines and is drawn anew in its place; elsewhere it is told line by line, now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, stdout};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epl_launch::watch::{OpenCall, RankStatus, WorkerStatus, read, waits_for};
use tempfile::TempDir;
use unicode_width::UnicodeWidthChar;

use crate::all_machines::AllMachines;
use crate::socket::Merged;
use crate::system::{own_folder, terminal_size};

/// How often it is looked at and drawn, and how often told where there is no terminal.
const DRAWN: Duration = Duration::from_millis(500);
const TOLD: Duration = Duration::from_secs(5);
/// Who has told nothing for longer is silent: its process is stopped, or gone.
const SILENT: Duration = Duration::from_secs(3);
/// A call that takes no longer is no wait worth a word.
const SHORT: Duration = Duration::from_secs(1);
/// For how long the last screen is waited for: a terminal may take nothing.
const LAST: Duration = Duration::from_secs(5);

/// What is to be seen at a moment.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The first worker that is seen, how many are, and the ranks of each.
    pub first: usize,
    pub workers: usize,
    pub local_ranks: usize,
    /// What workers have told.
    pub statuses: Vec<WorkerStatus>,
    /// Since 1970.
    pub now: Duration,
}

/// What is shown of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    worker: usize,
    rank: usize,
    is_first: bool,
    step: String,
    speed: String,
    memory: String,
    state: String,
    /// Others wait for it, or it is silent.
    holds_up: bool,
}

impl View {
    /// All ranks, by their numbers.
    pub fn rows(&self) -> Vec<Row> {
        let ranks: Vec<RankStatus> = self.statuses.iter().flat_map(|status| status.ranks.clone()).collect();
        let waits = waits_for(&ranks);
        let awaited = self.awaited(&waits);
        let workers = self.first..self.first + self.workers;
        workers.flat_map(|worker| self.of_worker(worker, &waits, &awaited)).collect()
    }

    /// The ranks for which others are shown to wait.
    fn awaited(&self, waits: &BTreeMap<usize, Vec<usize>>) -> BTreeSet<usize> {
        let telling = self.statuses.iter().filter(|status| !status.has_ended && !self.is_silent(status));
        let ranks = telling.flat_map(|status| status.ranks.iter().map(move |rank| (status, rank)));
        let waiting = ranks.filter(|(status, rank)| self.in_call(status, rank).is_some());
        waiting.filter_map(|(_, rank)| waits.get(&rank.rank)).flatten().copied().collect()
    }

    fn age(&self, status: &WorkerStatus) -> Duration {
        self.now.saturating_sub(status.told)
    }

    fn is_silent(&self, status: &WorkerStatus) -> bool {
        !status.has_ended && self.age(status) > SILENT
    }

    /// The call that a rank is in, if for so long that it is worth a word, and for how long.
    fn in_call<'a>(&self, status: &WorkerStatus, rank: &'a RankStatus) -> Option<(&'a OpenCall, Duration)> {
        let call = rank.call.as_ref()?;
        let time = call.since.saturating_add(self.age(status));
        (time >= SHORT).then_some((call, time))
    }

    fn of_worker(&self, worker: usize, waits: &BTreeMap<usize, Vec<usize>>, awaited: &BTreeSet<usize>) -> Vec<Row> {
        let status = self.statuses.iter().find(|status| status.worker == worker);
        let row = |local: usize| {
            let rank = worker * self.local_ranks + local;
            let holds_up = awaited.contains(&rank) || status.is_some_and(|status| self.is_silent(status));
            let own = status.and_then(|status| Some((status, status.ranks.iter().find(|own| own.rank == rank)?)));
            let (worker_memory, is_first) = (status.and_then(|status| status.memory), local == 0);
            let Some((status, own)) = own else {
                let (none, memory) = (String::new(), worker_memory.filter(|_| is_first).map_or(String::new(), bytes));
                let state =
                    status.filter(|status| status.has_ended).map_or("says nothing yet", |_| "ended").to_string();
                return Row { worker, rank, is_first, step: none.clone(), speed: none, memory, state, holds_up };
            };
            Row {
                worker,
                rank,
                is_first,
                step: own.steps.map_or(own.step.to_string(), |steps| format!("{}/{steps}", own.step)),
                speed: own.speed.map_or(String::new(), |speed| format!("{speed:.0}")),
                memory: own.memory.or(worker_memory.filter(|_| is_first)).map_or(String::new(), bytes),
                state: self.state(status, own, waits),
                holds_up,
            }
        };
        (0..self.local_ranks).map(row).collect()
    }

    fn state(&self, status: &WorkerStatus, rank: &RankStatus, waits: &BTreeMap<usize, Vec<usize>>) -> String {
        if status.has_ended {
            return "ended".to_string();
        }
        if self.is_silent(status) {
            return format!("silent for {} s", self.age(status).as_secs());
        }
        let Some((call, time)) = self.in_call(status, rank) else { return "runs".to_string() };
        let seconds = time.as_secs_f64();
        match waits.get(&rank.rank).map(Vec::as_slice) {
            Some(others @ [_, ..]) => format!("waits {seconds:.1} s for {} in {}", named(others), call.words),
            _ => format!("for {seconds:.1} s in {}", call.words),
        }
    }

    /// The screen, of lines of no more columns than `width`, and of fewer than `height`, from 4 on: below it stands the cursor.
    pub fn table(&self, [width, height]: [usize; 2]) -> Vec<String> {
        let rows = self.rows();
        let long = |of: fn(&Row) -> &String, head: &str| {
            rows.iter().map(|row| of(row).chars().count()).chain([head.len()]).max().unwrap_or(0)
        };
        let [step, speed, memory] =
            [long(|row| &row.step, "step"), long(|row| &row.speed, "tokens/s"), long(|row| &row.memory, "memory")];
        let line = |cells: [&str; 6]| {
            let [worker, rank, a, b, c, state] = cells;
            cut(&format!("{worker:>6}  {rank:>4}  {a:>step$}  {b:>speed$}  {c:>memory$}  {state}"), width)
        };
        let head = line(["worker", "rank", "step", "tokens/s", "memory", "what it does"]);
        // Those that hold up others are not to be below the edge.
        let mut shown: Vec<&Row> = rows.iter().collect();
        let most = height.saturating_sub(3).max(1);
        let left_out = shown.len().saturating_sub(most);
        if left_out > 0 {
            shown.sort_by_key(|row| (!row.holds_up, row.state == "runs", row.rank));
            shown.truncate(most);
            shown.sort_by_key(|row| row.rank);
        }
        let row = |row: &&Row| {
            let worker = if row.is_first || left_out > 0 { row.worker.to_string() } else { String::new() };
            line([&worker, &row.rank.to_string(), &row.step, &row.speed, &row.memory, &row.state])
        };
        let more = (left_out > 0).then(|| cut(&format!("and {left_out} more ranks"), width));
        [head].into_iter().chain(shown.iter().map(row)).chain(more).collect()
    }

    /// A line for each rank.
    pub fn lines(&self) -> Vec<String> {
        let line = |row: Row| {
            let parts = [
                (!row.step.is_empty()).then(|| format!("step {}", row.step)),
                (!row.speed.is_empty()).then(|| format!("{} tokens/s", row.speed)),
                (!row.memory.is_empty()).then_some(row.memory),
                Some(row.state),
            ];
            format!("rank {}: {}", row.rank, parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
        };
        self.rows().into_iter().map(line).collect()
    }
}

/// As much of a line as so many columns of a terminal take, without what moves its cursor.
fn cut(line: &str, columns: usize) -> String {
    let known = line.chars().filter_map(|letter| Some((letter, letter.width()?)));
    let ends = known.scan(0, |end, (letter, width)| {
        *end += width;
        Some((letter, *end))
    });
    ends.take_while(|(_, end)| *end <= columns).map(|(letter, _)| letter).collect()
}

/// `rank 3`, `ranks 1, 3`, and of many the first ones.
fn named(ranks: &[usize]) -> String {
    const NAMED: usize = 4;
    let first: Vec<String> = ranks.iter().take(NAMED).map(usize::to_string).collect();
    let many = if ranks.len() > 1 { "ranks" } else { "rank" };
    let more = ranks.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{many} {}{more}", first.join(", "))
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Shows the ranks of an attempt until it is dropped, and once more then.
pub(crate) struct Screen {
    /// Where they tell what they do; nobody else may read it.
    folder: TempDir,
    stop: Option<Sender<()>>,
    /// Closed by the thread, at its end.
    ended: Receiver<()>,
    merged: Merged,
}

impl Screen {
    /// Of workers with so many ranks each.
    ///
    /// # Errors
    ///
    /// When there is no room for temporary files.
    pub fn start(mut machines: AllMachines, local_ranks: usize, merged: &Merged) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (is_alive, ended) = mpsc::channel();
        let temporary = own_folder()?;
        let (folder, shown, merged) = (temporary.path().to_path_buf(), merged.clone(), merged.clone());
        thread::spawn(move || {
            let _is_alive: Sender<()> = is_alive;
            let (is_terminal, [first, workers], mut told) =
                (stdout().is_terminal(), machines.workers(), Instant::now());
            loop {
                let is_over = stopped.recv_timeout(DRAWN) != Err(RecvTimeoutError::Timeout);
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let statuses = machines.with_others(read(&folder), now);
                let view = View { first, workers, local_ranks, statuses, now };
                match (is_terminal, is_over) {
                    (true, false) => {
                        let size = size();
                        merged.draw(view.table(size), size[0]);
                    }
                    // What was last seen stays, above what comes.
                    (true, true) if merged.draw(Vec::new(), 0) => {
                        view.table(size()).iter().for_each(|line| merged.line(false, "", line.as_bytes()));
                    }
                    (false, is_over) if is_over || told.elapsed() >= TOLD => {
                        told = Instant::now();
                        view.lines().iter().for_each(|line| merged.say(line));
                    }
                    _ => {}
                }
                if is_over {
                    return;
                }
            }
        });
        Ok(Self { folder: temporary, stop: Some(stop), ended, merged: shown })
    }

    /// Where workers tell what they do.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.stop = None;
        // One that is held up by its terminal ends when that goes on, or with this process.
        if self.ended.recv_timeout(LAST) == Err(RecvTimeoutError::Disconnected) {
            // Drawn no more, even if it ended by a panic.
            self.merged.leave_screen();
        }
    }
}

/// Columns and lines of the terminal.
fn size() -> [usize; 2] {
    terminal_size().filter(|size| !size.contains(&0)).unwrap_or([80, 24])
}

#[cfg(test)]
mod tests {
    use epl_launch::watch::Group;

    use super::*;

    /// A rank that is in its last call of a group of all four, or is not.
    fn rank(rank: usize, step: u64, calls: u64, since: Option<u64>) -> RankStatus {
        let group = Group { name: "world".into(), members: vec![0, 1, 2, 3] };
        let call = since.map(|since| OpenCall {
            group: group.clone(),
            sequence: calls,
            words: format!("barrier, call {calls} of group `world`"),
            since: Duration::from_secs(since),
        });
        let calls = vec![(group, calls)];
        RankStatus { rank, step, steps: Some(800), speed: Some(3120.4), memory: None, call, calls }
    }

    fn worker(worker: usize, ranks: Vec<RankStatus>) -> WorkerStatus {
        let memory = Some(1_250_000_000);
        WorkerStatus { worker, told: Duration::from_secs(1000), memory, ranks, has_ended: false }
    }

    fn view(workers: usize, statuses: Vec<WorkerStatus>) -> View {
        View { first: 0, workers, local_ranks: 2, statuses, now: Duration::from_secs(1000) }
    }

    const WIDE: [usize; 2] = [200, 50];

    #[test]
    fn who_waits_for_whom_is_shown() {
        let ranks =
            [rank(0, 120, 12, Some(3)), rank(1, 120, 12, Some(0)), rank(2, 120, 12, Some(5)), rank(3, 119, 11, None)];
        let [a, b, c, d] = ranks;
        let view = view(2, vec![worker(0, vec![a, b]), worker(1, vec![c, d])]);
        let expected = [
            "worker  rank     step  tokens/s  memory  what it does",
            "     0     0  120/800      3120  1.2 GB  waits 3.0 s for rank 3 in barrier, call 12 of group `world`",
            "           1  120/800      3120          runs",
            "     1     2  120/800      3120  1.2 GB  waits 5.0 s for rank 3 in barrier, call 12 of group `world`",
            "           3  119/800      3120          runs",
        ];
        assert_eq!(view.table(WIDE), expected);
        assert_eq!(view.lines()[1], "rank 1: step 120/800, 3120 tokens/s, runs");
        assert_eq!(view.lines()[0], format!("rank 0: step 120/800, 3120 tokens/s, 1.2 GB, {}", &expected[1][41..]));
    }

    #[test]
    fn who_is_not_there_is_silent_or_has_ended_is_shown_as_that() {
        let mut ended = worker(0, vec![rank(0, 800, 12, None), rank(1, 800, 12, Some(9))]);
        ended.has_ended = true;
        let mut silent = worker(2, vec![rank(4, 7, 12, Some(9))]);
        silent.told = Duration::from_secs(995);
        // One rank of it has not come yet, and a worker tells nothing at all.
        let states: Vec<String> = view(3, vec![ended, silent]).rows().into_iter().map(|row| row.state).collect();
        assert_eq!(
            states,
            ["ended", "ended", "says nothing yet", "says nothing yet", "silent for 5 s", "says nothing yet"]
        );
    }

    #[test]
    fn a_call_to_which_all_have_come_waits_for_nobody() {
        let view = view(1, vec![worker(0, vec![rank(0, 1, 3, Some(2)), rank(1, 1, 3, Some(2))])]);
        assert_eq!(view.rows()[0].state, "for 2.0 s in barrier, call 3 of group `world`");
    }

    #[test]
    fn what_has_no_room_is_cut_and_those_that_run_are_left_out_first() {
        let ranks = |first: usize, since| vec![rank(first, 1, 2, None), rank(first + 1, 1, 2, since)];
        let view = view(3, vec![worker(0, ranks(0, None)), worker(1, ranks(2, Some(4))), worker(2, ranks(4, None))]);
        let table = view.table([40, 5]);
        assert!(table.len() == 4 && (4..12).all(|height| view.table([40, height]).len() < height), "{table:?}");
        assert!(table.iter().all(|line| line.chars().count() <= 40), "{table:?}");
        assert!(table[1].starts_with("     0     0") && table[2].starts_with("     1     3"), "{table:?}");
        assert_eq!(table[3], "and 4 more ranks");
    }

    #[test]
    fn a_line_has_no_more_columns_than_there_are() {
        assert_eq!([cut("abc", 2), cut("数据并行", 5), cut("a\tb\u{1b}c", 9)], ["ab", "数据", "abc"]);
        let mut rank = rank(0, 1, 2, Some(4));
        rank.call.as_mut().expect("it is in one").words = "数".repeat(80);
        let table = view(1, vec![worker(0, vec![rank])]).table([60, 9]);
        let columns = |line: &String| line.chars().filter_map(UnicodeWidthChar::width).sum::<usize>();
        assert!(table.iter().all(|line| columns(line) <= 60) && columns(&table[1]) > 58, "{table:?}");
    }

    #[test]
    fn who_holds_up_others_is_never_left_out() {
        let waits = |number: usize| rank(number, 120, 12, Some(4));
        let view =
            view(2, vec![worker(0, vec![waits(0), waits(1)]), worker(1, vec![waits(2), rank(3, 119, 11, None)])]);
        let table = view.table([200, 5]);
        assert!(table.len() == 4 && table[1].contains("waits 4.0 s for rank 3 in "), "{table:?}");
        assert!(table[2].starts_with("     1     3") && table[2].ends_with("  runs"), "{table:?}");
        // A process that is silent, too, before those that wait.
        let mut silent = worker(1, vec![rank(2, 120, 12, None), rank(3, 120, 12, None)]);
        silent.told = Duration::from_secs(990);
        let table = View { statuses: vec![worker(0, vec![waits(0), waits(1)]), silent], ..view }.table([200, 5]);
        assert!(table[1..3].iter().all(|line| line.ends_with("  silent for 10 s")), "{table:?}");
    }

    #[test]
    fn a_call_of_all_time_is_shown() {
        let mut rank = rank(0, 1, 2, Some(0));
        rank.call.as_mut().expect("it is in one").since = Duration::MAX;
        let mut of_late = worker(0, vec![rank]);
        of_late.told = Duration::from_secs(998);
        assert!(view(1, vec![of_late]).rows()[0].state.starts_with("for 18446744073709"));
    }

    #[test]
    fn many_ranks_are_named_by_the_first() {
        assert_eq!(
            [named(&[3]), named(&[1, 3]), named(&[1, 2, 3, 4, 5, 6])],
            ["rank 3", "ranks 1, 3", "ranks 1, 2, 3, 4 and 2 more"]
        );
        assert_eq!([bytes(5_400_000), bytes(12_340_000_000)], ["5 MB", "12.3 GB"]);
    }
}
