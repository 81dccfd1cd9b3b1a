//! A timeline as text.
//!
//! A slot of time lasts as long as the shortest action that costs something, so every action that
//! costs something is seen; what begins inside a slot is drawn from the next. A slot is a column
//! as wide as the longest name: a name, dashes where it goes on, a dot where the stage is idle.

use std::fmt;
use std::ops::Range;

use super::timeline::Timeline;

/// Columns of a printed timeline.
const COLUMNS: usize = 100;
/// Stands for the slots that are left out.
const GAP: &str = " … ";

impl Timeline {
    /// One line a stage in at most this many columns, and a line with the makespan.
    ///
    /// What is too long loses slots in its middle, where a pipeline repeats itself; its filling and
    /// emptying stay. `…` marks the place, and the last line says which time is left out. Two
    /// slots are shown however few the columns.
    pub fn draw(&self, columns: usize) -> String {
        let raster = Raster::new(self);
        let (head, tail) = raster.shown(columns);
        let gap = if head.end < tail.start { GAP } else { "" };
        let mut lines: Vec<String> = (0..self.stages())
            .map(|stage| {
                let cells = |slots: &Range<u64>| raster.cells(stage, slots.clone());
                let line = format!("{}{}{gap}{}", raster.name(stage), cells(&head), cells(&tail));
                line.trim_end().to_string()
            })
            .collect();
        let left_out = match gap {
            "" => String::new(),
            _ => format!(", {} to {} left out", head.end * raster.slot, tail.start * raster.slot),
        };
        let (makespan, slot, idle) = (self.makespan(), raster.slot, 100.0 * self.bubble());
        lines.push(format!("makespan {makespan} in slots of {slot}{left_out}; idle {idle:.1} %"));
        lines.join("\n")
    }
}

/// The drawing of [`Timeline::draw`] in 100 columns.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(COLUMNS))
    }
}

/// A timeline cut into slots.
struct Raster<'a> {
    timeline: &'a Timeline,
    /// How long a slot lasts.
    slot: u64,
    /// Columns of a slot.
    width: usize,
}

impl<'a> Raster<'a> {
    fn new(timeline: &'a Timeline) -> Self {
        let spans = || (0..timeline.stages()).flat_map(|stage| timeline.spans(stage));
        let lengths = spans().map(|span| span.end - span.start).filter(|length| *length > 0);
        let width = spans().map(|span| span.action.to_string().len()).max();
        Self { timeline, slot: lengths.min().unwrap_or(1), width: width.unwrap_or(1) }
    }

    /// The first and the last slots that fit, which meet if all do.
    fn shown(&self, columns: usize) -> (Range<u64>, Range<u64>) {
        let all = self.timeline.makespan().div_ceil(self.slot);
        let room = columns.saturating_sub(self.name(0).len());
        if all.saturating_mul(self.width as u64) <= room as u64 {
            return (0..all, all..all);
        }
        let fit = (room.saturating_sub(GAP.chars().count()) / self.width).max(2) as u64;
        let tail = (fit / 2).min(all);
        let head = (fit - tail).min(all - tail);
        (0..head, all - tail..all)
    }

    /// `stage 3  `, as wide for every stage.
    fn name(&self, stage: usize) -> String {
        let width = (self.timeline.stages() - 1).to_string().len();
        format!("stage {stage:width$}  ")
    }

    fn cells(&self, stage: usize, slots: Range<u64>) -> String {
        slots.map(|slot| format!("{:width$}", self.cell(stage, slot * self.slot), width = self.width)).collect()
    }

    /// What a stage does at the begin of a slot.
    fn cell(&self, stage: usize, time: u64) -> String {
        let spans = self.timeline.spans(stage);
        let next = spans.partition_point(|span| span.end <= time);
        match spans.get(next) {
            Some(span) if span.start > time => ".".into(),
            Some(span) if time - span.start < self.slot => span.action.to_string(),
            Some(_) => "-".repeat(self.width),
            None => ".".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cost, Schedule, simulate};
    use super::*;

    fn timeline(schedule: Schedule, stages: usize, micro_batches: usize, costs: &[Cost]) -> Timeline {
        simulate(&schedule.verified(stages, micro_batches).unwrap(), costs).unwrap()
    }

    #[test]
    fn names_of_two_digits_widen_the_slots() {
        let drawn = timeline(Schedule::PreferForward, 2, 11, &[Cost { forward: 1, backward: 1 }; 2]).to_string();
        assert_eq!(
            drawn,
            "stage 0  F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10.  .  B0 B1 B2 B3 B4 B5 B6 B7 B8 B9 B10\n\
             stage 1  .  F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10B0 B1 B2 B3 B4 B5 B6 B7 B8 B9 B10.\n\
             makespan 24 in slots of 1; idle 8.3 %"
        );
    }

    #[test]
    fn a_long_timeline_loses_its_middle() {
        let drawn = timeline(Schedule::PreferBackward, 2, 40, &[Cost::USUAL; 2]).draw(40);
        assert_eq!(
            drawn,
            "stage 0  F0 F1 .  .  B0  … ---.  B39---\n\
             stage 1  .  F0 B0 ---F1  … B39---.  .\n\
             makespan 123 in slots of 1, 5 to 119 left out; idle 2.4 %"
        );
    }

    #[test]
    fn no_line_is_wider_than_asked() {
        for columns in [24, 30, 57, 100, 101, 300] {
            for schedule in [Schedule::PreferBackward, Schedule::Interleaved { chunks: 2 }] {
                let drawn = timeline(schedule, 4, 12, &vec![Cost::USUAL; 4 * schedule.chunks()]).draw(columns);
                let stages = drawn.lines().take(4).map(|line| line.chars().count()).max().unwrap();
                assert!(stages <= columns, "{stages} of {columns} columns\n{drawn}");
            }
        }
    }

    #[test]
    fn uneven_costs_show_every_action() {
        let costs = [Cost { forward: 300, backward: 500 }, Cost { forward: 200, backward: 0 }];
        let drawn = timeline(Schedule::PreferBackward, 2, 2, &costs).to_string();
        assert_eq!(
            drawn,
            "stage 0  F0--F1B0----B1--\n\
             stage 1  . . F0F1. . . .\n\
             makespan 1600 in slots of 200; idle 37.5 %",
            "stage 0: 0-300-600, B0 from 600 to 1100, B1 to 1600; stage 1's backwards cost nothing"
        );
    }

    #[test]
    fn nothing_to_do_is_drawn_as_nothing() {
        let drawn = timeline(Schedule::PreferBackward, 2, 2, &[Cost { forward: 0, backward: 0 }; 2]).to_string();
        assert_eq!(drawn, "stage 0\nstage 1\nmakespan 0 in slots of 1; idle 0.0 %");
    }
}
