//! What systems tell in ways of their own, and what only some of them do.
//!
//! | | Linux | macOS, Windows |
//! |---|---|---|
//! | name of the machine | number of its start, which its containers share | name in the network |
//! | memory of this process | told | not told |
//! | a host that acknowledges nothing | given up after a limit | given up when its beats do not come |

use core::time::Duration;
use std::io;
use std::net::TcpStream;

/// The name of this machine in its network, as people know it; none where the system tells none.
pub fn host_name() -> Option<String> {
    let name = gethostname::gethostname().to_string_lossy().trim().to_string();
    (!name.is_empty()).then_some(name)
}

/// A name of this machine that its containers share and no other machine has; none where the system tells none.
pub(crate) fn name_of_machine() -> Option<String> {
    // Nothing is there but on Linux.
    let start = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match start.trim() {
        "" => host_name().filter(|name| name != "localhost"),
        start => Some(start.to_string()),
    }
}

/// Bytes of memory of this process; none where the system does not tell.
pub(crate) fn resident() -> Option<u64> {
    // Nothing is there but on Linux.
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Gives up a connection whose other end acknowledges nothing of what it was sent for so long.
///
/// # Errors
///
/// What the system says.
pub(crate) fn limit_acknowledgements(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    let _ = (stream, limit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_one_name() {
        let name = name_of_machine().expect("there is one");
        assert!(!name.is_empty() && name == name.trim() && name_of_machine() == Some(name));
        assert!(host_name().is_some_and(|name| !name.is_empty()));
    }
}
