//! Who asks for what only some systems have: the module `system` of a crate or a program, so that one place says what holds
//! where, and nothing else has to be read for another system.

use super::Source;

/// Modules and files that not every system has.
const NAMES: [&str; 7] = ["::os::", "libc::", "rustix::", "\"/proc", "\"/dev/", "\"/etc/", "\"/sys/"];
/// Words of a condition on the system.
const CONDITIONS: [&str; 4] = ["unix", "windows", "target_os", "target_env"];

/// The lines outside `system` that ask for something of one system, or which system it is.
pub fn check_systems(source: &Source) -> Vec<String> {
    if source.module().iter().any(|part| part == "system") {
        return Vec::new();
    }
    let code = source.code().into_iter();
    let found = code.filter_map(|(number, line)| Some((number, of_one_system(line)?)));
    let path = source.path.display();
    found.map(|(number, name)| format!("{path}:{number}: `{name}`, which belongs into `system`")).collect()
}

fn of_one_system(line: &str) -> Option<&'static str> {
    let is_condition = line.contains("cfg(") || line.contains("cfg!(") || line.contains("cfg_attr(");
    let is_word = |word: &&&str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == **word);
    let condition = || CONDITIONS.iter().filter(|_| is_condition).find(is_word);
    NAMES.iter().find(|name| line.contains(**name)).or_else(condition).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::source;

    #[test]
    fn what_belongs_to_a_system_is_found_outside_its_module() {
        let text = "use std::os::unix::net::UnixStream;\nfn f() { libc::getpid() }\nlet a = \"/proc/self\";\n\
                    #[cfg(target_os = \"linux\")]\n#[cfg_attr(not(unix), allow(dead_code))]\nif cfg!(windows) {}\n";
        let faults = check_systems(&source("a/b.rs", text));
        let lines: Vec<&str> = faults.iter().filter_map(|fault| fault.split(':').nth(1)).collect();
        assert_eq!(lines, ["1", "2", "3", "4", "5", "6"], "{faults:?}");
        assert!(faults[3].contains("`target_os`") && faults[5].contains("`windows`"), "{faults:?}");
        for path in ["system.rs", "system/linux.rs", "bin/a/system/mod.rs"] {
            assert!(check_systems(&source(path, text)).is_empty(), "{path}");
        }
    }

    #[test]
    fn what_every_system_has_passes() {
        let text = "let windows = unix(windows);\n#[cfg(feature = \"mpi\")]\n#[cfg(target_arch = \"x86_64\")]\n\
                    // libc::getpid\nglibc.malloc;\n#[cfg(test)]\nmod tests {\n    #![cfg(unix)]\n    use std::os::unix;\n}\n";
        assert_eq!(check_systems(&source("a.rs", text)), Vec::<String>::new());
    }
}
