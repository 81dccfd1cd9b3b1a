//! Schedules as literal grids, for sizes that fit on a page.

use epl_core::schedule::{Cost, Schedule, simulate};

const INTERLEAVED: Schedule = Schedule::Interleaved { chunks: 2 };
const ALL: [Schedule; 4] =
    [Schedule::PreferForward, Schedule::PreferBackward, Schedule::PreferBackwardOptimizer, INTERLEAVED];

#[track_caller]
fn assert_grid(schedule: Schedule, stages: usize, micro_batches: usize, grid: &[&str]) {
    assert_eq!(grid.len(), stages);
    let verified = schedule.verified(stages, micro_batches).unwrap();
    assert_eq!(verified.to_string(), grid.join("\n"), "{schedule}, {stages} stages, {micro_batches} micro-batches");
    for stage in 0..stages {
        assert_eq!(schedule.actions(stage, stages, micro_batches), verified.actions(stage));
    }
}

#[test]
fn prefer_forward() {
    assert_grid(Schedule::PreferForward, 4, 6, &["F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5"; 4]);
    assert_grid(Schedule::PreferForward, 4, 2, &["F0 F1 B0 B1"; 4]);
    assert_grid(Schedule::PreferForward, 1, 3, &["F0 F1 F2 B0 B1 B2"]);
}

#[test]
fn prefer_backward() {
    let grid = [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ];
    assert_grid(Schedule::PreferBackward, 4, 6, &grid);
    assert_grid(Schedule::Interleaved { chunks: 1 }, 4, 6, &grid);
    assert_grid(Schedule::PreferBackward, 4, 2, &["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]);
    assert_grid(Schedule::PreferBackward, 1, 3, &["F0 B0 F1 B1 F2 B2"]);
}

#[test]
fn prefer_backward_optimizer() {
    let grid = [
        "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ];
    let small = ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"];
    assert_grid(Schedule::PreferBackwardOptimizer, 4, 6, &grid);
    assert_grid(Schedule::PreferBackwardOptimizer, 4, 2, &small);
    assert_grid(Schedule::PreferBackwardOptimizer, 1, 3, &["F0 B0 F1 B1 F2 B2"]);
}

#[test]
fn interleaved() {
    let even = [
        "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3",
    ];
    assert_grid(INTERLEAVED, 2, 4, &even);
    // In groups of four and two these would take 55 instead of 45; here they are one group.
    let remainder = [
        "F0 F1 F2 F3 F4 F5 F0.1 F1.1 F2.1 F3.1 F4.1 F5.1 B0.1 B1.1 B2.1 B3.1 B4.1 B5.1 B0 B1 B2 B3 B4 B5",
        "F0 F1 F2 F3 F4 F5 F0.1 F1.1 F2.1 F3.1 F4.1 B0.1 F5.1 B1.1 B2.1 B3.1 B4.1 B5.1 B0 B1 B2 B3 B4 B5",
        "F0 F1 F2 F3 F4 F5 F0.1 F1.1 F2.1 B0.1 F3.1 B1.1 F4.1 B2.1 F5.1 B3.1 B4.1 B5.1 B0 B1 B2 B3 B4 B5",
        "F0 F1 F2 F3 F4 F5 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.1 B4.1 F5.1 B5.1 B0 B1 B2 B3 B4 B5",
    ];
    assert_grid(INTERLEAVED, 4, 6, &remainder);
    let all_ahead = "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1";
    assert_grid(INTERLEAVED, 4, 2, &[all_ahead, all_ahead, all_ahead, "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1"]);
    assert_grid(INTERLEAVED, 1, 3, &["F0 F0.1 B0.1 F1 B0 F1.1 B1.1 F2 B1 F2.1 B2.1 B2"]);
}

/// Stage 0 of the interleaved grid of the paper's size, 4 stages, 8 micro-batches, 2 chunks: ahead are 2·3 + 4 forwards.
#[test]
fn interleaved_as_in_the_paper() {
    let names: Vec<String> = INTERLEAVED.actions(0, 4, 8).iter().map(ToString::to_string).collect();
    assert_eq!(
        names.join(" "),
        "F0 F1 F2 F3 F0.1 F1.1 F2.1 F3.1 F4 F5 \
         F6 B0.1 F7 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0 F7.1 B1 \
         B2 B3 B4.1 B5.1 B6.1 B7.1 B4 B5 B6 B7"
    );
}

#[test]
fn the_drawings_in_the_docs_are_what_is_drawn() {
    let docs = include_str!("../../../src/schedule/rule.rs");
    for schedule in ALL {
        let (stages, micro_batches, cost) = match schedule {
            INTERLEAVED => (2, 4, Cost { forward: 1, backward: 1 }),
            _ => (4, 6, Cost::USUAL),
        };
        let verified = schedule.verified(stages, micro_batches).unwrap();
        let drawn = simulate(&verified, &vec![cost; stages * schedule.chunks()]).unwrap().to_string();
        let lines: Vec<String> = drawn.lines().take(stages).map(|line| format!("    /// {line}\n")).collect();
        assert!(docs.contains(&lines.concat()), "{schedule} is not drawn as\n{}", lines.concat());
    }
}
