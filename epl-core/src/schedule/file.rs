//! A schedule of one's own, as plain text: one line a stage, from stage 0 on.
//!
//! ```text
//!  # 2 stages, 2 micro-batches; what follows a # is a remark
//!  F0 F1 B0 B1      # stage 0
//!  F0 B0 F1 B1      # stage 1
//! ```
//!
//! Lines without actions are skipped.

use std::fs;
use std::path::Path;

use super::action::Action;
use super::error::{Result, ScheduleError};
use super::verify::{Verified, verify};

/// Reads a schedule's text and proves it. An error names the line of the stage that it is about.
///
/// # Errors
///
/// A word that is no action; what [`verify`] refuses.
pub fn parse(text: &str, stages: usize, micro_batches: usize, chunks: usize) -> Result<Verified> {
    let lines: Vec<(usize, Vec<&str>)> = (1..)
        .zip(text.lines())
        .map(|(line, text)| (line, text.split('#').next().unwrap_or("").split_whitespace().collect()))
        .filter(|(_, words): &(usize, Vec<&str>)| !words.is_empty())
        .collect();
    let lists = lines.iter().enumerate().map(|(stage, (line, words))| actions(*line, stage, words));
    verify(lists.collect::<Result<_>>()?, stages, micro_batches, chunks).map_err(|error| match error.stage() {
        Some(stage) => ScheduleError::Line { line: lines[stage].0, error: Box::new(error) },
        None => error,
    })
}

/// Reads a schedule from a file and proves it, as [`parse`]. An error names the file too.
///
/// # Errors
///
/// A file that cannot be read; what [`parse`] refuses.
pub fn load(path: impl AsRef<Path>, stages: usize, micro_batches: usize, chunks: usize) -> Result<Verified> {
    let path = path.as_ref();
    let name = || path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|cause| ScheduleError::Unreadable { path: name(), reason: cause.to_string() })?;
    parse(&text, stages, micro_batches, chunks)
        .map_err(|error| ScheduleError::File { path: name(), error: Box::new(error) })
}

fn actions(line: usize, stage: usize, words: &[&str]) -> Result<Vec<Action>> {
    let action = |(word, token): (usize, &&str)| {
        token.parse().map_err(|reason| ScheduleError::Word { line, stage, word, token: token.to_string(), reason })
    };
    (1..).zip(words).map(action).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Schedule;
    use super::*;

    #[test]
    fn remarks_and_empty_lines_are_skipped() {
        let text = "# two stages\n\n  F0  F1 B0\tB1   # stage 0\n#\nF0 B0 F1 B1#stage 1\n";
        let ours = Schedule::PreferBackward.verified(2, 2).unwrap();
        assert_eq!(parse(text, 2, 2, 1), Ok(ours));
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for schedule in [Schedule::PreferForward, Schedule::PreferBackward, Schedule::Interleaved { chunks: 3 }] {
            let verified = schedule.verified(4, 6).unwrap();
            assert_eq!(parse(&verified.to_string(), 4, 6, schedule.chunks()), Ok(verified));
        }
    }

    #[test]
    fn an_error_names_the_line() {
        for (text, message) in [
            (
                "# one\nF0 F1 B0 B1\n\nF0 b0 F1 B1",
                "line 4 (stage 1), word 2: `b0` is no action; an action is F (forward) or B (backward) with the number \
                 of a micro-batch, and after a dot of a chunk: F3, B0, F3.1",
            ),
            ("# one\nF0 F1 B0 B1\n\nF0 B0 F1", "line 4: stage 1 never does B1: its list has 3 of 4 actions; add it"),
            (
                "\nF0 B0 F1 B1\nF0 F1 B0 B1",
                "line 2: the schedule never ends, since stages wait in a circle: \
                 stage 0 stands at B0 (place 2), which needs B0 of stage 1 (place 3); \
                 stage 1 stands at F1 (place 2), which needs F1 of stage 0 (place 3); \
                 where a stage has what is needed after what it stands at, put it before",
            ),
            (
                "F0 F1 B0 B1 # F0 B0 F1 B1",
                "the number of lists of actions (in a file: of lines) is 1, that of stages 2; give one list a stage",
            ),
            ("", "the number of lists of actions (in a file: of lines) is 0, that of stages 2; give one list a stage"),
        ] {
            assert_eq!(parse(text, 2, 2, 1).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_file_is_named() {
        let missing = load("no/such/schedule.txt", 1, 1, 1).unwrap_err().to_string();
        assert!(missing.starts_with("the schedule cannot be read from no/such/schedule.txt: "), "{missing}");
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let wrong = load(own, 1, 1, 1).unwrap_err().to_string();
        assert!(wrong.starts_with(&format!("{own}: line 1 (stage 0), word 1: `[package]` is no action")), "{wrong}");
    }
}
