//! The program that is to be run: where it is, who interprets it, and whether it is linked with MPI.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::system::is_executable;

/// Where a program is: as a path, or by a name on `PATH`. A script for bash need not be executable.
pub(crate) fn find(program: &Path) -> Result<PathBuf, String> {
    if program.is_file() && (program.components().count() > 1 || !on_path(program).is_some_and(|found| found.is_file()))
    {
        if runs_by_itself(program) && !is_executable(program) {
            return Err(format!("`{0}` may not be executed; chmod +x {0}", program.display()));
        }
        return Ok(if program.components().count() > 1 { program.into() } else { Path::new(".").join(program) });
    }
    on_path(program).ok_or_else(|| {
        format!("there is no program `{}`; give a path, a name that is on PATH, or a script", program.display())
    })
}

/// The executable file of this name on `PATH`.
pub(crate) fn on_path(program: &Path) -> Option<PathBuf> {
    if program.components().count() != 1 {
        return None;
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| is_executable(path))
}

fn begins_with(path: &Path, expected: &[u8]) -> bool {
    let mut begin = vec![0; expected.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == expected
}

/// Whether a file is a program, or a script that names its interpreter.
fn runs_by_itself(program: &Path) -> bool {
    begins_with(program, b"\x7fELF") || begins_with(program, b"#!")
}

/// Who runs a file that does not run by itself.
pub(crate) fn interpreted(program: &Path) -> Option<&'static str> {
    (!runs_by_itself(program)).then_some("bash")
}

/// Whether a file is a program that needs the library of MPI: its name is among the strings for the linker, which end
/// with a zero each.
pub(crate) fn is_linked_with_mpi(program: &Path) -> bool {
    if !begins_with(program, b"\x7fELF") {
        return false;
    }
    let Ok(bytes) = std::fs::read(program) else { return false };
    let names = bytes.split(|byte| *byte == 0);
    let is_library =
        |name: &[u8]| name.starts_with(b"libmpi") && name.len() < 40 && name.windows(3).any(|part| part == b".so");
    names.into_iter().any(is_library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name_and_a_script_is_for_bash() {
        let bash = find(Path::new("bash")).expect("there is a bash");
        assert!(bash.is_absolute() && interpreted(&bash).is_none() && !is_linked_with_mpi(&bash));
        assert!(find(Path::new("no-such-program")).is_err_and(|error| error.contains("no-such-program")));
        assert!(find(Path::new("/no/such/program")).is_err());
        let manifest = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        assert_eq!((find(manifest), interpreted(manifest)), (Ok(manifest.into()), Some("bash")));
    }
}
