//! The table of cases and worlds: each case is a test on each world, but for what the table says.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use crate::cases::table::{CASES, Column, Need, WORLDS};

/// The worlds of this program.
const HERE: [&str; 4] = ["threads", "hosts", "nccl", "workers"];

/// All cases by all worlds, and below it why some are not run on some.
fn table() -> String {
    let mut text = String::from("\n");
    let mut reasons: Vec<(&str, Need, &str)> = Vec::new();
    let width = CASES.iter().map(|case| case.name.len()).max().unwrap();
    let head: String = WORLDS.iter().map(|world| format!("{:>9}", world.name)).collect();
    writeln!(text, "{:width$}{head}", "case").unwrap();
    for case in CASES {
        write!(text, "{:width$}", case.name).unwrap();
        for world in WORLDS {
            let cell = world.why_not(case).map(|(need, why)| {
                let reason = (world.name, need, why);
                let known = reasons.iter().position(|other| *other == reason);
                let number = known.unwrap_or_else(|| {
                    reasons.push(reason);
                    reasons.len() - 1
                });
                format!("no ({})", number + 1)
            });
            write!(text, "{:>9}", cell.as_deref().unwrap_or("run")).unwrap();
        }
        text.push('\n');
    }
    for (number, (world, need, why)) in reasons.iter().enumerate() {
        writeln!(text, "({}) `{world}` lacks {need:?}: {why}", number + 1).unwrap();
    }
    for world in WORLDS {
        writeln!(text, "`{}`: {}", world.name, world.what).unwrap();
    }
    text
}

/// The tests of this program, as it lists them itself.
fn tests() -> BTreeSet<String> {
    let output = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_string())).collect()
}

#[test]
fn every_case_is_run_on_every_world_that_has_what_it_needs() {
    // Not held back as the output of other tests is.
    std::io::stdout().write_all(table().as_bytes()).unwrap();
    let on = |world: &'static Column| {
        let runs = CASES.iter().filter(|case| world.why_not(case).is_none());
        runs.map(|case| format!("on::{}::{}", world.name, case.name))
    };
    let expected: BTreeSet<_> = WORLDS.iter().filter(|world| HERE.contains(&world.name)).flat_map(on).collect();
    let found: BTreeSet<_> = tests().into_iter().filter(|test| test.starts_with("on::")).collect();
    assert_eq!(found, expected);
    for case in CASES {
        assert!(WORLDS.iter().any(|world| world.why_not(case).is_none()), "{} is run nowhere", case.name);
        for need in case.needs {
            let lacks = |world: &Column| world.lacks.iter().any(|(lack, _)| lack == need);
            assert!(WORLDS.iter().any(lacks), "{} needs {need:?}, which every world has", case.name);
        }
    }
    for world in WORLDS {
        for (lack, why) in world.lacks {
            assert!(CASES.iter().any(|case| case.needs.contains(lack)), "no case needs {lack:?}");
            assert!(why.len() > 30, "why `{}` lacks {lack:?}", world.name);
        }
    }
}
