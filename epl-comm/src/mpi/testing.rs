//! Unit tests of several processes.

use std::process::Command;

/// Runs an ignored test of this program in so many processes; ends them when they take too long. What they said.
pub(super) fn mpirun(processes: usize, options: &[&str], test: &str) -> String {
    let program = std::env::current_exe().expect("a program has a file");
    let output = Command::new("timeout")
        .args(["--kill-after=10", "60", "mpirun", "--oversubscribe", "-n", &processes.to_string()])
        .args(options)
        .arg(program)
        .args(["--exact", test, "--ignored", "--nocapture"])
        // As in a container, where there is no other user.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .expect("`timeout` of coreutils and `mpirun`");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
