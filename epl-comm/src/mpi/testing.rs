//! Unit tests of several processes.

use std::process::Command;
use std::time::Duration;

/// Runs an ignored test of this program in so many processes, by a command that `more` has changed. What they said.
pub(super) fn mpirun(processes: usize, test: &str, more: impl FnOnce(&mut Command)) -> String {
    let output = epl_testing::mpirun(processes, Duration::from_mins(1), |command| {
        more(command);
        command.args(["--exact", test, "--ignored", "--nocapture"]).output()
    });
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
