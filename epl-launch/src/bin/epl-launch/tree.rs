//! The processes below this one.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::system::{Change, Signal, next_change, processes, send, stat};

const PAUSE: Duration = Duration::from_millis(5);
/// How long killed processes may take to go. One of another user, or one that waits for a device, may never.
const KILLED: Duration = Duration::from_secs(5);

/// A process, as the system shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub id: u32,
    pub parent: u32,
    /// The process group, by the number of its first process.
    pub group: u32,
    pub state: char,
    pub name: String,
}

impl Process {
    /// From the text of its `stat`; the name may have any characters, and any bytes: the system cuts it after 15.
    fn parse(stat: &[u8]) -> Option<Self> {
        let stat = String::from_utf8_lossy(stat);
        let (id, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        Some(Self { id: id.parse().ok()?, parent: number()?, group: number()?, state, name: name.into() })
    }

    /// The process of this number; none where there is none.
    pub fn of(id: u32) -> Option<Self> {
        Self::parse(&stat(id)?)
    }

    /// Whether it is stopped, by a signal and not by a debugger.
    pub fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// All processes below this one that have not ended.
pub(crate) fn descendants() -> Vec<Process> {
    let all: Vec<Process> = processes().filter_map(Process::of).collect();
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    all.into_iter().for_each(|process| children.entry(process.parent).or_default().push(process));
    let (mut found, mut open) = (Vec::new(), vec![std::process::id()]);
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            open.push(child.id);
            found.push(child);
        }
    }
    found.retain(|process| !process.has_ended());
    found
}

/// Ends all processes below this one: they are asked, and killed when they are still there after `grace`. What became of
/// children that ended meanwhile is given to `seen`.
pub(crate) fn end_all(grace: Duration, mut seen: impl FnMut(u32, Change)) {
    let mut reap = || {
        while let Some((child, change)) = next_change() {
            seen(child, change);
        }
    };
    reap();
    for process in descendants() {
        send(process.id, Signal::TERM);
        // One that is stopped hears it only when it goes on.
        send(process.id, Signal::CONT);
    }
    let begin = Instant::now();
    loop {
        reap();
        let left = descendants();
        if left.is_empty() {
            return;
        }
        if begin.elapsed() >= grace.saturating_add(KILLED) {
            let named = |process: &Process| format!("{} ({})", process.id, process.name);
            let named: Vec<String> = left.iter().map(named).collect();
            eprintln!("epl-launch: cannot be killed, and are left: {}", named.join(", "));
            return;
        }
        if begin.elapsed() >= grace {
            left.iter().for_each(|process| send(process.id, Signal::KILL));
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let read = Process::parse(b"12 (a) R (b) T 7 11 12 0 -1").map(|process| (process.is_stopped(), process));
        let process = Process { id: 12, parent: 7, group: 11, state: 'T', name: "a) R (b".into() };
        assert_eq!(read, Some((true, process)));
        assert_eq!(Process::parse(b"12 (a"), None);
    }

    /// The system cuts a name after 15 bytes, wherever a character ends.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_seen_whose_name_is_no_text() {
        let folder = tempfile::tempdir().expect("a folder for a moment");
        let program = folder.path().join("entrainer_mode\u{e9}");
        std::fs::copy("/bin/sleep", &program).expect("there is a program that sleeps");
        let mut child = std::process::Command::new(&program).arg("1000").spawn().expect("it can be started");
        // Until it runs, it has the name of this one.
        let cut = |process: &Process| process.id == child.id() && process.name.starts_with("entrainer_mode");
        let begin = Instant::now();
        let mut seen = None;
        while seen.is_none() && begin.elapsed() < Duration::from_secs(20) {
            seen = descendants().into_iter().find(cut);
            thread::sleep(PAUSE);
        }
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(seen.is_some());
    }
}
